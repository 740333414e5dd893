"""What edits (nn/edits.py) take their values from: records, and runs that know which steps they recorded."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Int, PyTree

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
    def prompt_length(self) -> int: ...
    @property
    def autoregressive(self) -> bool: ...


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
