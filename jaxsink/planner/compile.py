"""The sampler's own program, compiled for devices that are not here, with shapes for weights: nothing is allocated."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import jax
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh

from jaxsink.errors import JaxsinkError
from jaxsink.parallel.mesh import DATA, make_mesh
from jaxsink.planner.job import Job
from jaxsink.planner.memory import place_weights, total_bytes, weights_on
from jaxsink.planner.roofline import read_bytes
from jaxsink.planner.topology import GIB, Topology
from jaxsink.sampling.execution import Program

UNITS = {"": 1.0, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Memory:
    """Bytes of HBM on each device. state: tokens, masks and caches; code: the program itself."""

    weights: float
    record: float
    temporaries: float
    state: float
    code: float

    @property
    def total(self) -> float:
        return self.weights + self.record + self.temporaries + self.state + self.code

    def to_dict(self) -> dict[str, float]:
        parts = {name: getattr(self, name) for name in ("weights", "record", "temporaries", "state", "code")}
        return {**parts, "total": self.total}


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a job on a data x model mesh; without memory and text if it does not fit."""

    job: Job
    topology: Topology
    mesh: tuple[int, int]
    needed: float  # bytes per device; inf if the compiler does not say
    seconds: float  # of compiling
    memory: Memory | None = None
    text: str | None = field(default=None, repr=False)  # hundreds of kilobytes
    read: float = 0.0  # bytes of weights that a device reads in a step

    @property
    def fits(self) -> bool:
        return self.memory is not None and self.needed <= self.topology.chip.hbm


@dataclass
class Compiler:
    """Compiles for one topology; describes its devices once."""

    topology: Topology

    def __post_init__(self) -> None:
        self.devices = self.topology.chip.describe(self.topology)

    def mesh(self, data: int, model: int) -> Mesh:
        return make_mesh(data, model, self.devices)

    def weights(self, job: Job, data: int, model: int) -> list[tuple[str, tuple[int, ...], int]]:
        """[(name, shape on one device, bytes of a number)]."""
        return weights_on(job, self.mesh(data, model))

    def read_bytes(self, job: Job, data: int, model: int) -> float:
        return read_bytes(self.weights(job, data, model))

    def weight_bytes(self, job: Job, data: int, model: int) -> float:
        return total_bytes(self.weights(job, data, model))

    def compile(self, job: Job, data: int, model: int) -> Compiled:
        """The whole run in one program. A batch is filled up to a multiple of the data axis, as `generate` does."""
        mesh = self.mesh(data, model)
        begun = time.perf_counter()
        with jax.set_mesh(mesh), without_compilation_cache():
            lowered = lower(job, mesh)
            try:
                compiled = lowered.compile(compiler_options=dict(self.topology.chip.compiler_options))
            except jax.errors.JaxRuntimeError as error:
                needed = needed_bytes(str(error))
                if needed is None:
                    reason = (str(error).strip().splitlines() or [""])[0][:200]
                    name = f"{self.topology.name}: the {self.topology.chip.accelerator.upper()} compiler"
                    raise JaxsinkError(f"{name} failed: {reason}") from error
                return Compiled(job, self.topology, (data, model), needed, time.perf_counter() - begun)
        sizes = compiled.memory_analysis()
        assert sizes is not None
        weights = self.weight_bytes(job, data, model)
        memory = Memory(
            weights=weights,
            record=sizes.output_size_in_bytes - sizes.alias_size_in_bytes,
            temporaries=sizes.temp_size_in_bytes,
            state=max(0.0, sizes.argument_size_in_bytes - weights),
            code=sizes.generated_code_size_in_bytes,
        )
        seconds, read = time.perf_counter() - begun, self.read_bytes(job, data, model)
        return Compiled(job, self.topology, (data, model), memory.total, seconds, memory, compiled.as_text(), read)


@contextmanager
def without_compilation_cache() -> Iterator[None]:
    """Programs for devices that are not here can be written to JAX's cache, but not read again."""
    folder = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if folder is None:
        yield
        return
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_compilation_cache_dir", folder)
        compilation_cache.reset_cache()


def lower(job: Job, mesh: Mesh) -> jax.stages.Lowered:
    """The program that `generate` runs, traced for this mesh."""
    spec = job.spec(mesh)
    batch = -(-job.batch // mesh.shape[DATA]) * mesh.shape[DATA]
    chunk = spec.total_steps if job.stream is None else min(job.stream, spec.total_steps)
    return Program(place_weights(job, mesh), job.sampler, spec).lower(batch, job.length, chunk)


def needed_bytes(message: str) -> float | None:
    """What the compiler says a program would need, if the message says that memory is short; inf if it gives no number."""
    if "RESOURCE_EXHAUSTED" not in message and "Ran out of memory" not in message:
        return None
    found = re.search(r"Used ([\d.]+)([KMGT]?) of", message) or re.search(r"\(([\d.]+)([KMGT]?)\) exceeds", message)
    return float(found[1]) * UNITS[found[2]] if found else math.inf


def gib(size: float) -> float:
    return size / GIB
