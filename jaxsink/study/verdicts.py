"""Verdicts: a statistic against nulls that could have come out otherwise.

A claim is *supported* where its statistic differs from **every** null in the predicted direction, *refuted* where it
differs from one in the other direction (untrained models aside, which are a hurdle only), *undecided* where intervals span,
and *not testable here* where there is nothing to compare. Levels hold for all tests of a study together (Holm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from jaxsink.evals.statistics import Clusters, Estimate, clustered_mean, holm

Verdict = Literal["supported", "refuted", "undecided", "not testable here"]
"""What a test says of a claim; see the head of this module."""
Expected = Literal["greater", "less"]
LEVEL = 0.05
FEWEST = 5
"""Distinct problems that a comparison needs."""


@dataclass(frozen=True)
class Comparison:
    """A statistic against one null: the difference with its 95 % interval, and p in the predicted and in the other
    direction, each as a two-sided test has it. A null that is only a hurdle (models without training, beside others) cannot
    refute: p in the other direction is 1."""

    null: str
    null_value: float
    difference: float
    low: float
    high: float
    p: float
    p_opposite: float


@dataclass(frozen=True)
class Tested:
    """The statistic of one model, its comparisons, and the verdict; `p` is the largest, corrected for all tests.

    Examples:
        >>> from jaxsink.study.verdicts import decide, not_testable
        >>> decide([not_testable("mini-llama", "moves", "greater", "it has no steps")])[0].in_words()
        'mini-llama: it has no steps'
        >>> decide([not_testable("mini-llama", "moves", "greater", "it has no steps")])[0].to_dict()["verdict"]
        'not testable here'
    """

    model: str
    statistic: str
    expected: Expected
    value: float
    low: float
    high: float
    problems: int  # distinct ones
    comparisons: list[Comparison] = field(default_factory=list)
    p: float = 1.0
    verdict: Verdict = "not testable here"
    why: str = ""  # it cannot be tested

    def in_words(self) -> str:
        if not self.comparisons:
            return f"{self.model}: {self.why}"
        nulls = ", ".join(
            f"{number(one.difference, '+')} [{number(one.low, '+')}, {number(one.high, '+')}] against {one.null}"
            for one in self.comparisons
        )
        return f"{self.model} {number(self.value)} ({nulls}): {self.verdict}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def number(value: float, sign: Literal["", "+"] = "") -> str:
    """Three digits that count, and no more than three places."""
    return f"{value:{sign}.3g}" if abs(value) >= 1 else f"{value:{sign}.3f}"


def compare(null: str, null_value: float, difference: Estimate, expected: Expected, hurdle: bool = False) -> Comparison:
    """A comparison from the difference to a null and its error."""
    low, high = difference.interval()
    above, below = min(1.0, 2 * difference.p_above()), min(1.0, 2 * difference.p_below())
    p, p_opposite = (above, below) if expected == "greater" else (below, above)
    return Comparison(null, null_value, difference.value, low, high, p, 1.0 if hurdle else p_opposite)


def paired(
    model: str,
    statistic: str,
    expected: Expected,
    values: np.ndarray,
    nulls: Mapping[str, np.ndarray],
    clusters: Clusters,
) -> Tested:
    """Values [N] against others of the same generations or problems [N], by name; NaN where there is none."""
    names, there = np.asarray(clusters), ~np.isnan(values)
    fewest = min(len(set(names[there & ~np.isnan(other)])) for other in nulls.values())
    if fewest < FEWEST:
        return not_testable(model, statistic, expected, f"{fewest} problems have what is measured, too few to compare")
    mean = clustered_mean(values, names)
    comparisons = []
    for name, other in nulls.items():
        gap = clustered_mean(values - other, names)
        comparisons.append(compare(name, mean.value - gap.value, gap, expected))
    low, high = mean.interval()
    return Tested(model, statistic, expected, mean.value, low, high, int(mean.freedom) + 1, comparisons=comparisons)


def not_testable(model: str, statistic: str, expected: Expected, why: str) -> Tested:
    nothing = float("nan")
    return Tested(model, statistic, expected, value=nothing, low=nothing, high=nothing, problems=0, why=why)


def decide(tests: Sequence[Tested]) -> list[Tested]:
    """Verdicts for all tests of a study. A claim must beat every null, so the largest p of its comparisons counts."""
    asked = [test for test in tests if test.comparisons]
    towards = holm([max(one.p for one in test.comparisons) for test in asked])
    against = holm([min(one.p_opposite for one in test.comparisons) for test in asked])
    found: dict[int, Tested] = {}
    for test, p, opposite in zip(asked, towards, against, strict=True):
        verdict: Verdict = "supported" if p < LEVEL else "refuted" if opposite < LEVEL else "undecided"
        found[id(test)] = replace(test, p=p, verdict=verdict)
    return [found.get(id(test), test) for test in tests]


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Of a claim about several models or statistics: one counterexample refutes it, and it needs the support of all."""
    known = [verdict for verdict in verdicts if verdict != "not testable here"]
    if not known:
        return "not testable here"
    if "refuted" in known:
        return "refuted"
    return "supported" if set(known) == {"supported"} else "undecided"


def against_models(values: ArrayLike, others: Sequence[ArrayLike], clusters: Clusters) -> Estimate:
    """The difference of models [R,N] to other models [M,N], as a draw of one more model would show it.

    Models differ by their seeds, problems among themselves; both count. With one model of a kind, the spread of the others
    stands for its own: were it one of them, it would seldom be so far away.
    """
    mine, theirs = np.atleast_2d(np.asarray(values, float)), np.asarray(others, float)
    by_model, by_other = (np.nanmean(part, axis=1) for part in (mine, theirs))
    problems = clustered_mean(over_models(mine) - over_models(theirs), clusters)
    freedom = len(by_model) + len(by_other) - 2
    spread = sum(((part - part.mean()) ** 2).sum() for part in (by_model, by_other)) / freedom
    error = np.sqrt(spread * (1 / len(by_model) + 1 / len(by_other)) + problems.error**2)
    return Estimate(float(by_model.mean() - by_other.mean()), float(error), float(freedom))


def over_models(values: np.ndarray) -> np.ndarray:
    """f64[N]: the mean over models [M,N] that have a value; NaN where none has."""
    there = ~np.isnan(values)
    return np.where(
        there.any(axis=0), np.where(there, values, 0.0).sum(axis=0) / np.maximum(there.sum(axis=0), 1), np.nan
    )
