"""What an evaluation takes on a slice: its own batches compiled, the cheapest mesh and rows, hours and cost.

The formula of choose.py ranks the meshes; the compiler has the last word on the first few of them. Of a mesh, the
batch that needs most memory is compiled to see how many rows fit, and the bucket with most of the work to see how long a
step takes; the steps of the other buckets are taken to reach the same share of the roofline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxsink.errors import JaxsinkError
from jaxsink.evals.layout import Bucket
from jaxsink.planner.choose import Choice, choices, prefill_seconds
from jaxsink.planner.compile import Compiled, Compiler
from jaxsink.planner.cost import Hours
from jaxsink.planner.planner import Say, time_of
from jaxsink.planner.roofline import roofline
from jaxsink.planner.search import largest_batch
from jaxsink.planner.timing import Timing
from jaxsink.planner.topology import Topology
from jaxsink.planner.workload import Workload

MESHES = 2  # that are compiled
TRIES = 2  # further compiles of a mesh, to find the rows that fit


@dataclass(frozen=True)
class EvaluationPlan:
    """An evaluation on a slice with a mesh and at most so many rows; without times if it does not fit."""

    work: Workload
    mesh: tuple[int, int]
    rows: int
    largest: Compiled  # the batch that needs most memory
    busiest: Compiled  # of the bucket with most of the work
    read: float  # bytes of weights that a device reads in a step
    compiles: int

    @property
    def topology(self) -> Topology:
        return self.largest.topology

    @property
    def fits(self) -> bool:
        return self.largest.fits

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        return self.work.buckets(self.rows, self.mesh[0])

    @cached_property
    def timing(self) -> Timing | None:
        """Of a step of the busiest bucket."""
        return time_of(self.busiest) if self.fits else None

    def limit(self, bucket: Bucket) -> float:
        """Seconds of a step at the roofline."""
        return roofline(self.work.job(bucket), self.topology, self.read).limit

    @cached_property
    def share(self) -> float | None:
        """Of the roofline, that the estimate reaches; where products are the limit, this is the MFU."""
        if self.timing is None:
            return None
        return roofline(self.busiest.job, self.topology, self.read).limit / self.timing.total

    @cached_property
    def hours(self) -> Hours | None:
        if self.share is None:
            return None
        at_limit = prefill = 0.0
        for bucket in self.buckets:
            job = self.work.job(bucket)
            at_limit += bucket.batches * job.steps * self.limit(bucket)
            prefill += bucket.batches * prefill_seconds(job, self.topology)
        return Hours.of(at_limit, self.share, self.topology.chip, prefill)

    def to_dict(self) -> dict[str, Any]:
        memory, hours = self.largest.memory, self.hours
        return {
            "setting": self.work.name,
            self.topology.chip.accelerator: self.topology.name,
            "prompt_lengths_counted_with": self.work.counted,
            "conditions": len(self.work.conditions),
            "sequences": self.work.sequences,
            "mesh": {"data": self.mesh[0], "model": self.mesh[1]},
            "rows": self.rows,
            "buckets": [
                {
                    "prompt": bucket.prompt, "response": bucket.response, "sequences": bucket.sequences,
                    "rows": bucket.rows, "batches": bucket.batches, "steps": self.work.job(bucket).steps,
                }
                for bucket in self.buckets
            ],
            "fits": self.fits,
            "hbm_per_device": self.topology.chip.hbm,
            "needed_per_device": None if math.isinf(self.largest.needed) else self.largest.needed,
            "memory_per_device": None if memory is None else memory.to_dict(),
            "step_seconds": None if self.timing is None else self.timing.to_dict(),
            "share_of_roofline": self.share,
            "bound": roofline(self.busiest.job, self.topology, self.read).bound,
            "compiles": self.compiles,
            "hours": None if hours is None else hours.to_dict(),
        }  # fmt: skip


@dataclass
class Tried:
    """A mesh under the compiler: what was compiled for which ceiling of rows."""

    compiler: Compiler
    work: Workload
    mesh: tuple[int, int]
    say: Say

    def __post_init__(self) -> None:
        self.by_shape: dict[Bucket, Compiled] = {}

    def compile(self, bucket: Bucket) -> Compiled:
        if bucket not in self.by_shape:
            data, model = self.mesh
            name = f"{self.compiler.topology.name}, {self.work.name}"
            shape = f"{bucket.rows} rows of {bucket.prompt} + {bucket.response} tokens"
            self.say(f"{name}: compiling {shape} for {data} x {model}")
            self.by_shape[bucket] = self.compiler.compile(self.work.job(bucket), data, model)
        return self.by_shape[bucket]

    def heaviest(self, rows: int) -> Compiled:
        """The batch that needs most memory, if batches have at most so many rows."""
        buckets = self.work.buckets(rows, self.mesh[0])
        return self.compile(max(buckets, key=lambda bucket: (bucket.rows * bucket.length, bucket.length)))

    def busiest(self, rows: int) -> Compiled:
        buckets = self.work.buckets(rows, self.mesh[0])
        return self.compile(max(buckets, key=lambda bucket: bucket.batches * bucket.rows * bucket.length))


def plan_evaluation(
    work: Workload,
    topology: Topology,
    mesh: tuple[int, int] | None = None,
    rows: int | None = None,
    search: bool = True,
    say: Say = lambda text: None,
) -> EvaluationPlan:
    """The cheapest that fits. mesh, rows: what is decided already. search: let the compiler improve on the formula."""
    check(mesh, rows, topology)
    compiler = Compiler(topology)
    options = choices(work, topology, compiler.devices, mesh, rows)
    best, compiles = None, 0
    for choice in options[: MESHES if search else 1]:
        if best is not None and best.hours is not None and choice.seconds >= 3600 * best.hours.estimate:
            continue  # its best case is no better
        tried = Tried(compiler, work, choice.mesh, say)
        found = plan_mesh(tried, choice, search and rows is None)
        compiles += found.compiles
        best = found if best is None or is_cheaper(found, best) else best
    assert best is not None
    return EvaluationPlan(work, best.mesh, best.rows, best.largest, best.busiest, best.read, compiles)


def plan_mesh(tried: Tried, choice: Choice, search: bool) -> EvaluationPlan:
    work, data = tried.work, choice.mesh[0]
    rows, first = choice.rows, tried.heaviest(choice.rows)
    if search and (not first.fits or rows < choice.wanted):
        room = tried.compiler.topology.chip.hbm
        known = {rows: first.needed}
        found = largest_batch(lambda most: tried.heaviest(most).needed, room, known, data, TRIES, choice.wanted)
        rows = found or rows
    largest = tried.heaviest(rows)
    busiest = tried.busiest(rows) if largest.fits else largest
    read = tried.compiler.read_bytes(largest.job, *choice.mesh)
    return EvaluationPlan(work, choice.mesh, rows, largest, busiest, read, len(tried.by_shape))


def is_cheaper(one: EvaluationPlan, other: EvaluationPlan) -> bool:
    if one.hours is None or other.hours is None:
        return one.hours is not None
    return one.hours.estimate < other.hours.estimate


def check(mesh: tuple[int, int] | None, rows: int | None, topology: Topology) -> None:
    if mesh is None:
        return
    data, model = mesh
    if data * model != topology.devices:
        raise JaxsinkError(f"a {data} x {model} mesh does not fit the {topology.devices} devices of {topology.name}.")
    if rows is not None and rows < data:
        raise JaxsinkError(
            f"--rows {rows} is less than the {data} parts into which --mesh {data}x{model} cuts a batch."
        )
