"""Problems that differ in words alone count as one: intervals and tests of an evaluation know it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

import jaxsink
from jaxsink.errors import JaxsinkError
from jaxsink.evals.conditions import Comparison
from jaxsink.evals.statistics import clustered_mean, clustered_share, mcnemar, wilson
from jaxsink.evals.summary import accuracies, compared, compared_likelihoods, repeated

PAIR = Comparison("K = 1, top", "K = 0", "plain")


def lines(right: list[bool], clusters: list[str] | None) -> list[dict[str, Any]]:
    rest = {"unfinished": False, "empty": False, "zlib": 1.0, "repeated": 0.0}
    found = [{"task_id": f"t/{n}", "correct": bool(hit), **rest} for n, hit in enumerate(right)]
    return found if clusters is None else [{**line, "cluster": c} for line, c in zip(found, clusters, strict=True)]


def test_only_repeated_problems_are_clusters() -> None:
    assert repeated(lines([True] * 3, None)) is None
    assert repeated(lines([True] * 3, ["a", "b", "c"])) is None
    assert repeated(lines([True] * 3, ["a", "b", "a"])) == ["a", "b", "a"]


def test_copies_of_problems_do_not_narrow_the_interval() -> None:
    right = ([True] * 7 + [False] * 3) * 4
    alone = accuracies(lines(right, None))
    assert (alone["low"], alone["high"]) == tuple(wilson(28, 40))[1:]
    copied = accuracies(lines(right, [f"p{n % 10}" for n in range(40)]))
    assert copied["accuracy"] == alone["accuracy"] and 0 <= copied["low"] < copied["high"] <= 1
    assert copied["high"] - copied["low"] > 1.3 * (alone["high"] - alone["low"])
    every = accuracies(lines([True] * 8, ["a", "b"] * 4))
    assert every["accuracy"] == every["high"] == 1 and every["low"] < 0.9  # all right in two problems is no certainty


def test_copies_of_problems_do_not_make_a_difference_certain() -> None:
    first, second = [False, True, True, True] * 8, [True, True, True, False] * 8
    first[4] = True
    plain = {"K = 1, top": lines(first, None), "K = 0": lines(second, None)}
    assert compared(PAIR, plain)["p"] == mcnemar(first, second).p
    worse = [False] * 6 + [True] * 26
    clusters = ["same"] * 6 + [f"p{n}" for n in range(26)]
    certain = compared(PAIR, {"K = 1, top": lines(worse, None), "K = 0": lines([True] * 32, None)})["p"]
    honest = compared(PAIR, {"K = 1, top": lines(worse, clusters), "K = 0": lines([True] * 32, clusters)})["p"]
    assert certain < 0.05 < honest


def test_likelihoods_are_compared_by_cluster() -> None:
    draw = np.random.default_rng(3)
    of_problem = np.repeat(draw.normal(size=6), 5)
    clusters = [f"p{n // 5}" for n in range(30)]

    def given(values: np.ndarray) -> list[dict[str, Any]]:
        return [
            {"task_id": f"t/{n}", "cluster": clusters[n], "log_prob": float(value), "tokens": 2, "kl": 0.0}
            for n, value in enumerate(values)
        ]

    gaps = of_problem + 0.01 * draw.normal(size=30)
    found = compared_likelihoods(PAIR, {"K = 1, top": given(gaps), "K = 0": given(np.zeros(30))})
    known = clustered_mean(gaps / 2, clusters)
    assert (found["low"], found["high"]) == pytest.approx(known.interval())
    assert found["p"] == pytest.approx(2 * stats.t.sf(abs(known.value / known.error), 5))


def test_a_clustered_share_of_single_problems_is_nearly_wilsons() -> None:
    right = np.arange(60) < 42
    low, high = clustered_share(right).interval()
    _, wanted_low, wanted_high = wilson(42, 60)
    assert abs(low - wanted_low) < 0.02 and abs(high - wanted_high) < 0.02


def test_an_option_that_there_is_not_is_named(tmp_path) -> None:
    with pytest.raises(JaxsinkError, match="limits"):
        jaxsink.evaluate("mini-llada", "task", tmp_path / "out", limits=3)
