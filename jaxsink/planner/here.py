"""The rows and the mesh of an evaluation on the devices that are here, by the formula: nothing is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.sharding import Mesh

from jaxsink.evals.layout import ROWS, batch_rows
from jaxsink.parallel.mesh import DATA, MODEL, make_mesh
from jaxsink.planner import gpu, tpu
from jaxsink.planner.choose import Choice, choices
from jaxsink.planner.topology import GIB, Chip, Topology
from jaxsink.planner.workload import Workload

# What JAX calls a chip, and whose figures it has; of the two names that fit, the longer one counts.
KINDS = {"TPU v4": "v4", "TPU v5": "v5p", "TPU v5 lite": "v5e", "TPU v6 lite": "v6e", "TPU7x": "tpu7x"}
ANY_GPU = gpu.CHIPS["a100-80g"]  # for those we do not know: only ratios matter here


@dataclass(frozen=True)
class Place:
    """rows: the most of a batch. mesh, or devices for pmap, or neither on one device. choice: None on a CPU."""

    rows: int
    mesh: Mesh | None
    devices: Sequence[Any] | None
    choice: Choice | None
    topology: Topology | None

    def describe(self, work: Workload) -> str:
        """One line for the user: what is used, and whether it should fit."""
        parts = 1 if self.mesh is None else self.mesh.shape[DATA]
        parts = parts if self.devices is None else len(self.devices[: self.rows])
        largest = max(work.buckets(self.rows, parts), key=lambda bucket: bucket.rows * bucket.length)
        where = "" if self.mesh is None else f" on a mesh of {self.mesh.shape[DATA]} x {self.mesh.shape[MODEL]}"
        where = where if self.devices is None else f" on {len(self.devices)} devices"
        line = f"at most {self.rows} rows a batch{where}; the largest is {largest.rows} x ({largest.prompt} + "
        line += f"{largest.response}) tokens"
        if self.choice is None or self.topology is None:
            return line
        line += f", about {self.choice.bytes / GIB:.1f} of {self.topology.chip.hbm / GIB:.1f} GiB per device"
        return line if self.choice.fits else f"{line}: this may not fit; try fewer --rows, another --mesh, --dtype int8"


def find_place(
    work: Workload, found: Sequence[Any], rows: int | None, mesh: Mesh | None, devices: Sequence[Any] | None
) -> Place:
    """What was decided stays; the rest is the cheapest that fits. found: the devices that may be used."""
    topology = topology_of(found)
    if topology is None:  # a CPU, whose memory JAX does not tell
        parts = 1 if mesh is None else mesh.shape[DATA]
        batch_rows(1, rows or max(ROWS, parts), parts)
        return Place(rows or max(ROWS, parts), mesh, devices, None, None)
    shape = None
    if mesh is not None:
        shape = (mesh.shape[DATA], mesh.shape[MODEL])
    elif devices is not None:
        devices = devices[:rows]
        shape, found = (len(devices), 1), devices
        topology = replace(topology, chips=len(devices))
    choice = choices(work, topology, found, shape, rows)[0]
    if mesh is None and devices is None and len(found) > 1:
        mesh = make_mesh(*choice.mesh, found)
    return Place(choice.rows, mesh, devices, choice, topology)


def topology_of(devices: Sequence[Any]) -> Topology | None:
    """The devices as a slice, with the memory that they say they have; None if they do not say."""
    stats = devices[0].memory_stats()
    if not stats or "bytes_limit" not in stats:
        return None
    kind = devices[0].device_kind
    return Topology(kind, replace(chip_of(kind), hbm=float(stats["bytes_limit"]), per_chip=1), len(devices))


def chip_of(kind: str) -> Chip:
    """The chip that JAX calls so."""
    known: dict[str, Chip] = {name: tpu.CHIPS[chip] for name, chip in KINDS.items()}
    known |= {chip.device: chip for chip in gpu.CHIPS.values()}
    names = sorted((name for name in known if kind.startswith(name)), key=len)
    return known[names[-1]] if names else ANY_GPU
