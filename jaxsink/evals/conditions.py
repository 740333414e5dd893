"""What is compared: the unmasked model, and sinks or as many other keys hidden, by label."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

from jaxsink.errors import JaxsinkError
from jaxsink.sinks.mask import SELECTIONS as RANKED
from jaxsink.sinks.mask import MaskSinks
from jaxsink.sinks.turns import Turns

PLAIN = "K = 0"
FIRST = "first"  # the first tokens, whatever they receive
SELECTIONS = (*RANKED, FIRST)
Conditions = Mapping[str, MaskSinks | None]
RankOn = Literal["masked", "clean"]


def conditions(
    counts: Iterable[int], selections: Iterable[str], rank_on: RankOn = "masked"
) -> dict[str, MaskSinks | None]:
    """Every K with every selection, in order of K; K = 0 hides nothing, so it occurs once."""
    wanted, selected = sorted(set(counts)), list(dict.fromkeys(selections))
    unknown = [name for name in selected if name not in SELECTIONS]
    if unknown:
        raise JaxsinkError(f"keys cannot be selected by {unknown[0]!r}; choose from {', '.join(SELECTIONS)}.")
    if not wanted or wanted[0] < 0 or (wanted[-1] > 0 and not selected):
        raise JaxsinkError("name at least one number K of keys to hide, none of them negative, and how to select them.")
    found: dict[str, MaskSinks | None] = {PLAIN: None} if wanted[0] == 0 else {}
    for k in filter(None, wanted):
        found |= {label(k, select): policy(k, select, rank_on) for select in selected}
    return found


def policy(k: int, select: str, rank_on: RankOn) -> MaskSinks:
    if select == FIRST:
        return MaskSinks(k, positions=tuple(range(k)), rank_on=rank_on)
    return MaskSinks(k, select=cast(Any, select), rank_on=rank_on)


def label(k: int, select: str) -> str:
    return f"K = {k}, {select}"


def parts(condition: str) -> tuple[int, str | None]:
    """(K, selection) of a label; nothing is selected for K = 0."""
    found = re.fullmatch(r"K = (\d+)(?:, (\w+))?", condition)
    if found is None:
        raise JaxsinkError(f"{condition!r} is not the label of a condition, such as {PLAIN!r} or {label(5, 'top')!r}.")
    return int(found[1]), found[2]


def comparisons(labels: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs to test on the same questions: each condition against K = 0, and sinks against random keys."""
    known = list(labels)
    against_plain = [(name, PLAIN) for name in known if PLAIN in known and name != PLAIN]
    sinks = [name for name in known if name.endswith((", top", f", {FIRST}"))]
    against_random = [(name, f"{name.rpartition(', ')[0]}, random") for name in sinks]
    return against_plain + [pair for pair in against_random if pair[1] in known]


def intervention(wanted: Conditions) -> Turns | None:
    """One `intervene` for a batch whose sequences follow the conditions in turns; None if there is nothing to drop."""
    policies = tuple(wanted.values())
    return None if policies == (None,) else Turns(policies)
