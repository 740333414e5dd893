"""What is compared: the unmasked model, and sinks or as many other keys hidden.

conditions((0, 1, 5), ("top", "random"))      # K = 0; K = 1, top; K = 1, random; K = 5, top; K = 5, random
str(hide(5, "random"))                        # "K = 5, random"
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, cast

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.errors import JaxsinkError
from jaxsink.sinks.mask import SELECTIONS as RANKED
from jaxsink.sinks.mask import MaskSinks
from jaxsink.sinks.turns import Turns

FIRST = "first"  # the first tokens, whatever they receive
SELECTIONS = (*RANKED, FIRST)
OPPOSITE = {"top": "bottom", "random": "random", "bottom": "top"}  # hiding all but the lowest is hiding the top ones
RankOn = Literal["masked", "clean"]


@dataclass(frozen=True)
class Condition:
    """A policy under which questions are asked; None hides nothing. Its text says all that is unusual about it."""

    policy: MaskSinks | None = None

    @property
    def k(self) -> int:
        """Keys hidden per head."""
        return 0 if self.policy is None else self.policy.k

    @property
    def select(self) -> str | None:
        """Which keys are hidden; None hides none."""
        if self.policy is None:
            return None
        if self.policy.positions == tuple(range(self.policy.k)) and not self.policy.keep:
            return FIRST
        return OPPOSITE[self.policy.select] if self.policy.keep else self.policy.select

    def __str__(self) -> str:
        if self.policy is None:
            return "K = 0"
        count = f"all but {self.k}" if self.policy.keep else f"K = {self.k}"
        said = {"k", "select", "keep", *(("positions",) if self.select == FIRST else ())}
        unusual = [field.name for field in fields(MaskSinks) if getattr(self.policy, field.name) != field.default]
        return ", ".join([count, str(self.select), *(self._text(name) for name in unusual if name not in said)])

    def _text(self, name: str) -> str:
        value = getattr(self.policy, name)
        if name == "rank_on":
            return f"ranked on {value} maps"
        if name == "layers":
            return f"layer{'s' * (len(value) > 1)} {', '.join(map(str, value))}"
        return f"{name} {value}"

    def to_dict(self) -> JsonObject:
        """For manifests and results, which are read without the policy."""
        return {"k": self.k, "select": self.select, "policy": repr(self.policy)}


PLAIN = Condition()


class Named(NamedTuple):
    """A condition as results on the disk name it."""

    name: str
    k: int
    select: str | None

    @classmethod
    def all_of(cls, manifest: JsonObject) -> list[Named]:
        """The conditions of an evaluation, by its manifest."""
        return [cls(name, about["k"], about["select"]) for name, about in manifest["conditions"].items()]


def hide(k: int, select: str = "top", rank_on: RankOn = "masked") -> Condition:
    """K keys per head: the top sinks, one of their controls, or the first tokens."""
    if select not in SELECTIONS:
        raise JaxsinkError(f"keys cannot be selected by {select!r}; choose from {', '.join(SELECTIONS)}.")
    if select == FIRST:
        return Condition(MaskSinks(k, positions=tuple(range(k)), rank_on=rank_on))
    return Condition(MaskSinks(k, select=cast(Literal["top", "random", "bottom"], select), rank_on=rank_on))


def conditions(counts: Iterable[int], selections: Iterable[str], rank_on: RankOn = "masked") -> tuple[Condition, ...]:
    """Every K with every selection, in order of K; K = 0 hides nothing, so it occurs once."""
    wanted, selected = sorted(set(counts)), list(dict.fromkeys(selections))
    if not wanted or wanted[0] < 0 or (wanted[-1] > 0 and not selected):
        raise JaxsinkError("name at least one number K of keys to hide, none of them negative, and how to select them.")
    hidden = tuple(hide(k, select, rank_on) for k in wanted if k for select in selected)
    return (PLAIN, *hidden) if wanted[0] == 0 else hidden


def programs(wanted: Sequence[Condition]) -> list[tuple[Condition, ...]]:
    """Conditions that can take turns in one program: those that rank on clean maps take two passes a step, others one."""
    clean = tuple(one for one in wanted if one.policy is not None and one.policy.rank_on == "clean")
    others = tuple(one for one in wanted if one not in clean)
    return [tuple(wanted)] if not clean or set(others) <= {PLAIN} else [others, clean]


class Comparison(NamedTuple):
    """Two conditions to test on the same questions. kind: what the second one is."""

    condition: str
    against: str
    kind: Literal["plain", "random"]


def comparisons(known: Sequence[Named]) -> list[Comparison]:
    """Each condition against K = 0, and sinks against as many random keys."""
    plain = next((one.name for one in known if one.k == 0), None)
    random = {one.k: one.name for one in known if one.select == "random"}
    sinks = [one for one in known if one.select in ("top", FIRST) and one.k in random]
    return [Comparison(one.name, plain, "plain") for one in known if plain is not None and one.k] + [
        Comparison(one.name, random[one.k], "random") for one in sinks
    ]


def intervention(wanted: Sequence[Condition]) -> Turns | None:
    """One `intervene` for a batch whose sequences follow the conditions in turns; None if there is nothing to drop."""
    policies = tuple(condition.policy for condition in wanted)
    return None if policies == (None,) else Turns(policies)
