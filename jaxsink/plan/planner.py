"""From a job and a slice to a plan: the mesh, what the compiler says of it, and what would be better."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxsink.errors import JaxsinkError
from jaxsink.evals.batching import round_up
from jaxsink.plan.compile import Compiled, Compiler
from jaxsink.plan.cost import Bill, table_1
from jaxsink.plan.hlo import parse_module
from jaxsink.plan.job import Job
from jaxsink.plan.roofline import Roofline, guess_step, roofline
from jaxsink.plan.search import largest_batch
from jaxsink.plan.timing import Timing, time_of_loop
from jaxsink.plan.topology import Topology

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is known of a job on a slice; the times are None where it does not fit."""

    compiled: Compiled
    largest: int | None
    timing: Timing | None
    roofline: Roofline
    bill: Bill | None
    suggestions: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        compiled, timing = self.compiled, self.timing
        topology, memory = compiled.topology, compiled.memory
        return {
            "tpu": topology.name,
            "chips": topology.chips,
            "devices": topology.devices,
            "mesh": {"data": compiled.mesh[0], "model": compiled.mesh[1]},
            "batch": compiled.job.batch,
            "length": compiled.job.length,
            "steps": compiled.job.steps,
            "fits": compiled.fits,
            "hbm_per_device": topology.chip.hbm,
            "needed_per_device": None if math.isinf(compiled.needed) else compiled.needed,
            "memory_per_device": None if memory is None else memory.to_dict(),
            "largest_batch": self.largest,
            "compile_seconds": compiled.seconds,
            "step_seconds": None if timing is None else timing.to_dict(),
            "shares": None if timing is None else self.roofline.shares(timing.total, timing.collective),
            "roofline_seconds": {"compute": self.roofline.compute, "memory": self.roofline.memory},
            "bound": self.roofline.bound,
            "collectives_per_step": None if timing is None else dict(timing.collectives),
            "bytes_sent_per_step": None if timing is None else timing.moved,
            "table_1": None if self.bill is None else self.bill.to_dict(),
            "suggestions": list(self.suggestions),
        }


def make_plan(
    job: Job,
    topology: Topology,
    mesh: tuple[int, int] | None = None,
    price: float | None = None,
    search: bool = True,
    say: Say = lambda text: None,
) -> Plan:
    """Compile the job for the slice. mesh: (data, model), None chooses. search: look for the largest batch as well."""
    if mesh is not None:
        check_mesh(mesh, topology, job)
    compiler = Compiler(topology)
    if mesh is not None:
        say(f"{topology.name}: compiling for {mesh[0]} x {mesh[1]}")
        compiled = compiler.compile(job, *mesh)
    else:
        compiled = compile_best(compiler, job, say)
    data, model = compiled.mesh
    largest = None
    if search:
        largest = find_largest(compiler, compiled, say)
    read = compiler.read_bytes(job, data, model)
    timing = bill = None
    if compiled.fits and compiled.text is not None:
        module = parse_module(compiled.text)
        timing = time_of_loop(module, module.step_loop(), topology.chip)
        bill = table_1(job, topology, read, timing.total, price)
    limit = roofline(job, topology, read)
    return Plan(compiled, largest, timing, limit, bill, tuple(suggest(compiled, timing, limit, largest, mesh is None)))


def check_mesh(mesh: tuple[int, int], topology: Topology, job: Job) -> None:
    data, model = mesh
    if data * model != topology.devices:
        raise JaxsinkError(f"a {data} x {model} mesh does not fit the {topology.devices} devices of {topology.name}.")
    if job.batch % data:
        raise JaxsinkError(
            f"a batch of {job.batch} cannot be shared evenly by the {data} parts of a {data} x {model} mesh; "
            f"take {round_up(job.batch, data)}, or another mesh."
        )


def meshes(compiler: Compiler, job: Job) -> list[tuple[int, int]]:
    """(data, model) shapes whose weights leave room, the one that should be fastest first."""
    topology = compiler.topology
    shapes = [(n, topology.devices // n) for n in range(1, topology.devices + 1) if topology.devices % n == 0]
    shapes = [(data, model) for data, model in shapes if job.batch % data == 0]
    roomy = [shape for shape in shapes if compiler.weight_bytes(job, *shape) < 0.97 * topology.chip.hbm]
    return sorted(roomy, key=lambda s: guess_step(job, topology, compiler.read_bytes(job, *s), *s)) or shapes[:1]


def compile_best(compiler: Compiler, job: Job, say: Say) -> Compiled:
    """The first shape that fits, from the fastest on."""
    compiled = None
    for data, model in meshes(compiler, job):
        say(f"{compiler.topology.name}: compiling for {data} x {model}")
        compiled = compiler.compile(job, data, model)
        if compiled.fits:
            break
    assert compiled is not None
    return compiled


def find_largest(compiler: Compiler, compiled: Compiled, say: Say) -> int | None:
    job, (data, model) = compiled.job, compiled.mesh
    if compiler.weight_bytes(job, data, model) > compiler.topology.chip.hbm:
        return None

    def need(batch: int) -> float:
        say(f"{compiler.topology.name}: compiling a batch of {batch}")
        return compiler.compile(job.replace(batch=batch), data, model).needed

    return largest_batch(need, compiler.topology.chip.hbm, {job.batch: compiled.needed}, data)


def suggest(
    compiled: Compiled, timing: Timing | None, limit: Roofline, largest: int | None, mesh_was_free: bool
) -> list[str]:
    """What to do or change, in sentences."""
    job, topology, (data, model) = compiled.job, compiled.topology, compiled.mesh
    lines = []
    if compiled.fits:
        lines.append(f"load the model onto parallel.make_mesh({data}, {model}), or --mesh {data}x{model}")
    elif largest:
        lines.append(f"it does not fit: a batch of {largest} does on this mesh")
    elif model < topology.devices:
        lines.append(f"it does not fit: try --mesh 1x{topology.devices}")
    else:
        lines.append("it does not fit: take a slice with more chips, or a chip with more memory")
    memory = compiled.memory
    if memory is not None and memory.record > 0.1 * memory.total:
        lines.append("the record is large: record top or counts, every n-th step (--every), or stream it (stream=16)")
    if timing is None:
        return lines
    if limit.bound == "memory" and largest is not None and largest >= 2 * job.batch:
        lines.append(f"weights are read for few tokens: more rows hardly take longer (up to {largest} fit)")
    if timing.collective > 0.2 * timing.total and model > 1 and limit.bound == "compute":
        less = next(n for n in range(data + 1, topology.devices + 1) if topology.devices % n == 0)
        other = f"--mesh {less}x{topology.devices // less}"
        if job.batch % less:
            lines.append(f"collectives take long: a batch that is a multiple of {less} allows {other}")
        elif not mesh_was_free:
            lines.append(f"collectives take long: try {other}")
    return lines
