"""The least time a step can take on a chip: its products at peak rate, or its bytes at peak bandwidth, whichever is more.

Compute: the products of `Job.flops`, shared evenly by all devices. Memory: every device reads its part of the weights once
(not the embedding table, of which a step looks up single rows) and its share of the keys and values. What a layout adds on
top (collectives, copies, activations that leave VMEM) is no part of the limit: it lowers the share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxsink.planner.job import Job
from jaxsink.planner.topology import Topology


@dataclass(frozen=True)
class Roofline:
    """Seconds of one step."""

    compute: float
    memory: float

    @property
    def limit(self) -> float:
        return max(self.compute, self.memory)

    @property
    def bound(self) -> str:
        return "compute" if self.compute >= self.memory else "memory"

    def shares(self, step: float, collective: float) -> dict[str, float]:
        """Of an estimated step: how much each limit alone would take, and the collectives that nothing covers."""
        return {
            "roofline": self.limit / step, "compute": self.compute / step, "memory": self.memory / step,
            "collective": collective / step,
        }  # fmt: skip


def roofline(job: Job, topology: Topology, read: float) -> Roofline:
    """`read`: bytes of weights that each device reads in a step."""
    chip, devices = topology.chip, topology.devices
    memory = (job.passes * read + job.cache_bytes / devices) / chip.bandwidth
    return Roofline(job.flops / devices / chip.flops, memory)


def guess_step(job: Job, topology: Topology, read: float, data: int, model: int) -> float:
    """A step's time before anything is compiled, to choose a mesh by: the roofline and two all-reduces per layer."""
    from jaxsink.planner.timing import ring

    rows = -(-job.batch // data)
    activations = rows * job.queries * job.config.width * 2
    seconds, _ = ring("all-reduce", activations, model, topology.chip)
    idle = job.batch / (rows * data)  # a batch that does not divide leaves devices with copies
    return roofline(job, topology, read).limit / idle + 2 * job.passes * job.config.layers * seconds


def read_bytes(weights: Any) -> float:
    """Bytes of the named weights [(name, shape on a device, size of a number)] that a step reads."""
    tied = not any(name.startswith("head") for name, _, _ in weights)
    total = 0.0
    for name, shape, size in weights:
        if name == "embedding" and not tied:
            continue
        count = 1
        for side in shape:
            count *= side
        total += count * size
    return total
