"""What masking costs: what is compared with what, and who has nothing to lose."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jaxsink_experiments import beyond_controls, table1_masking
from jaxsink_experiments.masking import PLAIN, by_problem, has_nothing_to_lose, loss_test, lost, rows, table1

from jaxsink.evals.conditions import hide
from jaxsink.evals.statistics import clustered_mean, paired_shares
from jaxsink.study import Measured
from jaxsink.study.verdicts import decide

N = 40
CLUSTERS = [f"problem {number // 2}" for number in range(N)]
TOP, PARTNER = hide(1), hide(1, "partner")


def measured(
    solved: dict[Any, int] | None = None, nats: dict[Any, float] | None = None, is_diffusion: bool = True
) -> Measured:
    """A model that solves the first so many problems under each condition; nats per token around a mean."""
    noise = np.random.default_rng(0).normal(0, 0.1, N)
    model = SimpleNamespace(config=SimpleNamespace(vocab=100))
    subject: Any = SimpleNamespace(name="m", is_diffusion=is_diffusion, model=model)
    scores = {condition: np.arange(N) < count for condition, count in (solved or {}).items()}
    losses = {condition: mean + noise * (1 + n) for n, (condition, mean) in enumerate((nats or {}).items())}
    return Measured(subject, {}, scores, losses, {}, CLUSTERS)


def test_answers_that_are_lost_are_shares_and_likelihood_is_a_mean() -> None:
    one = measured({PLAIN: 36, TOP: 16}, {PLAIN: 1.0, TOP: 2.5})
    assert lost(one.scores[PLAIN], one.scores[TOP], CLUSTERS) == paired_shares(
        one.scores[PLAIN], one.scores[TOP], CLUSTERS
    )
    assert lost(one.scores[PLAIN], one.scores[TOP], CLUSTERS).value == pytest.approx(20 / N)
    expected = clustered_mean(one.losses[TOP] - one.losses[PLAIN], CLUSTERS)
    assert lost(one.losses[PLAIN], one.losses[TOP], CLUSTERS) == expected and expected.value == pytest.approx(
        1.5, abs=0.1
    )


def test_a_loss_is_held_against_what_controls_lose() -> None:
    one = measured({PLAIN: 36, TOP: 10, PARTNER: 30})
    test = loss_test(one, one.scores, "lost", TOP, controls={"partner keys": PARTNER})
    (comparison,) = test.comparisons
    assert test.value == pytest.approx(26 / N) and comparison.null_value == pytest.approx(6 / N)
    assert comparison.null == "partner keys" and comparison.difference == pytest.approx(20 / N)
    expected = paired_shares(one.scores[PARTNER], one.scores[TOP], CLUSTERS)
    assert (comparison.low, comparison.high) == pytest.approx(expected.interval()) and test.problems == 20
    assert decide([test])[0].verdict == "supported"
    same = measured({PLAIN: 36, TOP: 10, PARTNER: 10})
    test = loss_test(same, same.scores, "lost", TOP, controls={"partner keys": PARTNER})
    assert decide([test])[0].verdict == "undecided"
    better = measured({PLAIN: 36, TOP: 30, PARTNER: 5})
    test = loss_test(better, better.scores, "lost", TOP, controls={"partner keys": PARTNER})
    assert decide([test])[0].verdict == "refuted"


def test_a_loss_is_held_against_a_number() -> None:
    one = measured({PLAIN: 36, TOP: 8})
    for number, expected, verdict in (
        (0.2, "greater", "supported"),
        (0.2, "less", "refuted"),
        (0.7, "less", "undecided"),
    ):
        test = loss_test(one, one.scores, "lost", TOP, expected=expected, bound=("some", number))  # type: ignore[arg-type]
        assert test.comparisons[0].difference == pytest.approx(28 / N - number)
        assert decide([test])[0].verdict == verdict


def test_who_solves_nothing_has_nothing_to_lose() -> None:
    for solved, words in ((0, "it solves 0% of the problems"), (12, "it solves 30% of the problems"), (24, "")):
        one = measured({PLAIN: solved, TOP: 0})
        assert words in has_nothing_to_lose(one, one.scores)
        test = loss_test(one, one.scores, "lost", TOP, bound=("half", 0.1))
        assert decide([test])[0].verdict == ("not testable here" if words else "supported")
    for nats, words in ((np.log(100) - 0.5, "0.5"), (np.log(100) - 2, "")):
        one = measured(nats={PLAIN: nats, TOP: 9.0})
        assert words in has_nothing_to_lose(one, one.losses)
        assert bool(has_nothing_to_lose(one, one.losses)) == bool(words)
    few = Measured(one.subject, {}, {PLAIN: np.ones(N, bool)}, {}, {}, ["a", "b", "c", "d"] * 10)
    assert has_nothing_to_lose(few, few.scores) == "4 distinct problems are too few to compare"


def test_table_1_asks_what_the_paper_says_of_such_a_model() -> None:
    little = measured({PLAIN: 39, hide(1): 39, hide(5): 20})
    one, five = decide(table1_masking.claimed(little))
    assert (one.expected, one.value, five.value) == ("less", 0, pytest.approx(19 / N))
    assert one.comparisons[0].null_value == five.comparisons[0].null_value == 0.05 and five.verdict == "refuted"
    (breaks,) = decide(table1_masking.claimed(measured({PLAIN: 39, hide(1): 1}, is_diffusion=False)))
    assert (breaks.expected, breaks.comparisons[0].null_value, breaks.verdict) == ("greater", 0.5, "supported")


@pytest.mark.parametrize("is_diffusion", [True, False])
def test_controls_are_matched_to_what_they_control(is_diffusion: bool) -> None:
    subject: Any = SimpleNamespace(is_diffusion=is_diffusion)
    study: Any = None
    conditions = table1(subject, study)
    assert len(set(map(str, conditions))) == len(conditions) and conditions[0] == PLAIN
    solved, nats = dict.fromkeys(conditions, 30), dict.fromkeys(conditions, 2.0)
    tests = beyond_controls.tests(measured(solved, nats, is_diffusion))
    assert len(tests) == (4 if is_diffusion else 6)  # answers and likelihood of each
    for test in tests:
        assert [one.null for one in test.comparisons] == ["partner keys", "mass keys"]
    assert [test.statistic.split(" lost")[0] for test in tests] == [
        what for what in ("problems", "nats per token") for _ in range(len(tests) // 2)
    ]


def test_rows_and_problems_of_a_table() -> None:
    one = measured({PLAIN: 36, TOP: 16}, {PLAIN: 1.0, TOP: 2.5})
    plain, top = rows(one)
    assert (plain["solved"], top["solved"], top["lost"]) == pytest.approx((36 / N, 16 / N, 20 / N))
    assert top["more nats"] == pytest.approx(float((one.losses[TOP] - one.losses[PLAIN]).mean()))
    lines = by_problem(one)
    assert len(lines) == N and lines[16][str(TOP)] == 0 and lines[15][str(TOP)] == 1
    assert lines[3]["problem"] == "problem 1" and lines[3][f"{TOP} (nats)"] == pytest.approx(one.losses[TOP][3])
