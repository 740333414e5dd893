"""Shared by the masking experiments: conditions, accuracies with intervals, and tests against the unmasked model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxsink.evals.conditions import PLAIN, label
from jaxsink.sinks import MaskSinks
from jaxsink.sinks.mask import SELECTIONS
from jaxsink.study import Subject
from jaxsink.study.statistics import mcnemar, wilson

COLUMNS = ["model", "condition", "right", "low", "high", "problems", "lost", "gained", "p against K = 0"]
NOTE = "95 % Wilson intervals; exact McNemar tests on the same problems"


def conditions(counts: Iterable[int]) -> dict[str, MaskSinks]:
    """The top-K sinks and both controls, for each K."""
    return {
        label(k, select): MaskSinks(k, select=select)  # type: ignore[arg-type]
        for select in SELECTIONS
        for k in counts
    }


TABLE1: dict[str, MaskSinks | None] = {PLAIN: None, **conditions((1, 5, 10))}


def row(subject: Subject, condition: str, right: np.ndarray, plain: np.ndarray) -> list[Any]:
    """A line of a table: accuracy with Wilson's interval, and McNemar's exact test on the same problems."""
    interval, test = wilson(int(right.sum()), len(right)), mcnemar(plain, right)
    return [
        subject.name,
        condition,
        float(interval.estimate),
        float(interval.low),
        float(interval.high),
        len(right),
        test.only_a,
        test.only_b,
        float(test.p),
    ]


def rows(subject: Subject, right: dict[str, np.ndarray], plain: np.ndarray) -> list[list[Any]]:
    return [row(subject, label, value, plain) for label, value in right.items()]


def worse(one: np.ndarray, other: np.ndarray, level: float = 0.05) -> bool:
    """One condition solves significantly fewer of the same problems."""
    test = mcnemar(one, other)
    return test.only_a < test.only_b and test.p < level


def percent(line: list[Any]) -> str:
    return f"{line[2]:.0%} [{line[3]:.0%}, {line[4]:.0%}]"
