"""The mesh and the rows that should be cheapest for an evaluation, without compiling anything.

A mesh that cuts the weights less has fewer collectives, and room for fewer rows. For each mesh the rows are the fewest that
come close to the best time it could reach: a batch that is lost to a preemption is then a small one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxsink.evals.layout import Bucket
from jaxsink.parallel.mesh import make_mesh
from jaxsink.planner.job import Job
from jaxsink.planner.memory import USABLE, Weights, estimated_bytes, total_bytes, weights_on
from jaxsink.planner.roofline import read_bytes, roofline
from jaxsink.planner.timing import ring
from jaxsink.planner.topology import Topology
from jaxsink.planner.workload import Workload

ROWS_PER_PART = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)  # that are tried
CLOSE = 1.03  # to the best time
PREFILL_SHARE = 0.5  # of the peak, in the pass over a prompt


@dataclass(frozen=True)
class Choice:
    """rows: the most a batch may have. wanted: what would be chosen if memory did not matter. bytes: per device, and
    seconds: of the whole evaluation; both by formula."""

    mesh: tuple[int, int]
    rows: int
    wanted: int
    bytes: float
    seconds: float
    fits: bool


def choices(
    work: Workload,
    topology: Topology,
    devices: Sequence[Any],
    mesh: tuple[int, int] | None = None,
    rows: int | None = None,
) -> list[Choice]:
    """One for each mesh, the cheapest first, those that do not fit last. mesh, rows: what is decided already."""
    count = len(devices)
    shapes = [(n, count // n) for n in range(1, count + 1) if count % n == 0] if mesh is None else [mesh]
    if rows is not None:
        shapes = [shape for shape in shapes if shape[0] <= rows] or shapes[:1]
    found = [choose_rows(work, topology, weights_of(work, devices, shape), shape, rows) for shape in shapes]
    return sorted(found, key=lambda choice: (not choice.fits, choice.seconds if choice.fits else choice.bytes))


def weights_of(work: Workload, devices: Sequence[Any], shape: tuple[int, int]) -> Weights:
    return weights_on(work.job(work.buckets(shape[0], shape[0])[0]), make_mesh(*shape, devices))


def choose_rows(
    work: Workload, topology: Topology, weights: Weights, shape: tuple[int, int], rows: int | None
) -> Choice:
    tried = [rows] if rows is not None else [shape[0] * each for each in ROWS_PER_PART]
    found = []
    for most in tried:
        buckets = work.buckets(most, shape[0])
        needed = max(estimated_bytes(work.job(bucket), shape, total_bytes(weights)) for bucket in buckets)
        found.append((most, needed, guess_seconds(work, buckets, topology, weights, shape)))
    wanted, needed, seconds = fewest_close(found)
    fitting = [option for option in found if option[1] <= USABLE * topology.chip.hbm]
    if not fitting:
        most, needed, seconds = found[0]
        return Choice(shape, most, wanted, needed, seconds, False)
    most, needed, seconds = fewest_close(fitting)
    return Choice(shape, most, max(most, wanted), needed, seconds, True)


def fewest_close(found: list[tuple[int, float, float]]) -> tuple[int, float, float]:
    best = min(seconds for _, _, seconds in found)
    return next(option for option in found if option[2] <= CLOSE * best)


def guess_seconds(
    work: Workload, buckets: Sequence[Bucket], topology: Topology, weights: Weights, shape: tuple[int, int]
) -> float:
    """Of the whole evaluation: products and reads one after the other, and two all-reduces per layer."""
    read, total = read_bytes(weights), 0.0
    for bucket in buckets:
        job = work.job(bucket)
        limit = roofline(job, topology, read)
        tokens = bucket.rows / shape[0] * job.queries
        reduce, _ = ring("all-reduce", tokens * job.config.width * 2, shape[1], topology.chip)
        step = limit.compute + limit.memory + 2 * job.passes * job.config.layers * reduce
        total += bucket.batches * (job.steps * step + prefill_seconds(job, topology))
    return total


def prefill_seconds(job: Job, topology: Topology) -> float:
    return job.prefill_flops / (PREFILL_SHARE * topology.devices * topology.chip.flops)
