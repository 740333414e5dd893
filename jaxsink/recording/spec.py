"""What a run records, how often, and buffers for it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from jaxsink.checks import at_least, check_value
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.recorder import Recorder, TreeDef, compile_record

LANES = 128  # a TPU stores a last axis in pieces of this many numbers


class RecordSpec(NamedTuple):
    """Hashable: the caller's recorders, and those that an intervention needs."""

    recorders: tuple[Recorder, ...]
    treedef: TreeDef
    needs: tuple[Recorder, ...]
    needs_treedef: TreeDef
    every: int

    def recorded(self, steps: int) -> int:
        """How many of `steps` steps are recorded."""
        return -(-steps // self.every)


def make_record_spec(config: ModelConfig, record: PyTree, needs: PyTree | None = None, every: int = 1) -> RecordSpec:
    """record: recorders or functions of the tap. needs: those of an intervention. every: record every n-th step."""
    check_value("every", every, int, at_least(1))
    recorders, treedef = compile_record(record, config.layers, config.heads)
    needed, needs_treedef = compile_record(needs, config.layers, config.heads)
    return RecordSpec(recorders, treedef, needed, needs_treedef, every)


def zeros_like_shapes(shapes: PyTree) -> PyTree:
    """Zero arrays for a pytree of shapes."""
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def fills(recorder: Recorder, values: PyTree) -> PyTree[int]:
    """What stands in its record for steps that did not run, leaf by leaf."""
    missing = {} if recorder.reductions else getattr(recorder.ending, "missing", {})
    if not missing:
        return jax.tree.map(lambda _: 0, values)
    return {name: missing.get(name, 0) for name in values}


def packed(tree: PyTree, front: int = 2) -> PyTree:
    """Records with their last axes as one where the last is short; the first `front` axes (layers, batch) stay.

    A TPU fills the last axis up to LANES: of the eight largest scores of a head, a loop would carry sixteen times the
    bytes. Elsewhere this moves nothing.
    """

    def pack(x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:front], -1) if x.ndim > front + 1 and x.shape[-1] < LANES else x

    return jax.tree.map(pack, tree)
