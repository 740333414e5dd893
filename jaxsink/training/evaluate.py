"""Exact match on held-out problems: a model writes, and the number after `####` counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxsink.nn.transformer import Model
from jaxsink.runs.progress import stage
from jaxsink.sampling.generate import generate
from jaxsink.study.statistics import wilson
from jaxsink.tasks.batches import PROMPT, prompt_ids
from jaxsink.tasks.task import Problem, problems
from jaxsink.tasks.vocabulary import tokenizer

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


def answers(model: Model, asked: Sequence[Problem], sampler: Any, batch: int = BATCH) -> list[str]:
    """What the model writes for each problem, up to its first eos."""
    texts: list[str] = []
    with stage("answering", total=len(asked), unit="problems") as task:
        for first in range(0, len(asked), batch):
            part = list(asked[first : first + batch])
            full = part + part[:1] * (min(batch, len(asked)) - len(part))  # one compiled program for all batches
            responses = np.asarray(generate(model, prompt_ids(full), sampler, pad_to=PROMPT).response)
            texts += [tokenizer().decode(before_end(ids, model)) for ids in responses[: len(part)]]
            task.update(len(texts))
    return texts


def before_end(ids: np.ndarray, model: Model) -> np.ndarray:
    ends = np.flatnonzero(np.isin(ids, model.config.eos_ids))
    return ids[: ends[0]] if len(ends) else ids


def accuracy(model: Model, sampler: Any, total: int, seed: int = 0) -> Accuracy:
    """On the first `total` held-out problems of a seed."""
    asked = problems("test", total, seed)
    texts = answers(model, asked, sampler)
    return Accuracy(sum(problem.score(text) for problem, text in zip(asked, texts, strict=True)), total)
