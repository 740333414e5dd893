"""What the planner needs to know of accelerators, whichever they are: one chip, and how many of them work together.

jaxsink/planner/tpu.py and jaxsink/planner/gpu.py have the chips, read their names, and describe devices to their compiler.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Chip(ABC):
    """One generation of accelerators.

    flops, bandwidth: peak rates of a device, bfloat16 products and bytes of its memory per second. hbm: bytes of memory
    that a program may use. price: dollars per chip and hour. hop: seconds that a message takes to another chip, whatever
    its size. shares: of the peak that a program may reach, at best and at worst.
    """

    accelerator: ClassVar[str]  # "tpu" or "gpu"
    source: ClassVar[str]  # of estimated times
    compiler_options: ClassVar[dict[str, str | bool]] = {}

    name: str
    flops: float
    bandwidth: float
    hbm: float
    hop: float
    price: float | None
    per_chip: int = 1  # devices, as JAX counts them
    shares: tuple[float, float]

    @abstractmethod
    def sends(self, devices: int, to_one: bool) -> float:
        """Bytes per second that a device can send in a ring of so many, or to one of them."""

    @abstractmethod
    def describe(self, topology: Topology) -> list[Any]:
        """Devices that exist for the compiler only. Sets the environment of this process, so call it where one plans."""


@dataclass(frozen=True)
class Topology:
    """Chips that work together: v5e:2x4 has eight of the kind v5e, h100:8 eight of the kind h100."""

    name: str
    chip: Chip
    chips: int

    @property
    def devices(self) -> int:
        return self.chips * self.chip.per_chip
