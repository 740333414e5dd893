"""What edits (nn/edits.py) take their values from: records, and runs that know which steps they recorded."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Int, PyTree

from jaxsink.errors import JaxsinkError
from jaxsink.nn.inputs import as_numbers


@runtime_checkable
class Recorded(Protocol):
    """A run that was recorded: what `generate` returns."""

    @property
    def record(self) -> PyTree[ArrayLike]: ...
    @property
    def recorded_steps(self) -> Int[np.ndarray, " T"]: ...
    @property
    def steps(self) -> Int[ArrayLike, " B"]: ...
    @property
    def prompt_length(self) -> int: ...
    @property
    def autoregressive(self) -> bool: ...
    @property
    def recorders(self) -> PyTree: ...


@runtime_checkable
class OfLayers(Protocol):
    """What is known of a recorder."""

    @property
    def layers(self) -> tuple[int, ...] | None: ...


def layers_of(run: Recorded) -> tuple[int, ...] | None:
    """The layers that its only recorder kept, in its order; None = all, or not known."""
    kept = [one for one in jax.tree.leaves(run.recorders) if isinstance(one, OfLayers)]
    return kept[0].layers if len(kept) == 1 else None


def steps_taken(run: Recorded) -> Bool[np.ndarray, "T B"]:
    """Which of its recorded steps each sequence took; there is nothing of the others."""
    return np.asarray(run.recorded_steps)[:, None] < np.asarray(run.steps)


def the_one(source: PyTree[ArrayLike] | Recorded) -> ArrayLike | Array:
    """The array itself, of a record that has only one."""
    record = source.record if isinstance(source, Recorded) else source
    if record is None:
        raise JaxsinkError("edit: the run recorded nothing; give generate record=.")
    if isinstance(record, dict):
        if len(record) != 1:
            more = " (of a run: dataclasses.replace(run, record=run.record[name]))" if record is not source else ""
            raise JaxsinkError(f"edit: the record has {', '.join(map(repr, record))}; give one of them{more}.")
        record = next(iter(record.values()))
    return as_numbers("edit: source", record)
