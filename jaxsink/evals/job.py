"""Evaluation: what a model is asked, under which conditions, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from jaxsink.errors import JaxsinkError
from jaxsink.evals.conditions import Condition
from jaxsink.evals.layout import ROWS, batch_rows
from jaxsink.evals.results import Result
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.transformer import Model
from jaxsink.parallel.mesh import DATA, mesh_of
from jaxsink.sampling.execution import replicate
from jaxsink.sampling.interventions import acts_on_all_rows
from jaxsink.sinks.mask import MaskSinks
from jaxsink.tasks.exam import Exam, Question

Asked = tuple[Question, Condition]
Keep = Callable[[list[Result]], object]
"""Takes results as they come."""


def needs_no_steps(policy: MaskSinks | None) -> bool:
    """One pass over a given answer gives an autoregressive model all that it needs to know under this policy."""
    return policy is None or acts_on_all_rows(policy) or policy.hides_the_same


@dataclass(frozen=True)
class Evaluation:
    """A model, and what it is asked under which conditions.

    eps: of Eq. 3, for the sinks that are counted; None counts none. rows: the most sequences of a batch, over all
    devices. devices: split the batch by pmap; a model on a mesh uses that instead. shard: (2, 4) is the second of four
    processes, which does every fourth question. Rows, devices and shard may change from run to run.
    """

    model: Model
    exam: Exam
    conditions: tuple[Condition, ...]
    seed: int = 0
    eps: float | None = 3.0
    rows: int = ROWS
    devices: Sequence[Any] | None = None
    shard: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        number, count = self.shard
        if not 1 <= number <= count:
            raise JaxsinkError(f"shard {number}/{count} does not exist; shards are counted from 1 to their number.")
        if self.rows < 1:
            raise JaxsinkError(f"a batch needs at least one sequence, not {self.rows}.")
        batch_rows(1, self.rows, self.share)

    @cached_property
    def share(self) -> int:
        """In how many parts a batch is cut."""
        mesh = mesh_of(self.model)
        return mesh.shape[DATA] if mesh is not None else len(self.used_devices or (None,))

    @cached_property
    def used_devices(self) -> Sequence[Any] | None:
        """No more than there are sequences for."""
        return None if self.devices is None else self.devices[: self.rows]

    @cached_property
    def placed(self) -> Model:
        """The model where and as the batches need it, put there once for all of them."""
        if self.used_devices is not None:
            return replicate(self.model, self.used_devices)
        on_cpu = jax.default_backend() == "cpu" and mesh_of(self.model) is None
        return self.model.unrolled() if on_cpu else self.model

    @property
    def in_passes(self) -> tuple[Condition, ...]:
        """The conditions under which given answers are scored without steps (likelihood/denoising.py)."""
        if not self.exam.gold:
            return ()
        return tuple(one for one in self.conditions if self.exam.denoises or needs_no_steps(one.policy))

    @property
    def in_steps(self) -> tuple[Condition, ...]:
        """All others: those under which something is written, step by step."""
        passes = self.in_passes
        return tuple(one for one in self.conditions if one not in passes)

    @property
    def config(self) -> ModelConfig:
        return self.model.config
