"""Verdicts: errors that know of clusters, nulls that must all be beaten, and models without an effect that stay without."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from jaxsink.errors import JaxsinkError
from jaxsink.evals.statistics import Estimate, clustered_mean, holm, paired_shares
from jaxsink.study import verdicts
from jaxsink.study.verdicts import (
    LEVEL,
    Comparison,
    against_models,
    all_of,
    compare,
    decide,
    not_testable,
    over_models,
    paired,
)

DRAW = np.random.default_rng(0)


def test_a_mean_of_values_that_are_alone_is_students() -> None:
    values = DRAW.normal(0.3, 2.0, 17)
    found = clustered_mean(values)
    expected = stats.ttest_1samp(values, 0.0)
    assert found.value == pytest.approx(values.mean()) and found.freedom == 16
    assert found.interval() == pytest.approx(tuple(expected.confidence_interval()), rel=1e-9)
    assert found.interval(0.8) == pytest.approx(tuple(expected.confidence_interval(0.8)), rel=1e-9)
    assert found.p_above() == pytest.approx(stats.ttest_1samp(values, 0.0, alternative="greater").pvalue)
    assert found.p_below() == pytest.approx(1 - found.p_above())
    assert clustered_mean(values, [str(n) for n in range(17)]) == found


def test_the_error_of_clusters_is_that_of_their_sums() -> None:
    values, names = DRAW.normal(size=12), list("aaabbcccccdd")
    mean = values.mean()
    sums = [sum(v - mean for v, name in zip(values, names, strict=True) if name == cluster) for cluster in "abcd"]
    expected = (4 / 3 * sum(one**2 for one in sums)) ** 0.5 / 12
    found = clustered_mean(values, names)
    assert found.value == pytest.approx(mean) and found.error == pytest.approx(expected) and found.freedom == 3
    order = DRAW.permutation(12)
    again = clustered_mean(values[order], np.array(names)[order])
    assert again == pytest.approx(found)


def test_values_that_repeat_do_not_make_an_interval_narrower() -> None:
    values = DRAW.normal(size=10)
    once = clustered_mean(values)
    repeated, names = np.repeat(values, 8), np.repeat([str(n) for n in range(10)], 8)
    assert clustered_mean(repeated, names) == pytest.approx(once)
    assert clustered_mean(repeated).error < 0.4 * once.error  # what ignoring clusters would claim


def test_values_that_are_missing_do_not_count() -> None:
    values, names = np.array([1.0, np.nan, 2.0, 4.0, np.nan]), list("aabcd")
    assert clustered_mean(values, names) == clustered_mean([1.0, 2.0, 4.0], list("abc"))
    with pytest.raises(JaxsinkError, match="there is no value"):
        clustered_mean([np.nan, np.nan])
    with pytest.raises(JaxsinkError, match=r"\(3,\) values do not fit \(2,\) names"):
        clustered_mean([1.0, 2.0, 3.0], ["a", "b"])


def test_one_cluster_alone_says_nothing() -> None:
    found = clustered_mean([1.0, 2.0, 3.0], ["a"] * 3)
    assert found.value == 2 and found.error == np.inf and found.interval() == (-np.inf, np.inf)
    assert found.p_above() == found.p_below() == 0.5


def test_values_that_are_all_equal_are_sure() -> None:
    """An error of 0 divides by nothing."""
    assert (Estimate(1.0, 0.0, 4.0).p_above(), Estimate(1.0, 0.0, 4.0).p_below()) == (0.0, 1.0)
    assert (Estimate(0.0, 0.0, 4.0).p_above(), Estimate(0.0, 0.0, 4.0).p_below()) == (1.0, 1.0)


def test_paired_shares_count_one_more_problem_on_either_side() -> None:
    a, b = np.array([1, 1, 1, 0, 1, 0, 1, 1]), np.array([1, 0, 0, 0, 1, 1, 0, 1])
    found = paired_shares(a, b)
    gaps = [*(a - b), 1, -1]
    assert found.value == pytest.approx(2 / 8) and found.freedom == 9
    assert found.error == pytest.approx(stats.sem(gaps))
    clustered = paired_shares(a, b, list("aabbccdd"))
    expected = clustered_mean(gaps, [*"aabbccdd", "x", "y"])
    assert clustered == Estimate(found.value, expected.error, expected.freedom)


def test_no_difference_at_all_is_not_certainty() -> None:
    for total in (5, 20, 200):
        found = paired_shares([1] * total, [1] * total)
        low, high = found.interval()
        assert found.value == 0 and low < 0 < high and high == pytest.approx(-low)
        assert found.error == pytest.approx(np.sqrt(2 / ((total + 1) * (total + 2))))
    assert paired_shares([1] * 200, [1] * 200).interval()[1] < 0.05 < paired_shares([1] * 20, [1] * 20).interval()[1]
    with pytest.raises(JaxsinkError, match="right \\(1\\) or wrong \\(0\\)"):
        paired_shares([0.5, 1], [1, 1])


def test_a_comparison_has_two_sided_levels_in_either_direction() -> None:
    difference = Estimate(0.3, 0.1, 9.0)
    up, down = (compare("x", 0.2, difference, expected) for expected in ("greater", "less"))
    p = 2 * stats.t.sf(3.0, 9)
    assert up.p == down.p_opposite == pytest.approx(p)
    assert up.p_opposite == down.p == 1  # never more than 1
    assert (up.null, up.null_value, up.difference) == ("x", 0.2, 0.3)
    assert (up.low, up.high) == pytest.approx(difference.interval())
    assert (up.p < LEVEL) == (up.low > 0)  # verdict and interval say the same
    hurdle = compare("x", 0.2, difference, "less", hurdle=True)
    assert hurdle.p == 1 and hurdle.p_opposite == 1


def held_against(*levels: tuple[float, float]) -> verdicts.Tested:
    """A test with such p and p in the other direction, one pair for each null."""
    comparisons = [Comparison("x", 0.0, 0.0, 0.0, 0.0, p, opposite) for p, opposite in levels]
    return verdicts.Tested("m", "s", "greater", 0.0, 0.0, 0.0, 9, comparisons)


def outcome(*tests: verdicts.Tested) -> list[str]:
    return [test.verdict for test in decide(tests)]


def test_a_claim_must_beat_every_null_and_one_refutes_it() -> None:
    assert outcome(held_against((0.01, 1.0))) == ["supported"]
    assert outcome(held_against((0.01, 1.0), (0.04, 1.0))) == ["supported"]
    assert outcome(held_against((0.01, 1.0), (0.06, 1.0))) == ["undecided"]
    assert outcome(held_against((0.01, 1.0), (1.0, 0.02))) == ["refuted"]
    assert outcome(held_against((0.2, 1.0), (1.0, 0.2))) == ["undecided"]
    assert outcome(not_testable("m", "s", "less", "nobody knows")) == ["not testable here"]
    assert decide([held_against((0.01, 1.0), (0.04, 1.0))])[0].p == 0.04


def test_levels_hold_for_all_tests_of_a_study_together() -> None:
    levels = [0.001, 0.012, 0.02, 0.04]
    found = decide([not_testable("m", "s", "greater", "x"), *(held_against((p, 1.0)) for p in levels)])
    assert [test.p for test in found[1:]] == holm(levels) and found[0].p == 1
    assert [test.verdict for test in found] == ["not testable here", *["supported"] * 4]
    assert outcome(*(held_against((p, 1.0)) for p in (0.02, 0.03, 0.04))) == ["undecided"] * 3  # each alone would do
    assert outcome(*(held_against((1.0, p)) for p in (0.02, 0.03, 0.04))) == ["undecided"] * 3
    assert outcome(held_against((0.02, 1.0)), *[not_testable("m", "s", "less", "x")] * 9) == [
        "supported",
        *["not testable here"] * 9,
    ]
    assert outcome(*(held_against((1.0, p)) for p in (0.01, 0.02, 0.04))) == ["refuted"] * 3


def test_a_hurdle_cannot_refute() -> None:
    far_below = Estimate(-1.0, 0.01, 9.0)
    assert outcome(verdicts.Tested("m", "s", "greater", 0, 0, 0, 9, [compare("x", 0, far_below, "greater")])) == [
        "refuted"
    ]
    hurdle = compare("x", 0, far_below, "greater", hurdle=True)
    assert outcome(verdicts.Tested("m", "s", "greater", 0, 0, 0, 9, [hurdle])) == ["undecided"]
    beaten = compare("y", 0, Estimate(1.0, 0.01, 9.0), "greater")
    assert outcome(verdicts.Tested("m", "s", "greater", 0, 0, 0, 9, [beaten, hurdle])) == ["undecided"]


def test_a_claim_about_several_needs_them_all_and_falls_with_one() -> None:
    yes, no, open_, nothing = "supported", "refuted", "undecided", "not testable here"
    assert all_of([]) == all_of([nothing, nothing]) == nothing
    assert all_of([yes, nothing, yes]) == yes and all_of([yes, open_]) == open_
    assert all_of([yes, open_, no]) == all_of([no, nothing]) == no


def test_words_say_the_value_the_differences_and_why_not() -> None:
    test = verdicts.Tested(
        "m", "s", "less", 0.1234, 0.1, 0.2, 9, [Comparison("chance", 0.3, -1.5, -2.0, -1.0, 0.001, 1.0)]
    )
    assert decide([test])[0].in_words() == "m 0.123 (-1.5 [-2, -1] against chance): supported"
    assert not_testable("m", "s", "less", "nobody knows").in_words() == "m: nobody knows"


def test_the_mean_over_models_leaves_out_what_is_missing() -> None:
    values = np.array([[1.0, np.nan, np.nan], [3.0, 4.0, np.nan]])
    np.testing.assert_array_equal(over_models(values), [2.0, 4.0, np.nan])


def test_a_difference_to_models_has_the_spread_of_models_and_of_problems() -> None:
    mine, others, names = DRAW.normal(size=6), DRAW.normal(size=(5, 6)), list("aabbcc")
    found = against_models(mine, list(others), names)
    by_other = others.mean(axis=1)
    problems = clustered_mean(mine - others.mean(axis=0), names).error
    assert found.value == pytest.approx(mine.mean() - by_other.mean()) and found.freedom == 4
    assert found.error == pytest.approx(np.sqrt(by_other.var(ddof=1) * (1 + 1 / 5) + problems**2))
    several = DRAW.normal(size=(3, 6))
    found = against_models(several, list(others), names)
    pooled = (2 * several.mean(axis=1).var(ddof=1) + 4 * by_other.var(ddof=1)) / 6
    problems = clustered_mean(several.mean(axis=0) - others.mean(axis=0), names).error
    assert found.freedom == 6 and found.error == pytest.approx(np.sqrt(pooled * (1 / 3 + 1 / 5) + problems**2))


def simulated(effect: float, models: int = 8, problems: int = 30, studies: int = 2000) -> tuple[float, float]:
    """(share of studies that say "supported" against models, the same if only problems had an error).

    Models differ by 1 from their seeds, the problems of a model by 1 among themselves.
    """
    draw, names = np.random.default_rng(1), [str(n) for n in range(problems)]
    right = wrong = 0
    for _ in range(studies):
        values = draw.normal(size=(models + 1, 1)) + draw.normal(size=(models + 1, problems))
        mine, others = values[0] + effect, list(values[1:])
        models_too = compare("x", 0.0, against_models(mine, others, names), "greater")
        alone = compare("x", 0.0, clustered_mean(mine - np.mean(others, axis=0), names), "greater")
        right, wrong = right + (models_too.p < LEVEL), wrong + (alone.p < LEVEL)
    return right / studies, wrong / studies


def test_a_model_like_the_others_is_seldom_supported_and_problems_alone_would_often_be() -> None:
    models_too, problems_alone = simulated(effect=0.0)
    assert models_too < LEVEL  # two-sided level, so about half of it in either direction
    assert problems_alone > 0.25


def test_pairs_are_compared_problem_by_problem() -> None:
    values, other = np.array([1.0, 2, 3, 4, 5, np.nan, 7, 8]), np.array([0.0, 1.5, 2, 2, np.nan, 5, 6, 9])
    names = list("aabcdefg")
    found = paired("m", "s", "greater", values, {"other": other, "itself": values}, names)
    mean, gap = clustered_mean(values, names), clustered_mean(values - other, names)
    first, second = found.comparisons
    assert (found.value, found.low, found.high, found.problems) == (mean.value, *mean.interval(), 6)
    assert (first.null, first.difference, first.low, first.high) == ("other", gap.value, *gap.interval())
    assert first.null_value == pytest.approx(mean.value - gap.value) and second.difference == 0
    few = paired("m", "s", "greater", values, {"other": np.where(np.arange(8) > 3, np.nan, other)}, names)
    assert not few.comparisons and "3 problems" in few.why


def test_an_effect_is_found() -> None:
    assert simulated(effect=6.0, studies=200)[0] > 0.9
