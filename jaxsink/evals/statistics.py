"""Statistics over prompts: confidence intervals, paired differences, McNemar's and Fisher's tests, Holm's correction.

Prompts are what is drawn at random, so they are axis 0 everywhere and what is resampled. Everything is seeded. The tests
themselves are SciPy's; here are the forms in which a study needs them, and what is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from jaxsink.checks import NAN_TOO, Range, at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError

CHUNK = 2**22  # numbers held at a time, about; results do not depend on it
EXACT_FLIPS = 12  # up to so many prompts all sign flips are tried
INSIDE = Range(0, 1, frozenset({0, 1}))


Clusters = Sequence[str] | np.ndarray
"""What each value belongs to: values of one cluster are not independent."""


class Interval(NamedTuple):
    """A value and its confidence limits: floats, or arrays of one shape.

    Examples:
        >>> found = jaxsink.stats.wilson(42, 50)
        >>> round(found.estimate, 2), round(found.low, 2), round(found.high, 2)
        (0.84, 0.71, 0.92)
    """

    estimate: Any
    low: Any
    high: Any


class Difference(NamedTuple):
    """a − b over the same prompts: the mean difference, its confidence limits, and a two-sided p-value.

    Examples:
        >>> found = jaxsink.stats.paired_difference([1, 1, 1, 1, 0, 1], [0, 0, 1, 0, 0, 0])
        >>> round(found.estimate, 2), round(found.p, 3)
        (0.67, 0.125)
    """

    estimate: Any
    low: Any
    high: Any
    p: Any


class Estimate(NamedTuple):
    """A mean, its standard error, and the degrees of freedom of its t-distribution.

    Examples:
        >>> found = jaxsink.stats.clustered_mean([1.0, 2.0, 3.0, 4.0])
        >>> found.value, round(found.error, 3), found.freedom
        (2.5, 0.645, 3.0)
        >>> [round(end, 2) for end in found.interval()]
        [0.45, 4.55]
        >>> round(found.p_above(), 4), round(found.p_below(), 4), round(found.p_two_sided(), 4)
        (0.0152, 0.9848, 0.0305)
    """

    value: float
    error: float
    freedom: float

    @checked(level=INSIDE)
    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """(low, high)"""
        reach = float(stats.t.ppf((1 + level) / 2, self.freedom)) * self.error
        return self.value - reach, self.value + reach

    def p_above(self) -> float:
        """One-sided p of the true value being 0 or less."""
        if self.error == 0:
            return 0.0 if self.value > 0 else 1.0
        return float(stats.t.sf(self.value / self.error, self.freedom))

    def p_two_sided(self) -> float:
        """Of the true value being 0."""
        return min(1.0, 2 * min(self.p_above(), self.p_below()))

    def p_below(self) -> float:
        """One-sided p of the true value being 0 or more."""
        return self._replace(value=-self.value).p_above()


class McNemar(NamedTuple):
    """Two conditions on the same prompts: prompts only one of them gets right, and the exact two-sided p-value.

    Examples:
        >>> jaxsink.stats.mcnemar([True, True, True, False], [False, False, True, False])
        McNemar(only_a=2, only_b=0, p=0.5)
    """

    only_a: int
    only_b: int
    p: float


@checked(values=NAN_TOO, resamples=at_least(1), level=INSIDE, seed=at_least(0))
def bootstrap(
    values: ArrayLike,
    statistic: Callable[..., Any] = np.mean,
    resamples: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap over prompts.

    Args:
        values: [N, ...]
        statistic: f(values, axis=...), as np.mean or np.median; it gets many resamples at once, [R, N, ...] with axis=1
        resamples: how many are drawn
        level: of the interval
        seed: of the draws

    Examples:
        >>> found = jaxsink.stats.bootstrap([1.0, 2.0, 3.0, 4.0], np.median)
        >>> found.estimate, found.low < found.high
        (2.5, True)
    """
    data = _numbers("values", values)
    estimate = np.asarray(statistic(data, axis=0), np.float64)
    if len(data) == 1 or estimate.size == 0:  # every resample is the sample
        return Interval(*map(_plain, (estimate, estimate, estimate)))

    def of_prompts(index: np.ndarray, axis: int) -> np.ndarray:
        """[..., R] for i64[R,N]: which prompts each resample takes."""
        found = np.asarray(statistic(data[index], axis=1))
        if np.isnan(found).any():
            raise JaxsinkError(
                "bootstrap: the statistic is NaN for some resamples; use one that every draw of prompts has."
            )
        return np.moveaxis(found, 0, -1)

    ends = stats.bootstrap(
        (np.arange(len(data)),),
        of_prompts,
        n_resamples=resamples,
        batch=_batch(data),
        vectorized=True,
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(_plain(estimate), _plain(ends.low), _plain(ends.high))


@checked(values=NAN_TOO)
def clustered_mean(values: ArrayLike, clusters: Clusters | None = None) -> Estimate:
    """The mean of values that are drawn in clusters (problems that repeat), with a standard error that knows it.

    One cluster alone has an infinite error.

    Args:
        values: [N]; those that are NaN do not count
        clusters: the name of each value's cluster; None: each value is a cluster of its own

    Examples:
        >>> found = jaxsink.stats.clustered_mean([1.0, 1.0, 3.0, 3.0], ["a", "a", "b", "b"])
        >>> found.value, found.freedom
        (2.0, 1.0)
    """
    data = np.asarray(values, np.float64)
    if data.ndim != 1:
        raise JaxsinkError(f"clustered_mean: values must be an array of numbers [N], not of shape {data.shape}.")
    there = ~np.isnan(data)
    names = np.arange(len(data)) if clusters is None else np.asarray(clusters)
    if names.shape != data.shape:
        raise JaxsinkError(f"clustered_mean: {data.shape} values do not fit {names.shape} names of clusters.")
    if not there.any():
        raise JaxsinkError("clustered_mean: there is no value.")
    _, cluster = np.unique(names[there], return_inverse=True)
    mean, count = data[there].mean(), int(cluster.max()) + 1
    if count == 1:
        return Estimate(float(mean), float("inf"), 1.0)
    residuals = np.bincount(cluster, data[there] - mean)
    error = np.sqrt(count / (count - 1) * (residuals**2).sum()) / there.sum()
    return Estimate(float(mean), float(error), float(count - 1))


@checked(right=NAN_TOO)
def clustered_share(right: ArrayLike, clusters: Clusters | None = None) -> Estimate:
    """The share of right (1) among right and wrong (0) answers that are drawn in clusters.

    The error counts one more right and one more wrong answer, so that all right in a few is not taken for certainty.

    Examples:
        >>> round(jaxsink.stats.clustered_share([1, 1, 1, 0]).value, 2)
        0.75
    """
    known = _numbers("right", right)
    names = [str(n) for n in range(len(known))] if clusters is None else list(clusters)
    more = clustered_mean([*known, 1.0, 0.0], [*names, "one right", "one wrong"])
    return Estimate(float(known.mean()), more.error, more.freedom)


@checked(a=NAN_TOO, b=NAN_TOO)
def paired_shares(a: ArrayLike, b: ArrayLike, clusters: Clusters | None = None) -> Estimate:
    """The share of a minus the share of b, for right (1) and wrong (0) on the same problems.

    The error counts one more problem that only a solves and one that only b solves, so that no difference at all in a few
    problems is not taken for certainty (after Agresti and Min).

    Examples:
        >>> found = jaxsink.stats.paired_shares([1, 1, 0, 1], [0, 1, 0, 0])
        >>> found.value, found.error > 0
        (0.5, True)
    """
    first, second = _pair(a, b)
    if first.ndim != 1 or not np.isin([first, second], (0, 1)).all():
        raise JaxsinkError("paired_shares: both conditions must be one right (1) or wrong (0) per problem.")
    gaps, names = first - second, [str(n) for n in range(len(first))] if clusters is None else list(clusters)
    known = clustered_mean([*gaps, 1.0, -1.0], [*names, "only a", "only b"])
    return Estimate(float(gaps.mean()), known.error, known.freedom)


@checked(successes=at_least(0), n=at_least(1), level=INSIDE)
def wilson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval for an accuracy; it never leaves [0, 1].

    Args:
        successes: right answers
        n: answers
        level: of the interval

    Examples:
        >>> found = jaxsink.stats.wilson(42, 50)
        >>> round(found.estimate, 2), round(found.low, 2), round(found.high, 2)
        (0.84, 0.71, 0.92)
    """
    if successes > n:
        raise JaxsinkError(f"wilson: {successes} successes out of {n} is not a count out of at least one.")
    ends = stats.binomtest(int(successes), int(n)).proportion_ci(level, method="wilson")
    return Interval(successes / n, float(ends.low), float(ends.high))


@checked(a=NAN_TOO, b=NAN_TOO, resamples=at_least(1), level=INSIDE, seed=at_least(0))
def paired_difference(
    a: ArrayLike, b: ArrayLike, resamples: int = 10_000, level: float = 0.95, seed: int = 0
) -> Difference:
    """Mean of a − b, [N, ...] each; entry i of both belongs to the same prompt.

    The interval is the bootstrap's. p is the share of sign flips of the differences whose mean is at least as far from 0:
    all of them for up to EXACT_FLIPS prompts, else `resamples` random ones and the observed one.

    Examples:
        >>> found = jaxsink.stats.paired_difference([1, 1, 1, 1, 0, 1], [0, 0, 1, 0, 0, 0])
        >>> round(found.estimate, 2), round(found.p, 3)
        (0.67, 0.125)
    """
    first, second = _pair(a, b)
    gaps = first - second
    interval = bootstrap(gaps, resamples=resamples, level=level, seed=seed)
    if len(gaps) == 1:
        return Difference(*interval, p=_plain(np.ones(gaps.shape[1:])))
    p = stats.permutation_test(
        (gaps,),
        lambda flipped, axis: np.abs(flipped.mean(axis=axis)),
        permutation_type="samples",
        alternative="greater",
        vectorized=True,
        n_resamples=max(resamples, 2**EXACT_FLIPS) if len(gaps) <= EXACT_FLIPS else resamples,
        batch=_batch(gaps),
        axis=0,
        rng=np.random.default_rng([seed, 1]),  # not the bootstrap's draws
    ).pvalue
    return Difference(*interval, p=_plain(p))


@checked(a=NAN_TOO, b=NAN_TOO)
def mcnemar(a: ArrayLike, b: ArrayLike) -> McNemar:
    """McNemar's exact test: a, b bool[N] say which prompts are right under two conditions.

    Given how many prompts only one condition gets right, which of the two it is would be a fair coin's choice.

    Examples:
        >>> jaxsink.stats.mcnemar([True, True, True, False], [False, False, True, False])
        McNemar(only_a=2, only_b=0, p=0.5)
    """
    first, second = _pair(a, b)
    if first.ndim != 1 or not np.isin([first, second], (0, 1)).all():
        raise JaxsinkError("mcnemar: both conditions must be one right (1) or wrong (0) per prompt.")
    only_a, only_b = int((first > second).sum()), int((first < second).sum())
    differ = only_a + only_b
    return McNemar(only_a, only_b, float(stats.binomtest(only_a, differ).pvalue) if differ else 1.0)


@checked(right_a=at_least(0), n_a=at_least(1), right_b=at_least(0), n_b=at_least(1))
def fisher(right_a: int, n_a: int, right_b: int, n_b: int) -> float:
    """Fisher's exact test, two-sided: could `right_a` out of `n_a` and `right_b` out of `n_b` have one accuracy?

    Given all right answers together, p is the probability of every split between the two that is no likelier than this one.

    Examples:
        >>> round(jaxsink.stats.fisher(9, 10, 2, 10), 4)
        0.0055
    """
    for right, n in ((right_a, n_a), (right_b, n_b)):
        if right > n:
            raise JaxsinkError(f"fisher: {right} right out of {n} is not a count out of at least one.")
    found: Any = stats.fisher_exact([[right_a, n_a - right_a], [right_b, n_b - right_b]])
    return float(found.pvalue)


@checked(p_values=Range(0, 1))
def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction for many tests: each p as it must be read so that all tests together err with the usual chance.

    Examples:
        >>> jaxsink.stats.holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, number in enumerate(sorted(range(len(p_values)), key=lambda n: p_values[n])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[number]))
        corrected[number] = largest
    return corrected


def _batch(data: np.ndarray) -> int:
    """Resamples of the data that are held at a time."""
    return max(1, CHUNK // max(1, data.size))


def _plain(value: Any) -> Any:
    """A float for one number, else the array."""
    return float(value) if np.ndim(value) == 0 else np.asarray(value)


def _numbers(name: str, values: ArrayLike) -> np.ndarray:
    try:
        data = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise JaxsinkError(f"{name} must be numbers in an array whose first axis is the prompts.") from error
    if data.ndim == 0 or len(data) == 0:
        raise JaxsinkError(
            f"{name} must hold at least one prompt along the first axis, and has the shape {data.shape}."
        )
    if not np.isfinite(data).all():
        raise JaxsinkError(
            f"{name} must be finite, but prompt {np.argwhere(~np.isfinite(data))[0][0]} has NaN or infinity."
        )
    return data


def _pair(a: ArrayLike, b: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    first, second = _numbers("a", a), _numbers("b", b)
    if first.shape != second.shape:
        raise JaxsinkError(f"a and b must be the same prompts in the same order, not {first.shape} and {second.shape}.")
    return first, second
