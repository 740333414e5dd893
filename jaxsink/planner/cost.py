"""Hours and dollars of an evaluation, as a range: the compiler's estimate, and what published runs reach of the peak.

The compiler's estimate knows every operation of the program, and nothing of what hardware does to it. Published training
runs of models of this size reach 45 to 65 % of the peak (MFU); a sampler that also records and masks may do a little
worse, so the range goes from 65 down to 40 %. Where reading weights is the limit (autoregressive models), it is of the peak
bandwidth instead. Answers that end early are counted in full; loading, compiling and running programs are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jaxsink.planner.topology import Topology

MFU = (0.65, 0.40)


@dataclass(frozen=True)
class Hours:
    """compiler: by its estimate. fast, slow: at 65 and 40 % of the roofline."""

    compiler: float
    fast: float
    slow: float

    @classmethod
    def of(cls, at_limit: float, share: float, beside: float = 0.0) -> Hours:
        """From seconds at the roofline, the share of it that the compiler sees, and what comes on top in all cases."""
        return cls(*((at_limit / part + beside) / 3600 for part in (share, *MFU)))

    @classmethod
    def sum(cls, parts: Iterable[Hours]) -> Hours:
        parts = list(parts)
        return cls(*(sum(getattr(part, name) for part in parts) for name in ("compiler", "fast", "slow")))

    def to_dict(self) -> dict[str, float]:
        return {"compiler_estimate": self.compiler, "at_65_percent_mfu": self.fast, "at_40_percent_mfu": self.slow}


def price_of(topology: Topology, price: float | None) -> float | None:
    """Dollars per hour of the whole slice; `price`: per chip and hour, None takes the list price."""
    per_chip = topology.chip.price if price is None else price
    return None if per_chip is None else per_chip * topology.chips
