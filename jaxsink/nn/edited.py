"""How edits (nn/edits.py), once placed in a run (nn/placed.py), are carried out: cut to a step, applied where a tap is.

Without edits nothing here leaves a trace in the program.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxsink.nn.context import LayerContext, select
from jaxsink.nn.edits import EditTap
from jaxsink.nn.placed import Placed, Source
from jaxsink.nn.recorder import Recorder
from jaxsink.nn.taps import Record, received

SINK_SCORES = Recorder(received, "sum", columns="all")  # read by edits at "sink"


class StepEdit(NamedTuple):
    """An edit in one pass."""

    placed: Placed
    acts: Bool[Array, ""] | None  # in this step; None = yes
    values: Float[Array, "L B S *F"] | None
    positions: Bool[Array, "B S"] | None


class Places(NamedTuple):
    """The tokens whose vectors are edited."""

    position: Int[Array, "B N"]  # in the padded sequence
    kind: Int[Array, "B N"]  # MASKED, UNMASKED or PROMPT
    counted: Bool[Array, "B N"]


def at_step(
    edits: tuple[Placed, ...],
    sources: tuple[Source, ...],
    step: Int[Array, ""] | int = 0,
    *,
    recorded: bool = True,
) -> tuple[StepEdit, ...]:
    """The edits of one pass.

    recorded: is it one that recorders read? Vectors that belong to positions are those of such a pass, and stay in it:
    so a run patched with its own record stays what it is, also where guidance runs another pass beside it.
    """

    def one(placed: Placed, source: Source) -> StepEdit:
        acts = None if placed.steps is None else placed.steps[step]
        row = 0 if placed.rows is None else placed.rows[step]
        values = None if source.values is None else source.values[row]
        positions = source.positions
        where = None if positions is None else positions[row if len(positions) > 1 else 0, 0]
        return StepEdit(placed, acts, values, where)

    pairs = zip(edits, sources, strict=True)
    return tuple(one(*pair) for pair in pairs if recorded or pair[1].values is None)


def with_sink_scores(recorders: tuple[Recorder, ...], edits: tuple[StepEdit, ...]) -> tuple[Recorder, ...]:
    """And what edits at the sink have to know."""
    return (*recorders, SINK_SCORES) if any(edit.placed.at_sink for edit in edits) else recorders


def has_edits(context: LayerContext, tap: EditTap, *, at_sink: bool = False) -> bool:
    """Does something edit this tap? at_sink: where the sink is."""
    return any(edit.placed.tap == tap and (edit.placed.at_sink or not at_sink) for edit in context.edits)


def edited(
    context: LayerContext,
    tap: EditTap,
    vectors: Float[Array, "B W *F"],
    record: Record | None = None,
    outputs: Int[Array, "B W"] | None = None,
) -> Float[Array, "B W *F"]:
    """The vectors of a tap after its edits. record: what the layer's attention gave. outputs: the queries they belong to."""
    for edit in context.edits:
        if edit.placed.tap == tap:
            vectors = _apply(edit, context, vectors, record, outputs)
    return vectors


def _apply(
    edit: StepEdit,
    context: LayerContext,
    vectors: Float[Array, "B W *F"],
    record: Record | None,
    outputs: Int[Array, "B W"] | None,
) -> Float[Array, "B W *F"]:
    placed = edit.placed
    places = of_keys(context) if placed.tap == "value_vectors" else of_queries(context, outputs)
    index = placed.layers[0 if context.layer is None else context.layer]
    where = _where(edit, context, places, record) & (index >= 0)
    where = where.reshape(*where.shape, *[1] * (vectors.ndim - 2))
    if placed.heads is not None:
        where = where & placed.heads[:, None]
    if edit.values is not None:
        rows, position = edit.values[jnp.maximum(index, 0)], places.position
        new = jnp.take_along_axis(rows, position.reshape(*position.shape, *[1] * (rows.ndim - 2)), axis=1, mode="clip")
    else:
        assert placed.value is not None
        new = placed.value[jnp.maximum(index, 0)]
    new = new.astype(vectors.dtype)
    changed = vectors + new if placed.how == "add" else vectors * new if placed.how == "scale" else new
    return jnp.where(where, changed, vectors)


def _where(edit: StepEdit, context: LayerContext, places: Places, record: Record | None) -> Bool[Array, "B N"]:
    """The tokens that are edited in a layer that is."""
    placed, position = edit.placed, places.position
    where = jnp.ones(position.shape, bool)
    if edit.acts is not None:
        where &= edit.acts
    if edit.positions is not None:
        where &= jnp.take_along_axis(edit.positions, position, axis=1, mode="clip")
    if placed.kind is not None:
        where &= places.kind == placed.kind
    if placed.tokens is not None:
        token = jnp.take_along_axis(context.keys.tokens, position, axis=1)
        where &= jnp.isin(token, jnp.array(placed.tokens)) & places.counted
    if placed.at_sink:
        where &= position == sink_position(context, record or {})
    return where


def of_queries(context: LayerContext, outputs: Int[Array, "B W"] | None) -> Places:
    """The tokens that run, or those of them that go on."""
    queries = context.queries
    position = jnp.broadcast_to(queries.position, queries.kind.shape)
    return Places(*(select(x, outputs) for x in (position, queries.kind, queries.counted)))


def of_keys(context: LayerContext) -> Places:
    """All tokens."""
    keys = context.keys
    position = jnp.broadcast_to(jnp.arange(keys.tokens.shape[1]), keys.tokens.shape)
    return Places(position, keys.key_kind, keys.counted)


def sink_position(context: LayerContext, record: Record) -> Int[Array, "B 1"]:
    """The key that receives most from all heads of the layer; of equal ones the first."""
    scores = record[context.recorders.index(SINK_SCORES)].sum(axis=1)
    return jnp.argmax(jnp.where(context.keys.counted, scores, -1.0), axis=-1)[:, None]


def for_attention(context: LayerContext) -> LayerContext:
    """Without what is none of the business of attention and its recorders."""
    return replace(context, edits=(), window=None, ahead=None, targets=None, tuned=None)


def for_sink_scores(context: LayerContext) -> LayerContext:
    """For attention that only says where the sink is."""
    return replace(for_attention(context), recorders=(SINK_SCORES,))
