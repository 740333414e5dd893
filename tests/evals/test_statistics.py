"""Intervals and tests over prompts: published values, counts by hand, coverage, and independence of the chunks."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats

from jaxsink import JaxsinkError
from jaxsink.evals import statistics as stats


def test_wilson_published_values() -> None:
    """Newcombe 1998 (Statistics in Medicine 17, 857-872), table I, method 3: score without continuity correction."""
    for successes, n, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        interval = stats.wilson(successes, n)
        assert interval.estimate == successes / n
        assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_wilson_solves_its_equation(level: float) -> None:
    """The limits are the accuracies p at which the observed share is exactly z standard errors away."""
    z = {0.5: 0.6744897501960817, 0.95: 1.959963984540054, 0.99: 2.5758293035489004}[level]
    for successes, n in ((0, 1), (1, 1), (3, 7), (50, 50), (700, 1319)):
        share, low, high = stats.wilson(successes, n, level)
        assert 0 <= low <= share <= high <= 1
        assert (low == 0) == (successes == 0) and (high == 1) == (successes == n)
        for p in (low, high):
            assert (share - p) ** 2 == pytest.approx(z * z * p * (1 - p) / n, rel=1e-9, abs=1e-15)


def test_bootstrap_of_every_possible_resample() -> None:
    """Three prompts have 27 resamples; the percentiles of many draws approach those of all."""
    values = np.array([0.0, 1.0, 5.0])
    means = sorted(sum(draw) / 3 for draw in itertools.product(values, repeat=3))
    interval = stats.bootstrap(values, resamples=20_000, level=0.8)
    assert interval.estimate == 2.0
    assert (interval.low, interval.high) == pytest.approx((means[2], means[24]))  # the 10 % and 90 % of 27
    assert stats.bootstrap(values, np.median, 20_000, level=0.4).estimate == 1.0
    median = stats.bootstrap(values, np.median, 20_000, level=0.6)  # P(median = 0) = P(median = 5) = 7/27 > 0.2
    assert (median.low, median.high) == (0.0, 5.0)
    median = stats.bootstrap(values, np.median, 20_000, level=0.4)  # < 0.3
    assert (median.low, median.high) == (1.0, 1.0)


def test_bootstrap_coverage() -> None:
    """About 90 % of the intervals hold the true mean; 400 of them at once, as columns, each of 60 prompts."""
    values = np.random.default_rng(3).normal(2.0, 1.0, (60, 400))
    interval = stats.bootstrap(values, resamples=2_000, level=0.9)
    assert interval.low.shape == interval.high.shape == interval.estimate.shape == (400,)
    held = ((interval.low <= 2.0) & (interval.high >= 2.0)).mean()
    assert 0.85 <= held <= 0.94
    width = (interval.high - interval.low).mean()
    assert width == pytest.approx(2 * 1.645 / math.sqrt(60), rel=0.05)


def test_bootstrap_mean_is_the_general_path() -> None:
    """Products with counts give what gathering the rows gives, for every shape."""
    values = np.random.default_rng(1).random((7, 2, 3))
    fast = stats.bootstrap(values, resamples=300, seed=5)
    slow = stats.bootstrap(values, lambda x, axis: x.mean(axis=axis), 300, seed=5)
    for mine, theirs in zip(fast, slow, strict=True):
        assert mine.shape == (2, 3)
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)
    one = stats.bootstrap(values[:, 1, 2], resamples=300, seed=5)
    assert isinstance(one.low, float)
    np.testing.assert_allclose(one, [part[1, 2] for part in fast], rtol=1e-12)  # columns share their draws
    assert stats.bootstrap(np.ones((4, 0))).low.shape == (0,)


def test_bootstrap_of_a_ratio() -> None:
    """A statistic of several columns: sinks on newlines over all sinks."""
    values = np.array([[1.0, 4.0], [3.0, 4.0], [5.0, 20.0]])
    interval = stats.bootstrap(values, lambda x, axis: x[..., 0].sum(axis) / x[..., 1].sum(axis))
    assert interval.estimate == 9 / 28
    assert (interval.low, interval.high) == (0.25, 0.75)


def test_seeds_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((21, 5)), rng.random((21, 5))

    def everything(seed: int) -> np.ndarray:
        median = stats.bootstrap(a, np.median, resamples=200, seed=seed)
        return np.array(
            [*stats.bootstrap(a, resamples=200, seed=seed), *median, *stats.paired_difference(a, b, 200, seed=seed)]
        )

    first = everything(0)
    np.testing.assert_array_equal(everything(0), first)
    assert (everything(1)[[1, 2, 4, 5, 7, 8, 9]] != first[[1, 2, 4, 5, 7, 8, 9]]).any(axis=1).all()
    for chunk in (1, 64, 777):
        monkeypatch.setattr(stats, "CHUNK", chunk)
        np.testing.assert_allclose(everything(0), first, rtol=1e-12)


def test_memory_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch of resamples is larger than the limit, whatever the shapes."""
    monkeypatch.setattr(stats, "CHUNK", 5_000)
    sizes = []

    def mean(values: np.ndarray, axis: int) -> np.ndarray:
        sizes.append(values.size)
        return values.mean(axis=axis)

    stats.bootstrap(np.random.default_rng(0).random((30, 70)), mean, resamples=501)
    assert max(sizes) <= 5_000 and sum(sizes) == (1 + 501) * 30 * 70


def test_the_draws_are_scipys() -> None:
    """The same seed gives the limits that SciPy's own call on plain values gives."""
    values = np.random.default_rng(1).random(40)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=700, method="percentile", rng=np.random.default_rng(5)
    )
    mine = stats.bootstrap(values, resamples=700, seed=5)
    assert (mine.low, mine.high) == pytest.approx(tuple(theirs.confidence_interval), rel=1e-12)


def test_paired_difference_tries_every_sign_flip() -> None:
    rng = np.random.default_rng(4)
    for n in (1, 2, 7, 12):
        a, b = rng.normal(0.4, 1, n), rng.normal(0, 1, n)
        gaps = a - b
        flips = [sum(s * g for s, g in zip(signs, gaps, strict=True)) for signs in itertools.product((1, -1), repeat=n)]
        share = sum(abs(f) >= abs(gaps.sum()) - 1e-9 for f in flips) / 2**n
        result = stats.paired_difference(a, b, resamples=100)
        assert result.p == pytest.approx(share, rel=1e-12)
        assert result.estimate == pytest.approx(gaps.mean())
        assert result[:3] == stats.bootstrap(gaps, resamples=100)


def test_paired_difference_by_random_flips() -> None:
    """Fisher's count for 16 prompts, all 2**16 flips, against the random ones; and prompts that all differ alike."""
    gaps = np.random.default_rng(9).normal(0.5, 1, 16)
    signs = np.array(list(itertools.product((1, -1), repeat=16)))
    share = (np.abs(signs @ gaps) >= abs(gaps.sum()) - 1e-9).mean()
    result = stats.paired_difference(gaps, np.zeros(16), resamples=40_000)
    assert result.p == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 40_000))
    assert result.p not in (share, 0)
    certain = stats.paired_difference(np.ones(200), np.zeros(200), resamples=999)
    assert certain == (1.0, 1.0, 1.0, 1 / 1000)
    same = stats.paired_difference(np.ones(200), np.ones(200), resamples=99)
    assert same == (0.0, 0.0, 0.0, 1.0)


def test_sums_equal_but_for_rounding_count_as_equal() -> None:
    """0.1 + 0.2 - 0.3 is zero on paper: no flip of the signs is less extreme."""
    assert stats.paired_difference(np.array([0.1, 0.2, -0.3]), np.zeros(3)).p == 1.0


def test_paired_difference_of_many_columns() -> None:
    rng = np.random.default_rng(2)
    for n in (6, 40):
        a, b = rng.random((n, 2, 3)), rng.random((n, 2, 3))
        result = stats.paired_difference(a, b, resamples=500)
        assert result.p.shape == result.low.shape == (2, 3)
        one = stats.paired_difference(a[:, 1, 0], b[:, 1, 0], resamples=500)
        np.testing.assert_allclose(one, [part[1, 0] for part in result], rtol=1e-12)


def pairs(both: int, only_a: int, only_b: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    a = np.repeat([True, True, False, False], [both, only_a, only_b, neither])
    b = np.repeat([True, False, True, False], [both, only_a, only_b, neither])
    return a, b


@pytest.mark.parametrize(
    ("only_a", "only_b"), [(0, 0), (0, 1), (5, 0), (1, 7), (12, 4), (9, 9), (121, 59), (10, 40), (480, 500), (520, 520)]
)
def test_mcnemar_by_hand(only_a: int, only_b: int) -> None:
    n = only_a + only_b
    tail = sum(math.comb(n, k) for k in range(min(only_a, only_b) + 1))
    result = stats.mcnemar(*pairs(30, only_a, only_b, 11))
    assert result[:2] == (only_a, only_b)
    assert result.p == pytest.approx(float(min(Fraction(1), 2 * Fraction(tail, 2**n))), rel=1e-11)
    assert result.p == stats.mcnemar(*pairs(0, only_b, only_a, 500)).p  # neither the order nor the agreements matter


def test_mcnemar_published_value() -> None:
    """Severe colds at 12 and 14 years (Altman and Bland; 144 children only before, 256 only after): chi-squared 31.4, whose
    tail of 2.1e-8 the exact test comes close to; and five of five, whose exact P is 1/16."""
    assert stats.mcnemar(*pairs(212, 144, 256, 707)).p == pytest.approx(2.1e-8, rel=0.15)
    assert stats.mcnemar(*pairs(0, 0, 5, 0)).p == 0.0625


def test_mcnemar_of_many_pairs() -> None:
    """Far into the tail it agrees with whole numbers; no overflow beyond."""
    for only_a, only_b in ((400, 900), (10, 990), (0, 1000), (1200, 1210), (800, 1800), (3, 1021)):
        n = only_a + only_b
        tail = Fraction(2 * sum(math.comb(n, k) for k in range(only_a + 1)), 2**n)
        assert stats.mcnemar(*pairs(0, only_a, only_b, 0)).p == pytest.approx(float(min(Fraction(1), tail)), rel=1e-9)
    assert 0 <= stats.mcnemar(*pairs(0, 30_000, 31_000, 0)).p < 1e-4
    assert stats.mcnemar(*pairs(0, 30_000, 30_000, 0)).p == 1.0


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: stats.bootstrap([]), "at least one prompt"),
        (lambda: stats.bootstrap(3.0), "at least one prompt"),
        (lambda: stats.bootstrap([1.0, math.nan]), "prompt 1 has NaN"),
        (lambda: stats.bootstrap([math.inf, 1.0]), "values must hold finite numbers"),
        (lambda: stats.bootstrap(["a", "b"]), "values must be an array of numbers"),
        (lambda: stats.bootstrap([[1.0], [1.0, 2.0]]), "values must be an array of numbers"),
        (lambda: stats.bootstrap([1.0], resamples=0), "resamples must be a positive whole number"),
        (lambda: stats.bootstrap([1.0], level=1.0), "level must be a finite number above 0 and below 1"),
        (lambda: stats.bootstrap([1.0, 2.0], lambda x, axis: x.sum(axis) * math.nan), "NaN for some resamples"),
        (lambda: stats.wilson(1, 0), "n must be a positive whole number"),
        (lambda: stats.wilson(-1, 3), "successes must be a whole number of 0 or more"),
        (lambda: stats.wilson(4, 3), "4 successes"),
        (lambda: stats.wilson(0.5, 3), "successes must be a whole number"),  # type: ignore[arg-type]
        (lambda: stats.wilson(1, 3, level=0), "level must be a finite number above 0 and below 1"),
        (lambda: stats.paired_difference([1.0], [1.0, 2.0]), r"same prompts .* \(1,\) and \(2,\)"),
        (lambda: stats.paired_difference([1.0], [math.nan]), "^b must be finite"),
        (lambda: stats.mcnemar([True], [True, False]), "same prompts"),
        (lambda: stats.mcnemar([0.5], [1.0]), "right .1. or wrong"),
        (lambda: stats.mcnemar([[True]], [[True]]), "one right"),
    ],
)
def test_mistakes_are_named(call: object, complaint: str) -> None:
    with pytest.raises(JaxsinkError, match=complaint):
        call()  # type: ignore[operator]


def split_probabilities(right_a: int, n_a: int, right_b: int, n_b: int) -> Fraction:
    """Fisher's p by listing every way in which the right answers can fall among all."""
    right = right_a + right_b
    chance = {
        a: Fraction(math.comb(n_a, a) * math.comb(n_b, right - a), math.comb(n_a + n_b, right))
        for a in range(right + 1)
        if a <= n_a and right - a <= n_b
    }
    return sum((p for p in chance.values() if p <= chance[right_a]), Fraction(0))


def test_fisher_by_hand() -> None:
    assert stats.fisher(8, 10, 1, 6) == pytest.approx(0.0350, abs=1e-4)  # the usual textbook table
    for counts in ((0, 3, 0, 5), (3, 3, 5, 5), (5, 10, 5, 10), (1, 1, 0, 9), (30, 41, 9, 50), (7, 164, 90, 1319)):
        assert stats.fisher(*counts) == pytest.approx(float(split_probabilities(*counts)), rel=1e-12)
        assert stats.fisher(*counts) == pytest.approx(stats.fisher(*counts[2:], *counts[:2]), rel=1e-12)
    assert 0 <= stats.fisher(1319, 1319, 0, 1319) < 1e-300  # no overflow


def test_holm_by_hand() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.5, 0.9]) == [1.0, 1.0] and stats.holm([]) == [] and stats.holm([0.2]) == [0.2]


@pytest.mark.parametrize(
    ("counts", "complaint"),
    [((1, 0, 0, 1), "n_a must"), ((-1, 3, 0, 1), "right_a must"), ((0, 1, 4, 3), "4 right out of 3")],
)
def test_fisher_refuses_what_is_no_count(counts: tuple[int, int, int, int], complaint: str) -> None:
    with pytest.raises(JaxsinkError, match=complaint):
        stats.fisher(*counts)
