"""What is found over training seeds: the spread of the runs counts, and so does the error over problems that they share."""

from __future__ import annotations

import numpy as np
import pytest

from jaxsink.evals.statistics import Estimate
from jaxsink.study import verdicts
from jaxsink.study.finding import Finding
from jaxsink.study.seeds import FEWEST_SEEDS, kind_of, over_runs, over_seeds, pooled
from jaxsink.study.verdicts import Expected, compare


def run(
    model: str, value: float, error: float = 0.01, expected: Expected = "greater", hurdle: bool = False
) -> verdicts.Tested:
    """A run whose statistic is `value`, against a null of 0."""
    gap = Estimate(value, error, 1e6)
    low, high = gap.interval()
    comparisons = [compare("chance", 0.0, gap, expected, hurdle)]
    return verdicts.Tested(model, "a statistic", expected, value, low, high, 20, comparisons=comparisons)


def finding(*runs: verdicts.Tested) -> Finding:
    return Finding("fig1", "title", "question", "paper", found="", tests=list(runs))


def verdict(*values: float, error: float = 0.01, expected: Expected = "greater", hurdle: bool = False) -> str:
    runs = (run(f"arm-{n}", value, error, expected, hurdle) for n, value in enumerate(values))
    (found,) = over_seeds([finding(*runs)])
    return found.verdict


def test_names_of_runs() -> None:
    assert kind_of("shakespeare-arm-12") == "shakespeare-arm" and kind_of("mini-llada") is None


def test_what_every_run_shows_is_found_and_what_one_run_shows_is_not() -> None:
    assert verdict(1.0, 1.1, 0.9) == "supported"
    assert verdict(3.0, 0.0, 0.05) == "undecided"
    assert verdict(-1.0, -1.1, -0.9) == "refuted"
    assert verdict(-1.0, -1.1, -0.9, expected="less") == "supported"


def test_a_hurdle_cannot_refute() -> None:
    assert verdict(-1.0, -1.1, -0.9, hurdle=True) == "undecided"


def test_problems_that_all_runs_share_are_not_averaged_away() -> None:
    """Runs that agree, on problems too few to tell: more of them do not help."""
    assert verdict(1.0, 1.0, 1.0, error=0.5) == "undecided"
    assert verdict(*[1.0] * 9, error=0.5) == "undecided"
    assert verdict(*[1.0] * 9, error=0.1) == "supported"


def test_the_error_by_hand() -> None:
    found = over_runs([1.0, 2.0, 6.0], [0.5, 0.5, 1.0])
    assert found.value == 3.0 and found.freedom == 2
    assert found.error == pytest.approx(np.sqrt(7.0 / 3 + 0.5))


def test_too_few_runs_and_models_without_a_number_are_left_alone() -> None:
    few = [run(f"arm-{n}", 1.0) for n in range(FEWEST_SEEDS - 1)]
    assert over_seeds([finding(*few, run("mini-llada", 1.0))]) == []


def test_kinds_and_experiments_are_kept_apart() -> None:
    runs = [run(f"{kind}-{n}", value) for kind, value in (("arm", 1.0), ("dlm", -1.0)) for n in range(3)]
    (found,) = over_seeds([finding(*runs)])
    assert {test.model: test.verdict for test in found.tests} == {
        "arm (3 seeds)": "supported",
        "dlm (3 seeds)": "refuted",
    }
    assert all(test.statistic == "fig1: a statistic" for test in found.tests)
    assert [row[1] for row in found.tables[0].rows] == [f"{kind}-{n}" for kind in ("arm", "dlm") for n in range(3)]


def test_a_claim_that_names_a_range_keeps_both_sides() -> None:
    """Above 0, and below 2: the second bound has the other side, under the same name."""

    def ranged(n: int, value: float) -> verdicts.Tested:
        one = run(f"arm-{n}", value)
        below = compare("chance", 2.0, Estimate(value - 2, 0.01, 1e6), "less")
        return verdicts.Tested(**{**vars(one), "comparisons": [*one.comparisons, below]})

    inside, outside = ([ranged(n, value + n / 100) for n in range(3)] for value in (1.0, 3.0))
    assert [len(pooled("arm", "s", runs).comparisons) for runs in (inside, outside)] == [2, 2]
    assert over_seeds([finding(*inside)])[0].verdict == "supported"
    assert over_seeds([finding(*outside)])[0].verdict == "refuted"
