"""Findings over training seeds: models whose names differ in a last number (`arm-0`, `arm-1`, …) are runs of one kind.

One model's tests say what that model does, not what such a training gives. Here each statistic of a kind is held against the
same nulls once more, with the seeds as what is drawn: the mean difference of the runs, with an error that knows their spread
and, because all runs are asked the same problems, the error over problems once in full. Few seeds leave few degrees of
freedom, so that only what every run shows clearly is found. A test of two models, each of which may have seeds, comes once
for every pair of their runs: the pairs are no more runs than there are, and both kinds' spread counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from jaxsink.evals.statistics import Estimate
from jaxsink.study.finding import Finding, Table, judge
from jaxsink.study.verdicts import Comparison, Expected, Tested, compare

FEWEST_SEEDS = 3
RUN = re.compile(r"(.+)-(\d+)")
NORMAL = float(stats.norm.ppf(0.975))


def kind_of(model: str) -> str | None:
    """What a run is one of; None where its name has no number."""
    match = RUN.fullmatch(model)
    return None if match is None else match[1]


def over_seeds(findings: Sequence[Finding]) -> list[Finding]:
    """One finding more, where some kind of model has runs enough; its verdicts are corrected for its own tests."""
    models = {test.model for finding in findings for test in finding.tests}
    groups: dict[tuple[str, str, str, str | None], list[Tested]] = {}
    for finding in findings:
        for test in finding.tests:
            kind = kind_of(test.model)
            if kind is not None and test.comparisons:
                rival = rival_of(test, models)
                groups.setdefault((finding.name, kind, test.statistic, rival), []).append(test)
    tests, lines = [], []
    for (name, kind, statistic, rival), runs in groups.items():
        seeds = len({run.model for run in runs})
        if seeds >= FEWEST_SEEDS:
            found = pooled if rival is None else of_pairs
            tests.append(found(seeded(kind, seeds), f"{name}: {statistic}", runs))
            lines += [line_of(name, run) for run in runs]
    if not tests:
        return []
    table = Table.of("Run by run", lines, "the tests of each run alone")
    finding = Finding(
        name="seeds",
        title="Over seeds",
        question="Does what was found of one trained model hold for others that were trained in the same way?",
        paper="One checkpoint of each model; seeds are not studied.",
        found="",
        tests=tests,
        tables=[table],
    )
    return judge([finding])


def rival_of(test: Tested, models: set[str]) -> str | None:
    """The kind of the other model that a test holds its own against, or that model if it has no seeds; None for nulls."""
    other = next((one.null for one in test.comparisons if one.null in models), None)
    return other and (kind_of(other) or other)


def seeded(kind: str, count: int) -> str:
    return f"{kind} ({count} seeds)"


def pooled(kind: str, statistic: str, runs: Sequence[Tested]) -> Tested:
    """The runs of a kind against every null that all of them have."""
    by_null = [by_null_and_side(run) for run in runs]
    shared = [key for key in by_null[0] if all(key in found for found in by_null)]
    comparisons = [against(null, side, [found[null, side] for found in by_null]) for null, side in shared]
    return over_all(kind, statistic, runs, comparisons, "" if shared else "the runs have no null in common")


def of_pairs(kind: str, statistic: str, pairs: Sequence[Tested]) -> Tested:
    """The runs of a kind against those of another kind: each pair of runs has a test, with one comparison."""
    runs = list({pair.model: pair for pair in pairs}.values())
    found = [one for pair in pairs for one in pair.comparisons]
    others = {one.null: one.null_value for one in found}
    errors = [error_of(one.low, one.high) for one in found]
    gap = difference([run.value for run in runs], list(others.values()), errors)
    (first, *more) = others
    name = seeded(kind_of(first) or first, len(others)) if more else first
    comparison = compare(name, float(np.mean(list(others.values()))), gap, pairs[0].expected)
    return over_all(kind, statistic, runs, [comparison], "")


def over_all(kind: str, statistic: str, runs: Sequence[Tested], comparisons: list[Comparison], why: str) -> Tested:
    """What all runs of a kind come to, with these comparisons."""
    mean = over_runs([run.value for run in runs], [error_of(run.low, run.high) for run in runs])
    low, high = mean.interval()
    return Tested(
        model=kind,
        statistic=statistic,
        expected=runs[0].expected,
        value=mean.value,
        low=low,
        high=high,
        problems=min(run.problems for run in runs),
        comparisons=comparisons,
        why=why,
    )


def by_null_and_side(run: Tested) -> dict[tuple[str, Expected], Comparison]:
    return {(one.null, side_of(one, run.expected)): one for one in run.comparisons}


def side_of(one: Comparison, expected: Expected) -> Expected:
    """On which side of the null the claim puts the statistic: a claim that names a range has a bound on the other side."""
    if one.p == one.p_opposite:
        return expected
    return "greater" if (one.p < one.p_opposite) == (one.difference > 0) else "less"


def against(null: str, side: Expected, found: Sequence[Comparison]) -> Comparison:
    gap = over_runs([one.difference for one in found], [error_of(one.low, one.high) for one in found])
    hurdle = all(one.p_opposite == 1.0 for one in found)  # a hurdle cannot refute, whatever its difference
    return compare(null, float(np.mean([one.null_value for one in found])), gap, side, hurdle)


def error_of(low: float, high: float) -> float:
    """The standard error behind a 95 % interval, rather too large: intervals of few problems are wider than the normal."""
    return (high - low) / (2 * NORMAL)


def over_runs(values: Sequence[float], errors: Sequence[float]) -> Estimate:
    """The mean of the runs as one more training would show it."""
    count = len(values)
    error = np.sqrt(np.var(values, ddof=1) / count + np.mean(np.square(errors)))
    return Estimate(float(np.mean(values)), float(error), float(count - 1))


def difference(values: Sequence[float], others: Sequence[float], errors: Sequence[float]) -> Estimate:
    """The mean of runs over that of others, as one more training of each kind would show it; a kind with one model has no
    spread. errors: of the differences, over problems, pair by pair."""
    drawn = [part for part in (values, others) if len(part) > 1]
    spread = sum(np.var(part, ddof=1) / len(part) for part in drawn)
    error = np.sqrt(spread + np.mean(np.square(errors)))
    freedom = min(len(part) for part in drawn) - 1
    return Estimate(float(np.mean(values) - np.mean(others)), float(error), float(freedom))


def line_of(name: str, run: Tested) -> Mapping[str, str | float]:
    differences = {f"to {one.null}": one.difference for one in run.comparisons}
    said = {"experiment": name, "model": run.model, "statistic": run.statistic, "value": run.value}
    return {**said, **differences, "verdict": run.verdict}
