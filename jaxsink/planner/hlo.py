"""Reading a compiled program's text: operations with the compiler's estimated cycles, loops, and collectives.

    module = parse_module(compiled.as_text())
    step = module.step_loop()            # the loop over sampler steps
    module.computations[step.body]       # its operations, in the order in which they run

A loop over layers or blocks says in its condition how often it runs. The loop over sampler steps ends by its data, which
tells it apart.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from jaxsink.errors import JaxsinkError

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
BYTES = {
    "pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "f8e5m2": 1, "f8e4m3fn": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2,
    "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8,
}  # fmt: skip
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_OP = re.compile(r"^(?:ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"\b([a-z]+[0-9]*\w*)\[([0-9,]*)\]")


@dataclass(frozen=True)
class Op:
    """One line. bytes: of its result; elements: of its largest result."""

    name: str
    kind: str  # such as "fusion" or "all-reduce"
    bytes: float
    elements: int
    longest: int  # side of its result
    operands: tuple[str, ...]
    text: str  # its attributes

    def attribute(self, pattern: str) -> str | None:
        found = re.search(pattern, self.text)
        return None if found is None else found[1]

    @property
    def cycles(self) -> int | None:
        found = self.attribute(r'"estimated_cycles":"(\d+)"')
        return None if found is None else int(found)

    def calls(self, what: str) -> str | None:
        return self.attribute(rf"\b{what}=%?([\w.\-]+)")

    @property
    def branches(self) -> list[str]:
        listed = self.attribute(r"branch_computations=\{([^}]*)\}")
        if listed is not None:
            return [name.strip().lstrip("%") for name in listed.split(",")]
        return [name for which in ("true", "false") if (name := self.calls(f"{which}_computation")) is not None]


@dataclass(frozen=True)
class Loop:
    body: str
    condition: str
    trips: int | None  # None = it ends by its data


@dataclass
class Module:
    entry: str = ""
    computations: dict[str, dict[str, Op]] = field(default_factory=dict)

    def loop(self, op: Op) -> Loop:
        body, condition = op.calls("body"), op.calls("condition")
        assert body is not None and condition is not None, op.name
        return Loop(body, condition, self._trips(op, condition))

    def _trips(self, op: Op, condition: str) -> int | None:
        """As often as the counter stays below a constant; our loops count from 0 by 1."""
        known = op.attribute(r'"known_trip_count":\{"n":"(\d+)"')
        if known is not None:
            return int(known)
        ops = self.computations[condition]
        last = list(ops.values())[-1]
        if last.kind != "compare" or "direction=LT" not in last.text:
            return None
        limits = [ops[name].attribute(r"constant\((\d+)\)") for name in last.operands if name in ops]
        return next((int(limit) for limit in limits if limit is not None), None)

    def step_loop(self) -> Loop:
        """The loop over sampler steps."""
        loops = [self.loop(op) for op in self.computations[self.entry].values() if op.kind == "while"]
        endless = [loop for loop in loops if loop.trips is None]
        if len(endless) != 1:
            raise JaxsinkError(f"the compiled program has {len(endless)} loops over steps where one was expected.")
        return endless[0]

    def operand_bytes(self, op: Op, computation: str) -> float:
        ops = self.computations[computation]
        return sum(ops[name].bytes for name in op.operands if name in ops)


def parse_module(text: str) -> Module:
    module = Module()
    ops: dict[str, Op] = {}
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header is not None:
            ops = module.computations.setdefault(header[2], {})
            module.entry = header[2] if header[1] else module.entry
            continue
        found = _OP.match(line.strip())
        if found is not None:
            op = _parse_op(found[1], found[2])
            if op is not None:
                ops[op.name] = op
    if not module.entry:
        raise JaxsinkError("the compiler's text has no entry computation; this version of it is not known.")
    return module


def _parse_op(name: str, text: str) -> Op | None:
    result, rest = _split_type(text)
    found = re.match(r"([a-z][a-z0-9\-]*)\(", rest)
    if found is None:
        return None
    inside = rest[found.end() : _closing(rest, found.end() - 1)]
    operands = tuple(re.findall(r"%([\w.\-]+)", inside))
    arrays = [(BYTES.get(kind, 4), [int(n) for n in dims.split(",") if n]) for kind, dims in _ARRAY.findall(result)]
    sizes = [math.prod(dims) for _, dims in arrays]
    longest = max((max(dims, default=1) for _, dims in arrays), default=1)
    total = sum(size * count for (size, _), count in zip(arrays, sizes, strict=True))
    return Op(name, found[1], total, max(sizes, default=0), longest, operands, rest)


def _split_type(text: str) -> tuple[str, str]:
    """ "(f32[8]{0}, s32[]) sort(...)" -> the type and the rest."""
    end = _closing(text, 0) + 1 if text.startswith("(") else text.find(" ")
    return text[:end], text[end:].lstrip()


def _closing(text: str, start: int) -> int:
    """Index of the bracket that closes the one at `start`."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index
    return len(text)


def group_size(op: Op) -> int:
    """How many devices take part in a collective together."""
    named = re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", op.text)
    if named is not None:
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", named[1]))
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", named[2])  # 'axis_2':(1)4 is a part of four
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    counted = op.attribute(r"replica_groups=\[\d+,(\d+)\]")
    if counted is not None:
        return int(counted)
    listed = op.attribute(r"replica_groups=\{\{([^}]*)\}")
    return 2 if listed is None else listed.count(",") + 1  # a permutation names pairs
