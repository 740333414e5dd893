"""From a job and a slice to a plan: the mesh, what the compiler says of it, and what would be better."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxsink.errors import JaxsinkError
from jaxsink.evals.batching import round_up
from jaxsink.planner.choose import prefill_seconds
from jaxsink.planner.compile import Compiled, Compiler
from jaxsink.planner.cost import Hours
from jaxsink.planner.hlo import parse_module
from jaxsink.planner.job import Job
from jaxsink.planner.roofline import Roofline, guess_step, roofline
from jaxsink.planner.search import largest_batch
from jaxsink.planner.timing import Timing, time_of_loop
from jaxsink.planner.topology import Topology
from jaxsink.planner.tpu import TPU

Say = Callable[[str], None]


@dataclass(frozen=True)
class InTurn:
    """The job's rows in several smaller batches, one after the other, on a mesh that does not hold them all at once."""

    batch: int
    mesh: tuple[int, int]
    step: float  # seconds, of one batch
    of_all: float  # seconds, of all the job's rows

    def to_dict(self) -> dict[str, Any]:
        mesh = {"data": self.mesh[0], "model": self.mesh[1]}
        return {"batch": self.batch, "mesh": mesh, "step_seconds": self.step, "seconds_of_all_rows": self.of_all}


@dataclass(frozen=True)
class HighestShare:
    """The mesh whose step comes closest to the roofline of its own layout; that need not be the fastest one."""

    mesh: tuple[int, int]
    step: float  # seconds
    roofline: float  # the share

    def to_dict(self) -> dict[str, Any]:
        mesh = {"data": self.mesh[0], "model": self.mesh[1]}
        return {"mesh": mesh, "step_seconds": self.step, "roofline": self.roofline}


@dataclass(frozen=True)
class Plan:
    """What is known of a job on a slice; the times are None where it does not fit."""

    compiled: Compiled
    largest: int | None
    timing: Timing | None
    roofline: Roofline
    in_turn: InTurn | None  # if that is faster
    highest: HighestShare | None  # where meshes were searched
    suggestions: tuple[str, ...]

    @property
    def topology(self) -> Topology:
        return self.compiled.topology

    @property
    def hours(self) -> Hours | None:
        """Of all steps; loading and compiling are not counted."""
        if self.timing is None:
            return None
        job, chip = self.compiled.job, self.topology.chip
        prefill = prefill_seconds(job, self.topology)
        return Hours.of_steps(job.steps, self.timing, self.roofline.limit, chip, prefill)

    def to_dict(self) -> dict[str, Any]:
        compiled, timing, hours = self.compiled, self.timing, self.hours
        topology, memory = self.topology, compiled.memory
        return {
            topology.chip.accelerator: topology.name,
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
            "hours": None if hours is None else hours.to_dict(),
            "shares": None if timing is None else self.roofline.shares(timing.total, timing.collective),
            "roofline_seconds": {"compute": self.roofline.compute, "memory": self.roofline.memory},
            "bound": self.roofline.bound,
            "collectives_per_step": None if timing is None else dict(timing.collectives),
            "bytes_sent_per_step": None if timing is None else timing.moved,
            "faster_in_turn": None if self.in_turn is None else self.in_turn.to_dict(),
            "highest_share": None if self.highest is None else self.highest.to_dict(),
            "suggestions": list(self.suggestions),
        }


def make_plan(
    job: Job,
    topology: Topology,
    mesh: tuple[int, int] | None = None,
    search: bool = True,
    say: Say = lambda text: None,
) -> Plan:
    """Compile the job for the slice. mesh: (data, model), None chooses. search: look for the largest batch as well,
    and, where it chooses, for the mesh with the highest share of the roofline."""
    if mesh is not None:
        check_mesh(mesh, topology, job)
    compiler = Compiler(topology)
    if mesh is not None:
        say(f"{topology.name}: compiling for {mesh[0]} x {mesh[1]}")
        compiled, too_large = compiler.compile(job, *mesh), []
    else:
        compiled, too_large = compile_best(compiler, job, say)
    largest = find_largest(compiler, compiled, say) if search else None
    read, timing = compiler.read_bytes(job, *compiled.mesh), time_of(compiled)
    in_turn = None
    if search and timing is not None and too_large:
        in_turn = faster_in_turn(compiler, too_large[0], timing.total, say)
    limit = roofline(job, topology, read)
    highest = highest_share(compiler, compiled, too_large, say) if search and mesh is None else None
    lines = suggest(compiled, timing, limit, largest, in_turn, mesh is None)
    return Plan(compiled, largest, timing, limit, in_turn, highest, tuple(lines))


def time_of(compiled: Compiled) -> Timing | None:
    """Of a step, where it fits."""
    if not compiled.fits or compiled.text is None:
        return None
    module = parse_module(compiled.text)
    chip = compiled.topology.chip
    found = time_of_loop(module, module.step_loop(), chip)
    if isinstance(chip, TPU):
        return found
    return found.within(roofline(compiled.job, compiled.topology, compiled.read).limit, chip.shares)


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
    roomy = [shape for shape in shapes if compiler.weight_bytes(job, *shape) < 0.99 * topology.chip.hbm]
    return sorted(roomy, key=lambda s: guess_step(job, topology, compiler.read_bytes(job, *s), *s)) or shapes[:1]


def compile_best(compiler: Compiler, job: Job, say: Say) -> tuple[Compiled, list[Compiled]]:
    """The first shape that fits, from the fastest on; and those before it, for which the job is too large."""
    tried = []
    for data, model in meshes(compiler, job):
        say(f"{compiler.topology.name}: compiling for {data} x {model}")
        tried.append(compiler.compile(job, data, model))
        if tried[-1].fits:
            break
    return tried[-1], tried[:-1]


def faster_in_turn(compiler: Compiler, too_large: Compiled, step: float, say: Say) -> InTurn | None:
    """Whether the mesh for which the job is too large takes its rows in smaller batches faster than `step` seconds."""
    job, batch = too_large.job, find_largest(compiler, too_large, say)
    if batch is None:
        return None
    turns = math.ceil(job.batch / batch)
    batch = round_up(math.ceil(job.batch / turns), too_large.mesh[0])
    smaller = compiler.compile(job.replace(batch=batch), *too_large.mesh)
    timing = time_of(smaller)
    if timing is None or turns * timing.total >= step:
        return None
    return InTurn(batch, too_large.mesh, timing.total, turns * timing.total)


def highest_share(compiler: Compiler, chosen: Compiled, too_large: Sequence[Compiled], say: Say) -> HighestShare | None:
    """Of the chosen mesh, which should be the fastest, and those on which a step has to read more: others are no faster, and
    have no higher limit. None without times of the compiler."""
    job, topology = chosen.job, compiler.topology
    if not isinstance(topology.chip, TPU) or not chosen.fits:
        return None
    limits = {shape: roofline(job, topology, compiler.read_bytes(job, *shape)).limit for shape in meshes(compiler, job)}
    without, found = {one.mesh for one in too_large}, []
    for shape, limit in limits.items():
        if shape in without or (shape != chosen.mesh and limit <= limits[chosen.mesh]):
            continue
        say(f"{topology.name}: compiling for {shape[0]} x {shape[1]}")
        timing = time_of(chosen if shape == chosen.mesh else compiler.compile(job, *shape))
        if timing is not None:
            found.append(HighestShare(shape, timing.total, limit / timing.total))
    return max(found, key=lambda one: one.roofline, default=None)


def find_largest(compiler: Compiler, compiled: Compiled, say: Say) -> int | None:
    job, (data, model) = compiled.job, compiled.mesh
    if compiler.weight_bytes(job, data, model) > compiler.topology.chip.hbm:
        return None

    def need(batch: int) -> float:
        say(f"{compiler.topology.name}: compiling a batch of {batch}")
        return compiler.compile(job.replace(batch=batch), data, model).needed

    return largest_batch(need, compiler.topology.chip.hbm, {job.batch: compiled.needed}, data)


def suggest(
    compiled: Compiled,
    timing: Timing | None,
    limit: Roofline,
    largest: int | None,
    in_turn: InTurn | None,
    mesh_was_free: bool,
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
        lines.append("it does not fit: take more chips, or a chip with more memory, or --dtype int8")
    if compiled.fits and topology.chip.accelerator == "gpu":
        lines.append("let JAX have the memory: XLA_PYTHON_CLIENT_MEM_FRACTION=.95 (left alone it takes 75 %)")
    experts = job.config.experts
    if experts is not None and topology.chip.accelerator == "gpu":
        lines.append(
            f"a step takes much longer: XLA's GPU compiler multiplies each of a token's {experts.per_token} choices with "
            f"all {experts.count} experts, and times and costs count the chosen ones only"
        )
    memory = compiled.memory
    if memory is not None and memory.record > 0.1 * memory.total:
        lines.append("the record is large: record top or counts, every n-th step (--every), or stream it (stream=16)")
    if timing is None:
        return lines
    if in_turn is not None:
        shape = "{}x{}".format(*in_turn.mesh)
        lines.append(
            f"faster: batches of {in_turn.batch} in turn, on --mesh {shape}; a step of all {job.batch} rows then takes "
            f"{in_turn.of_all * 1e3:.0f} instead of {timing.total * 1e3:.0f} ms"
        )
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
