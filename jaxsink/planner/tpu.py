"""TPU chips and slices: names, peak figures, prices; and a slice's devices, made by the compiler alone.

Peak figures are the public ones of Google's TPU documentation (bfloat16 products, HBM bandwidth) and of the book "How to
Scale Your Model" (links between chips). `hbm` is what the compiler says a program may use, which is less than what the chip
has. `clock` turns the compiler's cycles into seconds. Everything is per *device* as JAX counts them: for the compiler a v4
chip and a tpu7x chip are two devices, a v5p chip is one. Prices are list prices on demand in the cheapest region (2025):
they change, so treat them as an assumption, and --price overrides them. Published training runs of models of 8B parameters
reach 45 to 65 % of the peak (MFU); a sampler that also records and masks may do a little worse: 65 to 40 %.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from jax.experimental import topologies

from jaxsink.errors import JaxsinkError, install_hint
from jaxsink.extras import is_installed
from jaxsink.planner.topology import GIB, Chip, Topology


@dataclass(frozen=True, kw_only=True)
class TPU(Chip):
    """link: bytes/s over one link, both directions together."""

    accelerator: ClassVar[str] = "tpu"
    source: ClassVar[str] = "compiler_estimate"

    link: float
    clock: float
    rank: int  # of a slice: 2 = 2x4, 3 = 2x2x1
    hop: float = 1e-6
    shares: tuple[float, float] = (0.65, 0.40)

    def sends(self, devices: int, to_one: bool) -> float:
        return self.link if devices > 2 and not to_one else self.link / 2  # two have one link

    def describe(self, topology: Topology) -> list[Any]:
        if not has_compiler():
            raise JaxsinkError(
                f"planning needs the TPU compiler (but no TPU), which is not installed; {install_hint('tpu')}."
            )
        for variable, value in VARIABLES.items():
            os.environ.setdefault(variable, value)
        options = {"chips_per_host_bounds": (1, 1, 1)} if topology.chips == 1 else {}
        try:
            described = topologies.get_topology_desc(platform="tpu", topology_name=topology.name, **options)
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise JaxsinkError(f"{topology.name}: the TPU compiler does not offer this slice ({reason}).") from error
        return list(described.devices)


def tpu(
    name: str, flops: float, bandwidth: float, hbm: float, link: float, clock: float, price: float | None, rank: int,
    per_chip: int = 1,
) -> TPU:  # fmt: skip
    """In TFLOP/s, GB/s, GiB, GB/s and GHz."""
    return TPU(
        name=name, flops=flops * 1e12, bandwidth=bandwidth * 1e9, hbm=hbm * GIB, link=link * 1e9, clock=clock * 1e9,
        price=price, rank=rank, per_chip=per_chip,
    )  # fmt: skip


CHIPS = {
    chip.name: chip
    for chip in (
        tpu("v4", 137.5, 614, 15.25, 90, 1.05, 3.22, rank=3, per_chip=2),
        tpu("v5e", 197, 819, 15.75, 90, 1.5, 1.20, rank=2),
        tpu("v5p", 459, 2765, 95.74, 180, 1.75, 4.20, rank=3),
        tpu("v6e", 918, 1638, 31.25, 180, 1.75, 2.70, rank=2),
        tpu("tpu7x", 1153.5, 3690, 94.75, 200, 2.2, None, rank=3, per_chip=2),
    )
}
EXAMPLES = "v5e:1x1, v5e:2x2, v5e:2x4, v5e:4x4, v6e:2x4, v4:2x2x1, v5p:2x2x1, tpu7x:2x2x1"

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


def parse_slice(name: str) -> Topology:
    """`v5e:2x4`, or one sentence about what is wrong with it."""
    found = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", name)
    if found is None or found[1] not in CHIPS:
        raise JaxsinkError(f"{name!r} is not a TPU slice we know; give one such as {EXAMPLES}.")
    chip, shape = CHIPS[found[1]], tuple(int(part) for part in found[2].split("x"))
    if len(shape) != chip.rank or 0 in shape:
        form = "x".join(["2"] * (chip.rank - 1) + ["4" if chip.rank == 2 else "1"])
        raise JaxsinkError(f"{name!r}: slices of {chip.name} have {chip.rank} sides, such as {chip.name}:{form}.")
    return Topology(name, chip, math.prod(shape))


def has_compiler() -> bool:
    return is_installed("tpu")
