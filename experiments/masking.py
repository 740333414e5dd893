"""Shared by the masking experiments: conditions, accuracies with intervals, and tests against the unmasked model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxsink.evals.conditions import PLAIN, Condition, hide
from jaxsink.evals.statistics import mcnemar, wilson
from jaxsink.sinks.mask import SELECTIONS
from jaxsink.study import Scores, Subject

COLUMNS = ["model", "condition", "right", "low", "high", "problems", "lost", "gained", "p against K = 0"]
NOTE = "95 % Wilson intervals; exact McNemar tests on the same problems"


def with_controls(counts: Iterable[int]) -> tuple[Condition, ...]:
    """The top-K sinks and both controls, for each K."""
    return tuple(hide(k, select) for select in SELECTIONS for k in counts)


TABLE1 = (PLAIN, *with_controls((1, 5, 10)))


def row(subject: Subject, condition: Condition, right: np.ndarray, plain: np.ndarray) -> list[Any]:
    """A line of a table: accuracy with Wilson's interval, and McNemar's exact test on the same problems."""
    interval, test = wilson(int(right.sum()), len(right)), mcnemar(plain, right)
    return [
        subject.name,
        str(condition),
        float(interval.estimate),
        float(interval.low),
        float(interval.high),
        len(right),
        test.only_a,
        test.only_b,
        float(test.p),
    ]


def rows(subject: Subject, right: Scores, plain: np.ndarray) -> list[list[Any]]:
    return [row(subject, condition, value, plain) for condition, value in right.items()]


def worse(one: np.ndarray, other: np.ndarray, level: float = 0.05) -> bool:
    """One condition solves significantly fewer of the same problems."""
    test = mcnemar(one, other)
    return test.only_a < test.only_b and test.p < level


def percent(line: list[Any]) -> str:
    return f"{line[2]:.0%} [{line[3]:.0%}, {line[4]:.0%}]"
