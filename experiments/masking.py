"""Shared by the masking experiments: conditions, accuracies with intervals, and tests against the unmasked model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxsink.evals.conditions import PLAIN, Condition, hide
from jaxsink.evals.statistics import mcnemar, wilson
from jaxsink.sinks.mask import SELECTIONS
from jaxsink.study import Recorded, Scores, Subject

NOTE = "95 % Wilson intervals; exact McNemar tests on the same problems"
STATISTIC = "share of problems solved"
NULL = "as many random keys hidden, on the same problems (McNemar's exact test)"


def no_generations(subject: Subject) -> dict[str, Recorded]:
    """Only answers are looked at."""
    return {}


def with_controls(counts: Iterable[int]) -> tuple[Condition, ...]:
    """The top-K sinks and both controls, for each K."""
    return tuple(hide(k, select) for select in SELECTIONS for k in counts)


TABLE1 = (PLAIN, *with_controls((1, 5, 10)))


def table1(subject: Subject) -> Sequence[Condition]:
    return TABLE1


def row(subject: Subject, condition: Condition, right: np.ndarray, plain: np.ndarray) -> dict[str, Any]:
    """A line of a table: accuracy with Wilson's interval, and McNemar's exact test on the same problems."""
    interval, test = wilson(int(right.sum()), len(right)), mcnemar(plain, right)
    return {
        "model": subject.name,
        "condition": str(condition),
        "right": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "problems": len(right),
        "lost": test.only_a,
        "gained": test.only_b,
        "p against K = 0": test.p,
    }


def rows(subject: Subject, right: Scores, plain: np.ndarray) -> list[dict[str, Any]]:
    return [row(subject, condition, value, plain) for condition, value in right.items()]


def worse(one: np.ndarray, other: np.ndarray, level: float = 0.05) -> bool:
    """One condition solves significantly fewer of the same problems."""
    test = mcnemar(one, other)
    return test.only_a < test.only_b and test.p < level


def percent(right: np.ndarray) -> str:
    share, low, high = wilson(int(right.sum()), len(right))
    return f"{share:.0%} [{low:.0%}, {high:.0%}]"
