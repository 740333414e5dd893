"""A prediction against its nulls, on numbers that are given: what is compared with what, and what cannot be."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.made_gallery import made_gallery

from jaxsink.evals.statistics import clustered_mean
from jaxsink.study import Gallery, Prediction, nulls
from jaxsink.study.predictions import FEWEST_MODELS, autoregressive, check, diffusion, everyone
from jaxsink.study.verdicts import against_models, decide

MODEL: Any = SimpleNamespace(name="m", is_diffusion=True)
DRAW = np.random.default_rng(0)
VALUES, CHANCE = DRAW.normal(1.0, 0.3, 8), DRAW.normal(0.4, 0.2, 8)
CLUSTERS = np.array(list("aabcdeff"))


def made(values: np.ndarray = VALUES, shuffled: np.ndarray = CHANCE) -> Gallery:
    """The statistic of each generation stands in its scores, and that of the null in the shuffled ones."""
    shape = (1, 1, 8, 1, 1)
    return made_gallery(values.reshape(shape), shuffled=shuffled.reshape(shape), clusters=CLUSTERS)


def asked(**changes: Any) -> Prediction:
    settings: dict[str, Any] = {"of": lambda subject, gallery: gallery.scores[0, 0, :, 0, 0], "untrained": False}
    return Prediction("x", "what is asked", **{**settings, **changes})


def untrained(
    count: int = FEWEST_MODELS, around: float = 0.0, chance: float | None = None
) -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(1)
    found = [{"x": draw.normal(around, 0.1, 8)} for _ in range(count)]
    return found if chance is None else [one | {"x shuffled": np.full(8, chance)} for one in found]


def test_the_statistic_is_held_against_the_mean_of_the_shuffled_draws() -> None:
    drawn = []

    def shuffle(gallery: Gallery, draw: np.random.Generator) -> Gallery:
        drawn.append(draw.random(8))
        return replace(gallery, scores=drawn[-1].reshape(1, 1, 8, 1, 1))

    one = asked(shuffle=nulls.Shuffle("all shuffled", shuffle, repeats=3))
    test, values = check(one, MODEL, made(), [])
    assert len(drawn) == 3 and set(values) == {"x", "x shuffled"}
    np.testing.assert_allclose(values["x shuffled"], np.mean(drawn, axis=0))
    (comparison,) = test.comparisons
    gap = clustered_mean(VALUES - np.mean(drawn, axis=0), CLUSTERS)
    assert comparison.null == "all shuffled" and comparison.difference == pytest.approx(gap.value)
    assert comparison.null_value == pytest.approx(np.mean(drawn))
    assert (comparison.low, comparison.high) == pytest.approx(gap.interval())
    mean = clustered_mean(VALUES, CLUSTERS)
    assert (test.value, test.low, test.high) == pytest.approx((mean.value, *mean.interval()))
    assert (test.model, test.statistic, test.problems) == ("m", "what is asked", 6)


def test_a_control_is_compared_generation_by_generation_and_taken_off_untrained_models() -> None:
    control = nulls.Control("other keys", lambda subject, gallery: gallery.shuffled[0, 0, :, 0, 0])
    others = [one | {"x control": np.full(8, 0.1)} for one in untrained()]
    test, values = check(asked(control=control, untrained=True, expected="less"), MODEL, made(), others)
    assert set(values) == {"x", "x control"}
    first, hurdle = test.comparisons
    gap = clustered_mean(VALUES - CHANCE, CLUSTERS)
    assert (first.null, first.difference) == ("other keys", pytest.approx(gap.value))
    assert first.null_value == pytest.approx(VALUES.mean() - gap.value) and first.p > 0.9 > first.p_opposite
    expected = against_models(VALUES - CHANCE, [one["x"] - 0.1 for one in untrained()], CLUSTERS)
    assert hurdle.difference == pytest.approx(expected.value) and hurdle.p_opposite == 1
    assert hurdle.null == "untrained weights, beyond chance"


def test_untrained_models_are_compared_beyond_chance_where_there_is_a_shuffle() -> None:
    test, _ = check(asked(shuffle=nulls.QUERIES, untrained=True), MODEL, made(), untrained(chance=0.25))
    _, hurdle = test.comparisons
    others = [one["x"] - 0.25 for one in untrained()]
    expected = against_models(VALUES - CHANCE, others, CLUSTERS)
    assert hurdle.null == "untrained weights, beyond chance"
    assert hurdle.difference == pytest.approx(expected.value) and hurdle.null_value == pytest.approx(np.mean(others))
    assert (hurdle.low, hurdle.high) == pytest.approx(expected.interval())
    assert decide([test])[0].verdict == "supported"


@pytest.mark.parametrize(
    ("beside", "verdict"), [({}, "refuted"), ({"least": 0.5}, "undecided"), ({"most": 2.0}, "undecided")]
)
def test_untrained_models_refute_only_where_they_are_the_one_null(beside: dict[str, float], verdict: str) -> None:
    test, _ = check(asked(untrained=True, **beside), MODEL, made(), untrained(around=5.0))
    assert test.comparisons[0].null == "untrained weights" and test.comparisons[0].high < 0
    assert decide([test])[0].verdict == verdict


def test_with_too_few_untrained_models_there_is_no_such_null() -> None:
    test, _ = check(asked(untrained=True), MODEL, made(), untrained(FEWEST_MODELS - 1))
    assert not test.comparisons and test.why == "neither null has what is measured"
    assert decide([test])[0].verdict == "not testable here"
    without = [{"x": np.where(np.arange(8) < 4, 0.0, np.nan)}, *untrained(FEWEST_MODELS - 1)]  # one has it too seldom
    assert not check(asked(untrained=True), MODEL, made(), without)[0].comparisons
    assert check(asked(untrained=True), MODEL, made(), untrained())[0].comparisons
    assert not check(asked(), MODEL, made(), untrained())[0].comparisons  # not asked for


def test_bounds_are_comparisons_of_their_own() -> None:
    test, _ = check(asked(least=0.5, most=3.0, bound="ours"), MODEL, made(), [])
    least, most = test.comparisons
    mean = VALUES.mean()
    assert (least.null, least.null_value, least.difference) == ("ours", 0.5, pytest.approx(mean - 0.5))
    assert (most.null_value, most.difference) == (3.0, pytest.approx(mean - 3))
    assert least.p < 0.05 and most.p < 0.05 and decide([test])[0].verdict == "supported"
    for wrong in ({"least": 3.0}, {"most": 0.5}):
        assert decide([check(asked(**wrong), MODEL, made(), [])[0]])[0].verdict == "refuted"


def test_what_too_few_problems_have_is_not_tested() -> None:
    values = np.where(np.isin(CLUSTERS, list("abcd")), VALUES, np.nan)  # five generations of four problems
    test, _ = check(asked(shuffle=nulls.QUERIES), MODEL, made(values), [])
    assert not test.comparisons and test.why == "5 of 8 generations have what is measured, too few to compare"
    five = np.where(CLUSTERS != "f", VALUES, np.nan)
    test, _ = check(asked(shuffle=nulls.QUERIES), MODEL, made(five), [])
    assert test.problems == 5 and len(test.comparisons) == 1
    never = np.where(CLUSTERS == "a", CHANCE, np.nan)  # the null seldom has it
    assert not check(asked(shuffle=nulls.QUERIES), MODEL, made(shuffled=never), [])[0].comparisons


def test_whom_a_claim_is_about() -> None:
    arm: Any = SimpleNamespace(is_diffusion=False)
    assert [about(one) for about in (diffusion, autoregressive, everyone) for one in (MODEL, arm)] == [
        *(True, False),
        *(False, True),
        *(True, True),
    ]
