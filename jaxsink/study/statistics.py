"""Statistics over prompts: confidence intervals, paired differences, McNemar's and Fisher's tests, Holm's correction.

Prompts are what is drawn at random, so they are axis 0 everywhere and what is resampled. Everything is seeded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from jaxsink.errors import JaxsinkError

CHUNK = 2**22  # numbers held at a time, about; results do not depend on it
EXACT_FLIPS = 12  # up to so many prompts all sign flips are tried
EXACT_PAIRS = 1000  # up to so many discordant pairs McNemar's test counts in whole numbers


class Interval(NamedTuple):
    """A value and its confidence limits: floats, or arrays of one shape."""

    estimate: Any
    low: Any
    high: Any


class Difference(NamedTuple):
    """a − b over the same prompts: the mean difference, its confidence limits, and a two-sided p-value."""

    estimate: Any
    low: Any
    high: Any
    p: Any


class McNemar(NamedTuple):
    """Two conditions on the same prompts: prompts only one of them gets right, and the exact two-sided p-value."""

    only_a: int
    only_b: int
    p: float


def bootstrap(
    values: Any,
    statistic: Callable[..., Any] = np.mean,
    resamples: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap over prompts, for values [N, ...].

    statistic: f(values, axis=...), as np.mean or np.median; it gets many resamples at once, [R, N, ...] with axis=1.
    """
    data = _numbers("values", values)
    _check_settings(resamples, level)
    estimate = np.asarray(statistic(data, axis=0), np.float64)
    if statistic is np.mean:
        columns = data.reshape(len(data), -1)
        block = max(1, CHUNK // resamples)
        limits = [
            _percentiles(_means(columns[:, first : first + block], resamples, seed), level)
            for first in range(0, columns.shape[1], block)
        ]
        ends = np.concatenate(limits, axis=1) if limits else np.zeros((2, 0))
        ends = ends.reshape(2, *estimate.shape)
    else:
        samples = _draws(len(data), resamples, seed, data.size)
        ends = _percentiles(np.concatenate([np.asarray(statistic(data[index], axis=1)) for index in samples]), level)
    return Interval(_plain(estimate), _plain(ends[0]), _plain(ends[1]))


def wilson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval for an accuracy of `successes` out of `n`; it never leaves [0, 1]."""
    _check_settings(1, level)
    if n < 1 or not 0 <= successes <= n or int(n) != n or int(successes) != successes:
        raise JaxsinkError(f"wilson: {successes} successes out of {n} is not a count out of at least one.")
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Interval(
        share, 0.0 if successes == 0 else max(0.0, centre - half), 1.0 if successes == n else min(1.0, centre + half)
    )


def paired_difference(a: Any, b: Any, resamples: int = 10_000, level: float = 0.95, seed: int = 0) -> Difference:
    """Mean of a − b, [N, ...] each; entry i of both belongs to the same prompt.

    The interval is the bootstrap's. p is the share of sign flips of the differences whose mean is at least as far from 0:
    all of them for up to EXACT_FLIPS prompts, else `resamples` random ones and the observed one.
    """
    first, second = _pair(a, b)
    gaps = first - second
    interval = bootstrap(gaps, resamples=resamples, level=level, seed=seed)
    columns = gaps.reshape(len(gaps), -1)
    observed = np.abs(columns.sum(axis=0))
    edge = observed - 1e-12 * np.abs(columns).sum(axis=0)  # sums that differ in rounding only are equal
    exact = len(gaps) <= EXACT_FLIPS
    extreme, tried = np.zeros(columns.shape[1]), 0
    for signs in _all_signs(len(gaps)) if exact else _random_signs(len(gaps), resamples, seed, columns.shape[1]):
        extreme += (np.abs(signs @ columns) >= edge).sum(axis=0)
        tried += len(signs)
    p = extreme / tried if exact else (extreme + 1) / (tried + 1)
    return Difference(*interval, p=_plain(p.reshape(gaps.shape[1:])))


def mcnemar(a: Any, b: Any) -> McNemar:
    """McNemar's exact test: a, b bool[N] say which prompts are right under two conditions.

    Given how many prompts only one condition gets right, which of the two it is would be a fair coin's choice.
    """
    first, second = _pair(a, b)
    if first.ndim != 1 or not np.isin([first, second], (0, 1)).all():
        raise JaxsinkError("mcnemar: both conditions must be one right (1) or wrong (0) per prompt.")
    only_a, only_b = int((first > second).sum()), int((first < second).sum())
    return McNemar(only_a, only_b, _two_sided(min(only_a, only_b), only_a + only_b))


def fisher(right_a: int, n_a: int, right_b: int, n_b: int) -> float:
    """Fisher's exact test, two-sided: could `right_a` out of `n_a` and `right_b` out of `n_b` have one accuracy?

    Given all right answers together, p is the probability of every split between the two that is no likelier than this one.
    """
    for right, n in ((right_a, n_a), (right_b, n_b)):
        if n < 1 or not 0 <= right <= n:
            raise JaxsinkError(f"fisher: {right} right out of {n} is not a count out of at least one.")
    right = right_a + right_b
    first, last = max(0, right - n_b), min(n_a, right)
    ways = [math.comb(n_a, first) * math.comb(n_b, right - first)]  # in which a share of the right answers can be a's
    for a in range(first, last):
        ways.append(ways[-1] * (n_a - a) * (right - a) // ((a + 1) * (n_b - right + a + 1)))
    return sum(count for count in ways if count <= ways[right_a - first]) / math.comb(n_a + n_b, right)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction for many tests: each p as it must be read so that all tests together err with the usual chance."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, number in enumerate(sorted(range(len(p_values)), key=lambda n: p_values[n])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[number]))
        corrected[number] = largest
    return corrected


def _two_sided(few: int, n: int) -> float:
    """min(1, 2 P(X ≤ few)) for X binomial(n, 1/2), few ≤ n / 2."""
    if n <= EXACT_PAIRS:
        return min(1.0, 2 * sum(math.comb(n, k) for k in range(few + 1)) / 2**n)
    whole = math.lgamma(n + 1) - n * math.log(2)
    terms = (math.exp(whole - math.lgamma(k + 1) - math.lgamma(n - k + 1)) for k in range(few + 1))
    return min(1.0, 2 * math.fsum(terms))


def _draws(n: int, resamples: int, seed: int, width: int) -> Iterator[np.ndarray]:
    """Which of N observations each resample takes, chunk by chunk; `width`: numbers one resample needs."""
    rng = np.random.default_rng(seed)
    for count in _chunk_sizes(resamples, max(n, width)):
        yield rng.integers(0, n, (count, n))


def _means(columns: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """f64[resamples,K]: means of resampled observations [N,K], as products with how often each was drawn."""
    n = len(columns)
    parts = []
    for index in _draws(n, resamples, seed, columns.shape[1]):
        index += n * np.arange(len(index))[:, None]
        times = np.bincount(index.ravel(), minlength=index.size).reshape(index.shape)
        parts.append(times.astype(np.float64) @ columns / n)
    return np.concatenate(parts)


def _random_signs(n: int, resamples: int, seed: int, width: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng([seed, 1])  # not the bootstrap's draws
    for count in _chunk_sizes(resamples, max(n, width)):
        yield rng.integers(0, 2, (count, n)) * 2.0 - 1.0


def _all_signs(n: int) -> Iterator[np.ndarray]:
    for first in (1.0, -1.0):
        yield np.array([(first, *rest) for rest in itertools.product((1.0, -1.0), repeat=n - 1)])


def _chunk_sizes(total: int, width: int) -> Iterator[int]:
    size = max(1, CHUNK // width)
    for first in range(0, total, size):
        yield min(size, total - first)


def _percentiles(samples: np.ndarray, level: float) -> np.ndarray:
    """f64[2,...] of samples [R,...]."""
    if np.isnan(samples).any():
        raise JaxsinkError(
            "bootstrap: the statistic is NaN for some resamples; use one that every draw of prompts has."
        )
    return np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0)


def _plain(value: np.ndarray) -> Any:
    """A float for one number, else the array."""
    return float(value) if np.ndim(value) == 0 else value


def _numbers(name: str, values: Any) -> np.ndarray:
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


def _pair(a: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
    first, second = _numbers("a", a), _numbers("b", b)
    if first.shape != second.shape:
        raise JaxsinkError(f"a and b must be the same prompts in the same order, not {first.shape} and {second.shape}.")
    return first, second


def _check_settings(resamples: int, level: float) -> None:
    if resamples < 1:
        raise JaxsinkError(f"resamples must be at least 1, and is {resamples}.")
    if not 0 < level < 1:
        raise JaxsinkError(f"level must lie between 0 and 1, and is {level}.")
