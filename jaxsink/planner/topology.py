"""TPU chips and slices: names, peak figures, prices; and a slice's devices, made by the compiler alone.

Peak figures are the public ones of Google's TPU documentation (bfloat16 products, HBM bandwidth) and of the book "How to
Scale Your Model" (links between chips). `hbm` is what the compiler says a program may use, which is less than what the chip
has. `clock` turns the compiler's cycles into seconds. Everything is per *device* as JAX counts them: for the compiler a v4
chip and a tpu7x chip are two devices, a v5p chip is one. Prices are list prices on demand in the cheapest region (2025):
they change, so treat them as an assumption, and --price overrides them.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import Any

from jaxsink.errors import JaxsinkError, install_hint

GIB = 1 << 30


@dataclass(frozen=True)
class Chip:
    """One generation. flops, bandwidth, hbm: of a device. link: bytes/s over one link, both directions together."""

    name: str
    flops: float
    bandwidth: float
    hbm: float
    link: float
    clock: float
    per_chip: int  # devices
    price: float | None  # dollars per chip and hour
    rank: int  # of a slice: 2 = 2x4, 3 = 2x2x1


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", 137.5e12, 614e9, 15.25 * GIB, 90e9, 1.05e9, 2, 3.22, 3),
        Chip("v5e", 197e12, 819e9, 15.75 * GIB, 90e9, 1.5e9, 1, 1.20, 2),
        Chip("v5p", 459e12, 2765e9, 95.74 * GIB, 180e9, 1.75e9, 1, 4.20, 3),
        Chip("v6e", 918e12, 1638e9, 31.25 * GIB, 180e9, 1.75e9, 1, 2.70, 2),
        Chip("tpu7x", 1153.5e12, 3690e9, 94.75 * GIB, 200e9, 2.2e9, 2, None, 3),
    )
}
EXAMPLES = "v5e:1x1, v5e:2x2, v5e:2x4, v5e:4x4, v6e:2x4, v4:2x2x1, v5p:2x2x1, tpu7x:2x2x1"
HOP = 1e-6  # seconds that a message takes to the next chip, whatever its size

# The compiler asks for these before it describes a slice: they keep it from looking for a real one, and from refusing to
# start beside another process that uses it.
VARIABLES = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}


@dataclass(frozen=True)
class Topology:
    """A slice: v5e:2x4 has eight chips of the kind v5e."""

    name: str
    chip: Chip
    shape: tuple[int, ...]

    @property
    def chips(self) -> int:
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        return self.chips * self.chip.per_chip


def parse_topology(name: str) -> Topology:
    """`v5e:2x4`, or one sentence about what is wrong with it."""
    found = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", name)
    if found is None or found[1] not in CHIPS:
        raise JaxsinkError(f"{name!r} is not a TPU slice we know; give one such as {EXAMPLES}.")
    chip, shape = CHIPS[found[1]], tuple(int(part) for part in found[2].split("x"))
    if len(shape) != chip.rank or 0 in shape:
        form = "x".join(["2"] * (chip.rank - 1) + ["4" if chip.rank == 2 else "1"])
        raise JaxsinkError(f"{name!r}: slices of {chip.name} have {chip.rank} sides, such as {chip.name}:{form}.")
    return Topology(name, chip, shape)


def has_compiler() -> bool:
    from importlib.util import find_spec

    return find_spec("libtpu") is not None


def describe_devices(topology: Topology) -> list[Any]:
    """Devices that exist for the compiler only. Sets the environment of this process, so call it where one plans."""
    if not has_compiler():
        raise JaxsinkError(
            f"planning needs the TPU compiler (but no TPU), which is not installed; {install_hint('tpu')}."
        )
    for variable, value in VARIABLES.items():
        os.environ.setdefault(variable, value)
    from jax.experimental import topologies

    options = {"chips_per_host_bounds": (1, 1, 1)} if topology.chips == 1 else {}
    try:
        described = topologies.get_topology_desc(platform="tpu", topology_name=topology.name, **options)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise JaxsinkError(f"{topology.name}: the TPU compiler does not offer this slice ({reason}).") from error
    return list(described.devices)
