"""Exact match on held-out problems: a model writes, and the number after `####` counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxsink.evals.conditions import PLAIN
from jaxsink.evals.engine import Evaluation, ask_all
from jaxsink.evals.results import Result
from jaxsink.evals.statistics import wilson
from jaxsink.nn.transformer import Model
from jaxsink.sampling.base import Sampler
from jaxsink.tasks.exam import task_exam

BATCH = 100


@dataclass(frozen=True)
class Accuracy:
    correct: int
    total: int

    @property
    def share(self) -> float:
        return self.correct / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval, which stays honest near 100 %."""
        found = wilson(self.correct, self.total)
        return found.low, found.high

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.share:.1%} of {self.total} (95 % interval {low:.1%} to {high:.1%})"

    def to_dict(self) -> dict[str, Any]:
        return {"correct": self.correct, "total": self.total, "share": self.share, "interval": list(self.interval)}


def accuracy(model: Model, sampler: Sampler, total: int, seed: int = 0) -> Accuracy:
    """On the first `total` held-out problems of a seed, of those whose words the model knows."""
    results: list[Result] = []
    exam = task_exam(model.config, range(total), sampler, seed)
    ask_all(Evaluation(model, exam, (PLAIN,), eps=None, rows=BATCH), results.extend)
    return Accuracy(sum(result["correct"] for result in results), total)
