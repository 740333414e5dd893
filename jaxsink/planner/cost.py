"""Hours and dollars as a range: an estimate, and what programs like it reach of the peak (`Chip.shares`).

On TPUs the estimate is the compiler's, which knows every operation of the program, and nothing of what hardware does to it;
on GPUs it is the middle of the range. Where reading weights is the limit (autoregressive models), the shares are of the peak
bandwidth. Answers that end early are counted in full; loading, compiling and running programs are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxsink.planner.timing import Timing
from jaxsink.planner.topology import Chip, Topology


@dataclass(frozen=True)
class Hours:
    """fast, slow: at the shares of the roofline. source: where the estimate is from."""

    estimate: float
    fast: float
    slow: float
    shares: tuple[float, float]
    source: str

    @classmethod
    def of(cls, at_limit: float, share: float, chip: Chip, beside: float = 0.0) -> Hours:
        """From seconds at the roofline, the share of it that is estimated, and what comes on top in all cases."""
        estimate, fast, slow = ((at_limit / part + beside) / 3600 for part in (share, *chip.shares))
        return cls(estimate, fast, slow, chip.shares, chip.source)

    @classmethod
    def of_steps(cls, steps: int, timing: Timing, limit: float, chip: Chip, beside: float = 0.0) -> Hours:
        """From what one step takes and its seconds at the roofline; where the step is a range, from its two ends."""
        fast, slow = timing.range or (limit / share for share in chip.shares)
        estimate, fast, slow = ((steps * step + beside) / 3600 for step in (timing.total, fast, slow))
        return cls(estimate, fast, slow, chip.shares, chip.source)

    @classmethod
    def sum(cls, parts: Sequence[Hours]) -> Hours:
        total = {name: sum(getattr(part, name) for part in parts) for name in ("estimate", "fast", "slow")}
        return replace(parts[0], **total)

    def to_dict(self) -> dict[str, float]:
        best, worst = (f"at_{share * 100:.0f}_percent_mfu" for share in self.shares)
        return {self.source: self.estimate, best: self.fast, worst: self.slow}


def price_of(topology: Topology, price: float | None) -> float | None:
    """Dollars per hour of the whole slice; `price`: per chip and hour, None takes the list price."""
    per_chip = topology.chip.price if price is None else price
    return None if per_chip is None else per_chip * topology.chips
