"""Shared by the masking experiments: conditions, accuracies with intervals, and tests against the unmasked model."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxsink.sinks import MaskSinks
from jaxsink.stats import mcnemar, wilson
from jaxsink.study import Study, Subject

SELECTIONS = ("top", "random", "bottom")
COLUMNS = ["model", "condition", "right", "low", "high", "problems", "lost", "gained", "p against K = 0"]


def condition(study: Study, subject: Subject, label: str, policy: MaskSinks | None, **changes: Any) -> np.ndarray:
    return study.right(subject, label, policy, **changes)


def row(subject: Subject, label: str, right: np.ndarray, plain: np.ndarray) -> list[Any]:
    """A line of a table: accuracy with Wilson's interval, and McNemar's exact test on the same problems."""
    interval, test = wilson(int(right.sum()), len(right)), mcnemar(plain, right)
    return [
        subject.name, label, float(interval.estimate), float(interval.low), float(interval.high), len(right),
        test.only_a, test.only_b, float(test.p),
    ]  # fmt: skip


def worse(one: np.ndarray, other: np.ndarray, level: float = 0.05) -> bool:
    """One condition solves significantly fewer of the same problems."""
    test = mcnemar(one, other)
    return test.only_a < test.only_b and test.p < level
