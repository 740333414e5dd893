"""Shared by the masking experiments: conditions, what is lost under them, and tests against controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxsink.evals.conditions import PLAIN, Condition, hide
from jaxsink.evals.statistics import Estimate, clustered_mean, paired_shares, wilson
from jaxsink.study import Measured, Recorded, Scores, Study, Subject, Tested
from jaxsink.study.finding import Row
from jaxsink.study.verdicts import FEWEST, Expected, compare, not_testable

NOTE = "95 % intervals over distinct problems"
SOLVES = 0.2  # a model that solves no more than this has nothing to lose
KNOWS = 1.0  # nats per token that its answers must be better than chance, for a model to have something to lose
CONTROLS = ("partner", "mass")
SELECTIONS = ("top", "top_not_first", "first", *CONTROLS, "random")  # at K = 1


def no_generations(subject: Subject) -> dict[str, Recorded]:
    """Only answers are looked at."""
    return {}


def table1(subject: Subject, study: Study) -> tuple[Condition, ...]:
    """The paper's K with controls, and all sinks by Eq. 3."""
    one = [hide(1, select) for select in SELECTIONS]
    more = [hide(k, select) for k in (5, 10) for select in ("top", *CONTROLS)]
    return (PLAIN, *one, *more, *of_whole_maps(subject))


def of_whole_maps(subject: Subject) -> list[Condition]:
    """Eq. 3 needs whole maps: an autoregressive model then runs all queries again in every step."""
    rows = None if subject.is_diffusion else "all"
    sinks = [hide(None, select, rule="threshold", rows=rows) for select in ("top", *CONTROLS)]
    return sinks + ([] if subject.is_diffusion else [hide(1, s, rows="all") for s in ("top", "first", *CONTROLS)])


def lost(plain: np.ndarray, hidden: np.ndarray, clusters: Sequence[str]) -> Estimate:
    """Problems that are lost, as a share; or nats per token that answers are less likely."""
    if plain.dtype == bool:
        return paired_shares(plain, hidden, clusters)
    return clustered_mean(hidden - plain, clusters)


def has_nothing_to_lose(one: Measured, values: Scores) -> str:
    """Why nothing can be tested, if so."""
    plain = values[PLAIN]
    if len(set(one.clusters)) < FEWEST:
        return f"{len(set(one.clusters))} distinct problems are too few to compare"
    if plain.dtype == bool:
        solved = wilson(int(plain.sum()), len(plain))
        return "" if solved.low > SOLVES else f"it solves {solved.estimate:.0%} of the problems, so it has none to lose"
    better = np.log(one.subject.model.config.vocab) - plain.mean()
    return (
        "" if better > KNOWS else f"its answers are {better:.2f} nats per token better than chance, too few to lose any"
    )


def loss_test(
    one: Measured,
    values: Scores,
    statistic: str,
    condition: Condition,
    *,
    expected: Expected = "greater",
    controls: Mapping[str, Condition] | None = None,
    bound: tuple[str, float] | None = None,
) -> Tested:
    """What is lost under a condition, against what is lost under controls, or against a number."""
    why = has_nothing_to_lose(one, values)
    if why:
        return not_testable(one.subject.name, statistic, expected, why)
    plain, hidden, clusters = values[PLAIN], values[condition], one.clusters
    mean, comparisons = lost(plain, hidden, clusters), []
    for name, control in (controls or {}).items():
        value = lost(plain, values[control], clusters).value
        comparisons.append(compare(name, value, lost(values[control], hidden, clusters), expected))
    if bound is not None:
        name, number = bound
        comparisons.append(compare(name, number, mean._replace(value=mean.value - number), expected))
    low, high = mean.interval()
    return Tested(
        one.subject.name, statistic, expected, mean.value, low, high, len(set(clusters)), comparisons=comparisons
    )


def rows(one: Measured) -> list[dict[str, Any]]:
    """A line for each condition: accuracy, loss of the published answers, and what was hidden."""
    lines = []
    for condition, right in one.scores.items():
        solved, gone = wilson(int(right.sum()), len(right)), lost(one.scores[PLAIN], right, one.clusters)
        low, high = gone.interval()
        line = {"model": one.subject.name, "condition": str(condition), "solved": solved.estimate}
        line |= {"lost": gone.value, "lost: low": low, "lost: high": high}
        if one.losses:
            more = lost(one.losses[PLAIN], one.losses[condition], one.clusters)
            low, high = more.interval()
            line |= {"nats per token": float(one.losses[condition].mean())}
            line |= {"more nats": more.value, "more: low": low, "more: high": high}
        if condition.policy is not None and one.hidden:
            line |= {shown: of_hidden(one, condition, name) for shown, name in HIDDEN.items()}
        lines.append(line)
    return lines


HIDDEN = {
    "keys hidden per head": "number",
    "as share of S": "share",
    "duty of a hidden key": "duty",
    "of them sinks by Eq. 3": "are_sinks",
    "attention on them before": "mass",
}


def of_hidden(one: Measured, condition: Condition, name: str) -> float | str:
    """The mean over the generations that have such a figure."""
    values = one.hidden[f"{condition}: {name}"]
    return "" if np.isnan(values).all() else float(np.nanmean(values))


def by_problem(one: Measured) -> list[Row]:
    """What each problem came to under every condition."""
    lines = []
    for number, cluster in enumerate(one.clusters):
        right = {str(condition): int(values[number]) for condition, values in one.scores.items()}
        nats = {f"{condition} (nats)": float(values[number]) for condition, values in one.losses.items()}
        lines.append({"model": one.subject.name, "number": number, "problem": cluster, **right, **nats})
    return lines
