"""How long a step takes, from the compiled program: the compiler's cycles, and our own figures where it gives none.

On TPUs:

- Operations with `estimated_cycles`: cycles / clock.
- Collectives have none: a ring over the devices of a group, both directions, at the links' peak, and `hop` per neighbour.
  One that runs beside other work (start … done) counts with what that work does not cover.
- Pallas kernels have none: the products of their own cost estimate at RECEIVED_SHARE of the peak (ALONE_SHARE, if they do
  not add up what keys receive), the least that benchmarks/kernel.py counts from instruction bundles (v5e, S = 512), or
  their bytes at HBM's peak.
- Sorts, gathers, scatters and the like have none: their bytes at HBM's peak (a sort as often as a bitonic network passes
  over them). Operations on scalars, and copies between HBM and VMEM that the compiler runs beside other work: 0.

On GPUs the compiler gives no cycles at all. A step lies between the roofline at the best share that programs reach of it,
with the collectives beside it, and the roofline at the worst share, with the collectives after it (`within`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from jaxsink.planner.hlo import COLLECTIVES, Loop, Module, Op, group_size
from jaxsink.planner.topology import Chip
from jaxsink.planner.tpu import TPU

FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "partition-id", "replica-id", "after-all",
    "copy-start", "copy-done", "slice-start", "slice-done", "opt-barrier", "domain", "iota", "broadcast", "reshape",
    "dynamic-update-slice",  # in place
}  # fmt: skip
RECEIVED_SHARE, ALONE_SHARE = 0.28, 0.36
SCALAR = 1024  # bytes; below, an operation is not worth counting


@dataclass
class Timing:
    """Seconds of one run of a computation, on one device."""

    compiler: float = 0.0  # from the compiler's cycles
    modelled: float = 0.0  # ours: what has no cycles
    collective: float = 0.0  # ours: what of the collectives other work does not cover
    covered: float = 0.0  # collectives that run beside other work, not part of the total
    kernels: float = 0.0  # Pallas kernels; part of `modelled`
    collectives: Counter[str] = field(default_factory=Counter)  # how many of each kind
    moved: float = 0.0  # bytes that a device sends
    range: tuple[float, float] | None = None  # of the total, where it is no more than a guess between two ends

    @property
    def total(self) -> float:
        return self.compiler + self.modelled + self.collective

    def add(self, other: Timing, times: int = 1) -> None:
        for name in ("compiler", "modelled", "collective", "covered", "kernels", "moved"):
            setattr(self, name, getattr(self, name) + times * getattr(other, name))
        for kind, count in other.collectives.items():
            self.collectives[kind] += times * count

    def to_dict(self) -> dict[str, Any]:
        return {
            "compiler": self.compiler, "modelled": self.modelled, "collective": self.collective,
            "collective_beside_other_work": self.covered, "kernels": self.kernels, "total": self.total, "range": self.range,
        }  # fmt: skip

    def within(self, limit: float, shares: tuple[float, float]) -> Timing:
        """With these collectives, and the rest between two shares of the roofline; the total is the geometric middle."""
        fast = max(limit / shares[0], self.collective)
        slow = limit / shares[1] + self.collective
        middle = math.sqrt(fast * slow)
        return replace(self, modelled=middle - self.collective, range=(fast, slow))


def time_of(module: Module, computation: str, chip: Chip) -> Timing:
    """Operations run one after the other, in the order of the text."""
    total = Timing()
    started: dict[str, tuple[float, Op]] = {}
    for op in module.computations[computation].values():
        kind = collective_kind(module, op)
        if op.kind == "while":
            loop = module.loop(op)
            total.add(time_of_loop(module, loop, chip))
        elif op.kind == "conditional":
            total.add(max((time_of(module, branch, chip) for branch in op.branches), key=lambda t: t.total))
        elif op.kind == "call":
            total.add(time_of(module, op.calls("to_apply") or "", chip))
        elif op.kind.endswith("-start") and kind is not None:
            started[op.name] = (total.total, op)
        elif op.kind.endswith("-done"):
            begun = next((started[name] for name in op.operands if name in started), None)
            if begun is not None:
                _finish(total, module, computation, begun[1], chip, total.total - begun[0])
        elif kind is not None:
            _finish(total, module, computation, op, chip, 0.0)
        else:
            total.add(time_of_op(module, op, computation, chip))
    return total


def time_of_loop(module: Module, loop: Loop, chip: Chip) -> Timing:
    """All rounds of a loop; one, if it ends by its data."""
    total = Timing()
    for part in (loop.body, loop.condition):
        total.add(time_of(module, part, chip), loop.trips or 1)
    return total


def _finish(total: Timing, module: Module, computation: str, op: Op, chip: Chip, beside: float) -> None:
    kind = collective_kind(module, op)
    assert kind is not None
    count = group_size(_inner(module, op))
    size = module.operand_bytes(op, computation) * (count if kind == "all-gather" else 1)
    seconds, moved = ring(kind, size, count, chip)
    total.collective += max(0.0, seconds - beside)
    total.covered += min(seconds, beside)
    total.collectives[kind] += 1
    total.moved += moved


def ring(kind: str, size: float, count: int, chip: Chip) -> tuple[float, float]:
    """(seconds, bytes sent by a device) for the whole array of `size` bytes over a ring of `count` devices."""
    if count < 2:
        return 0.0, 0.0
    rounds = {"all-reduce": 2.0}.get(kind, 1.0)
    moved = size if kind.startswith("collective") else rounds * size * (count - 1) / count
    to_one = kind.startswith("collective")
    hops = 1 if to_one else rounds * (count - 1)
    return moved / chip.sends(count, to_one) + hops * chip.hop, moved


def _inner(module: Module, op: Op) -> Op:
    """The collective itself, if it is wrapped to run beside other work."""
    wrapped = op.calls("calls")
    if wrapped is None:
        return op
    ops = module.computations.get(wrapped, {}).values()
    return next((inner for inner in ops if inner.kind.startswith(COLLECTIVES)), op)


def collective_kind(module: Module, op: Op) -> str | None:
    """ "all-reduce" of an all-reduce, its start, or what wraps it.

    A fusion of an all-reduce and the slice that a device keeps of it is the compiler's way to write a reduce-scatter.
    """
    if op.kind.endswith("-done") or (op.kind == "fusion" and op.cycles is not None):
        return None
    inner = _inner(module, op) if op.kind in ("async-start", "fusion") else op
    if op.kind == "fusion" and inner.kind == "all-reduce":
        return "reduce-scatter"
    return next((kind for kind in COLLECTIVES if inner.kind.startswith(kind)), None)


def time_of_op(module: Module, op: Op, computation: str, chip: Chip) -> Timing:
    if not isinstance(chip, TPU):
        return Timing()
    if op.cycles is not None:
        return Timing(compiler=op.cycles / chip.clock)
    if op.kind == "custom-call":
        seconds = kernel_seconds(op, chip)
        return Timing(modelled=seconds, kernels=seconds)
    if op.kind in FREE or op.bytes <= SCALAR:
        return Timing()
    size = op.bytes + module.operand_bytes(op, computation)
    if "gather" in op.name or "scatter" in op.name:
        size = 2 * op.bytes  # rows of a table, or a result that is written in place
    if op.kind == "sort":
        levels = math.ceil(math.log2(max(2, op.longest)))
        size *= levels * (levels + 1) / 2
    return Timing(modelled=size / chip.bandwidth)


def kernel_seconds(op: Op, chip: Chip) -> float:
    """From a Pallas kernel's own estimate; 0 for other custom calls, such as allocations."""
    if "tpu_custom_call" not in op.text:
        return 0.0
    flops, moved = (_estimate(op, name) for name in ("flops", "bytes_accessed"))
    share = ALONE_SHARE if "attention_alone" in op.name else RECEIVED_SHARE
    return max(flops / (share * chip.flops), moved / chip.bandwidth)


def _estimate(op: Op, name: str) -> float:
    found = re.search(rf'\\?"{name}\\?":\s*\\?"?(\d+)', op.text)
    return float(found[1]) if found else 0.0
