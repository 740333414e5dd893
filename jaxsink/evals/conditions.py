"""What is compared: the unmasked model, and sinks or other keys hidden.

conditions((0, 1, 5), ("top", "random"))      # K = 0; K = 1, top; K = 1, random; K = 5, top; K = 5, random
conditions((0, 0.03), ("top", "partner"))     # K as a share of the tokens: K = 0; K = 3%, top; K = 3%, partner
str(hide(5, "random"))                        # "K = 5, random"
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, cast

import numpy as np

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling import interventions
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.interventions import ranks_on_clean
from jaxsink.sinks.choices import EVERY_SELECTION, RankOn, Rows, RuleName, Select
from jaxsink.sinks.mask import MaskSinks
from jaxsink.sinks.turns import Turns, protocol

SELECTIONS = EVERY_SELECTION
SINKS = ("top", "first", "top_not_first")  # selections that are held against random keys …
CONTROLS = ("random", "partner", "mass")  # … of these kinds
OPPOSITE = {"top": "bottom", "random": "random", "bottom": "top"}  # hiding all but the lowest is hiding the top ones

Amount = int | float | None
"""K: keys per head; below 1 a share of the tokens; None: as many as pass the rule."""


@dataclass(frozen=True)
class Condition:
    """A policy under which questions are asked; None hides nothing. Its text says all that is unusual about it."""

    policy: MaskSinks | None = None

    @property
    def k(self) -> Amount:
        """Keys hidden per head."""
        if self.policy is None:
            return 0
        if self.policy.positions is not None:
            return len(self.policy.positions)
        if self.policy.rule == "threshold":
            return None
        return self.policy.k if self.policy.share is None else self.policy.share

    @property
    def select(self) -> str | None:
        """Which keys are hidden; None hides none."""
        if self.policy is None:
            return None
        select = self.policy.select
        return OPPOSITE.get(select, f"not {select}") if self.policy.keep else select

    def __str__(self) -> str:
        if self.policy is None:
            return "K = 0"
        said = {"k", "share", "select", "keep", *(("rule",) if self.k is None else ())}
        unusual = [field.name for field in fields(MaskSinks) if getattr(self.policy, field.name) != field.default]
        return ", ".join([self._count, str(self.select), *(self._text(name) for name in unusual if name not in said)])

    @property
    def _count(self) -> str:
        assert self.policy is not None
        if self.k is None:
            return "all but sinks" if self.policy.keep else "all sinks"
        return f"all but {amount_text(self.k)}" if self.policy.keep else f"K = {amount_text(self.k)}"

    def _text(self, name: str) -> str:
        value = getattr(self.policy, name)
        if name == "rank_on":
            return f"ranked on {value} maps"
        if name == "layers":
            return f"layer{'s' * (len(value) > 1)} {', '.join(map(str, value))}"
        return f"{value} rows" if name == "rows" else f"{name} {value}"

    def to_dict(self) -> JsonObject:
        """For manifests and results, which are read without the policy."""
        return {"k": self.k, "select": self.select, "policy": repr(self.policy)}


PLAIN = Condition()


def amount_text(k: Amount) -> str:
    """As tables and the command line have it: "5", "3%"; "all" sinks."""
    if k is None:
        return "all"
    return f"{100 * k:g}%" if 0 < k < 1 else str(int(k))


class Named(NamedTuple):
    """A condition as results on the disk name it."""

    name: str
    k: Amount
    select: str | None

    @classmethod
    def all_of(cls, manifest: JsonObject) -> list[Named]:
        """The conditions of an evaluation, by its manifest."""
        return [cls(name, about["k"], about["select"]) for name, about in manifest["conditions"].items()]

    @property
    def settings(self) -> tuple[str, ...]:
        """What its name says besides the selection: conditions that share it differ in their keys alone."""
        return tuple(part for part in self.name.split(", ") if part != self.select)


def hide(
    k: Amount,
    select: str = "top",
    rank_on: RankOn = "masked",
    *,
    rule: RuleName | None = None,
    rows: Rows | None = None,
    eps: float = 3.0,
) -> Condition:
    """K keys per head: sinks, one of their controls, or the first tokens. eps: of a rule that has one."""
    if select not in SELECTIONS:
        raise JaxsinkError(f"keys cannot be selected by {select!r}; choose from {', '.join(SELECTIONS)}.")
    if k is not None and k != int(k) and not 0 < k < 1:
        raise JaxsinkError(f"K is a whole number of keys, or a share of the tokens below 1, not {k}.")
    chosen = cast(Select, select)
    above = eps if rule in ("threshold", "top_k_above") else 3.0
    if rule == "threshold" or k is None:
        return Condition(MaskSinks(select=chosen, rule="threshold", rank_on=rank_on, eps=above, rows=rows))
    if 0 < k < 1:
        return Condition(MaskSinks(select=chosen, rule=rule, rank_on=rank_on, eps=above, share=k, rows=rows))
    return Condition(MaskSinks(int(k), chosen, rule, rank_on, above, rows=rows))


def conditions(
    counts: Iterable[int | float],
    selections: Iterable[str],
    rank_on: RankOn = "masked",
    rule: RuleName | None = None,
    rows: Rows | None = None,
    eps: float = 3.0,
) -> tuple[Condition, ...]:
    """Every K with every selection, in order of K; K = 0 hides nothing, so it occurs once.

    All sinks (rule="threshold") are as many as they are, so that the other K's give one condition per selection.
    """
    wanted, selected = sorted(set(counts)), list(dict.fromkeys(selections))
    if not wanted or wanted[0] < 0 or (wanted[-1] > 0 and not selected):
        raise JaxsinkError("name at least one number K of keys to hide, none of them negative, and how to select them.")
    hidden = dict.fromkeys(
        hide(k, select, rank_on, rule=rule, rows=rows, eps=eps) for k in wanted if k for select in selected
    )
    return (PLAIN, *hidden) if wanted[0] == 0 else tuple(hidden)


def check_conditions(
    wanted: Sequence[Condition], config: ModelConfig, sampler: Sampler, prompt_lengths: Sequence[int]
) -> None:
    """Raise a JaxsinkError if one of them could not have an effect on such questions."""
    lengths = np.array(prompt_lengths, int) + sampler.response_length
    for condition in wanted:
        interventions.check(condition.policy, config, sampler, lengths)


def programs(wanted: Sequence[Condition]) -> list[tuple[Condition, ...]]:
    """Conditions that can take turns in one program, those of the cheapest first; the unmasked model goes with these.

    Ranking on clean maps takes two passes a step, and masking all rows of an autoregressive model long ones; of a
    diffusion model, keys are hidden from all queries or from some.
    """

    def kind(policy: MaskSinks) -> tuple[bool, str, bool]:
        rows = protocol(policy) or ""
        return rows == "all", rows, ranks_on_clean(policy)

    kinds = sorted({kind(one.policy) for one in wanted if one.policy is not None})
    if not kinds:
        return [tuple(wanted)]
    return [
        tuple(one for one in wanted if (kinds[0] if one.policy is None else kind(one.policy)) == which)
        for which in kinds
    ]


class Comparison(NamedTuple):
    """Two conditions to test on the same questions. kind: what the second one is."""

    condition: str
    against: str
    kind: Literal["plain", "random", "partner", "mass"]


def comparisons(known: Sequence[Named]) -> list[Comparison]:
    """Each condition against K = 0, and sinks against every kind of random keys with the same settings."""
    plain = [one for one in known if one.select is None][:1]
    pairs = [Comparison(one.name, none.name, "plain") for none in plain for one in known if one.select is not None]
    for kind in cast(tuple[Literal["random", "partner", "mass"], ...], CONTROLS):
        control = {one.settings: one.name for one in known if one.select == kind}
        sinks = [one for one in known if one.select in SINKS and one.settings in control]
        pairs += [Comparison(one.name, control[one.settings], kind) for one in sinks]
    return pairs


def order_of(k: Amount, select: str | None) -> tuple[float, int]:
    """To sort conditions by: K, all sinks last; then the selection."""
    order = (None, *SELECTIONS)
    return math.inf if k is None else k, order.index(select) if select in order else len(order)


def intervention(wanted: Sequence[Condition]) -> Turns | None:
    """One `intervene` for a batch whose sequences follow the conditions in turns; None if there is nothing to drop."""
    policies = tuple(condition.policy for condition in wanted)
    return None if policies == (None,) else Turns(policies)
