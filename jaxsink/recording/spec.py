"""What a run records, how often, and buffers for it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.recording.recorders import Recorder, compile_record
from jaxsink.sampling.interventions import needs


class Plan(NamedTuple):
    """Hashable: the recorders of the caller, and those that the intervention needs."""

    recorders: tuple[Recorder, ...]
    treedef: Any
    needs: tuple[Recorder, ...]
    needs_treedef: Any
    every: int

    def rows(self, steps: int) -> int:
        """How many of `steps` steps are recorded."""
        return -(-steps // self.every)


def make_plan(record: Any, intervene: Any, every: int, config: ModelConfig) -> Plan:
    if every < 1:
        raise JaxsinkError(f"every must be 1 or more, and is {every}.")
    recorders, treedef = compile_record(record, config.layers, config.heads)
    wanted, wanted_treedef = (), jax.tree.structure(None)
    if intervene is not None:
        wanted, wanted_treedef = compile_record(needs(intervene), config.layers, config.heads)
    return Plan(recorders, treedef, wanted, wanted_treedef, every)


def zeros_like_shapes(shapes: Any, lead: int | None = None) -> Any:
    """Zero arrays for a pytree of shapes, with a leading axis if asked for."""
    front = () if lead is None else (lead,)
    return jax.tree.map(lambda s: jnp.zeros((*front, *s.shape), s.dtype), shapes)


LANES = 128  # a TPU stores a last axis in pieces of this many numbers


def packed(tree: Any, front: int = 2) -> Any:
    """Records with their last axes as one where the last is short; the first `front` axes (layers, batch) stay.

    A TPU fills the last axis up to LANES: of the eight largest scores of a head, a loop would carry sixteen times the
    bytes. Elsewhere this moves nothing.
    """

    def pack(x: Any) -> Any:
        return x.reshape(*x.shape[:front], -1) if x.ndim > front + 1 and x.shape[-1] < LANES else x

    return jax.tree.map(pack, tree)
