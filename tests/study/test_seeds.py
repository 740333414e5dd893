"""What is found over training seeds: the spread of the runs counts, and so does the error over problems that they share."""

from __future__ import annotations

import numpy as np
import pytest

from jaxsink.evals.statistics import Estimate
from jaxsink.study import verdicts
from jaxsink.study.finding import Finding
from jaxsink.study.seeds import FEWEST_SEEDS, difference, kind_of, over_runs, over_seeds, pooled
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


def pair(arm: str, dlm: str, value: float, other: float, error: float = 0.01) -> verdicts.Tested:
    """A test of one run against a run of another kind."""
    gap = Estimate(value - other, error, 1e6)
    low, high = Estimate(value, error, 1e6).interval()
    comparisons = [compare(dlm, other, gap, "greater")]
    return verdicts.Tested(arm, "costs more", "greater", value, low, high, 20, comparisons=comparisons)


ARMS, DLMS = {"arm-0": 1.0, "arm-1": 2.0, "arm-2": 4.5}, {"dlm-0": 0.2, "dlm-1": 0.1, "dlm-2": 0.6}


def all_pairs(dlms: dict[str, float], error: float = 0.01) -> list[verdicts.Tested]:
    return [pair(arm, dlm, ARMS[arm], dlms[dlm], error) for arm in ARMS for dlm in dlms]


def of_dlms(dlms: dict[str, float]) -> list[verdicts.Tested]:
    return [run(name, value) for name, value in dlms.items()]


def test_pairs_of_runs_are_no_more_runs_than_there_are() -> None:
    """Nine tests of three runs against three of another kind: three seeds of each, whose spreads both count."""
    (found,) = over_seeds([finding(*all_pairs(DLMS, error=0.3), *of_dlms(DLMS))])
    by_model = {test.model: test for test in found.tests}
    assert set(by_model) == {"arm (3 seeds)", "dlm (3 seeds)"}
    (one,) = by_model["arm (3 seeds)"].comparisons
    assert (one.null, by_model["arm (3 seeds)"].value) == ("dlm (3 seeds)", pytest.approx(2.5))
    assert one.null_value == pytest.approx(0.3) and one.difference == pytest.approx(2.2)
    spread = np.var([1.0, 2.0, 4.5], ddof=1) / 3 + np.var([0.2, 0.1, 0.6], ddof=1) / 3
    expected = Estimate(2.2, float(np.sqrt(spread + 0.3**2)), 2.0)
    assert (one.low, one.high) == pytest.approx(expected.interval())


def test_more_runs_of_the_other_kind_add_no_seeds() -> None:
    """As many tests as there are pairs, and the same verdict: what counts is how the three runs differ."""
    many = {f"dlm-{n}": 0.3 for n in range(8)}
    (found,) = over_seeds([finding(*all_pairs(many), *of_dlms(many))])
    (one,) = next(test for test in found.tests if test.model == "arm (3 seeds)").comparisons
    assert one.null == "dlm (8 seeds)" and one.low < 0 < one.high


def test_each_other_kind_and_each_single_model_has_its_own_test() -> None:
    both = {**DLMS, "adapted-0": 9.0, "adapted-1": 9.0, "adapted-2": 9.0, "mini-llada": 0.0}
    (found,) = over_seeds([finding(*all_pairs(both), *of_dlms(both))])
    tests = [test for test in found.tests if test.model == "arm (3 seeds)"]
    assert [test.comparisons[0].null for test in tests] == ["dlm (3 seeds)", "adapted (3 seeds)", "mini-llada"]
    assert [len(test.comparisons) for test in tests] == [1, 1, 1]
    assert [test.comparisons[0].difference for test in tests] == pytest.approx([2.2, -6.5, 2.5])


def test_two_runs_and_many_rivals_are_two_runs() -> None:
    pairs = [one for one in all_pairs(DLMS) if one.model != "arm-2"]
    (found,) = over_seeds([finding(*pairs, *of_dlms(DLMS))])
    assert {test.model for test in found.tests} == {"dlm (3 seeds)"}


def test_a_single_model_has_no_spread() -> None:
    found = difference([1.0, 2.0, 6.0], [1.0], [0.5, 0.5, 1.0])
    assert (found.value, found.freedom) == (2.0, 2.0)
    assert found.error == pytest.approx(np.sqrt(7.0 / 3 + 0.5))


def test_the_verdict_of_each_run_stands_in_the_table() -> None:
    runs = [verdicts.Tested(**{**vars(run(f"arm-{n}", 1.0)), "verdict": "supported"}) for n in range(3)]
    (table,) = over_seeds([finding(*runs)])[0].tables
    assert [row[table.columns.index("verdict")] for row in table.rows] == ["supported"] * 3
