"""Edits (nn/edits.py) placed in a run of a model: checked against it, and as arrays that a compiled program takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

from jaxsink.errors import JaxsinkError, a_model
from jaxsink.nn.batch import KINDS, MASKED, count_tokens
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.context import STATIC
from jaxsink.nn.edits import Edit, EditTap, How
from jaxsink.nn.recorder import OF_PASS


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Placed:
    """An edit in a run of a model: what all sequences share."""

    layers: Int[Array, " L"]  # where each layer is in `value` or the source; -1 = it is not edited
    steps: Bool[Array, " T"] | None  # None = all
    heads: Bool[Array, " H"] | None
    value: Float[Array, "N ..."] | None
    rows: Int[Array, " T"] | None  # where each step is in the source; None = it has one for all
    how: How = field(metadata=STATIC)
    tap: EditTap = field(metadata=STATIC)
    kind: int | None = field(default=None, metadata=STATIC)  # of the tokens that are edited
    tokens: tuple[int, ...] | None = field(default=None, metadata=STATIC)  # those with one of these ids
    at_sink: bool = field(default=False, metadata=STATIC)


class Source(NamedTuple):
    """What belongs to the sequences, at axis 2."""

    values: Float[Array, "T L B S *F"] | None
    positions: Bool[Array, "T 1 B S"] | None  # those that are edited; None = all. T is 1 if all steps have the same


class Course(NamedTuple):
    """The steps of a run."""

    steps: int
    start: int | None = None  # the position that step 0 runs, if every step runs one token


def place_edits(
    edits: Edit | Sequence[Edit] | None,
    config: ModelConfig,
    mask: Bool[ArrayLike, "B S"],
    course: Course | None,
) -> tuple[tuple[Placed, ...], tuple[Source, ...]]:
    """Checked, for a run of these sequences. course: None for a single pass."""
    given = () if edits is None else (edits,) if isinstance(edits, Edit) else tuple(edits)
    for edit in given:
        if not isinstance(edit, Edit):
            raise JaxsinkError(f"edits are made by jaxsink.edit (add, scale, zero, mean, patch); this is {edit!r}.")
    real = jnp.asarray(mask)
    placed = tuple(_placed(edit, config, real.shape[1], course) for edit in given)
    return placed, tuple(_source(edit, config, real, course) for edit in given)


def vector_shape(config: ModelConfig, tap: EditTap) -> tuple[int, ...]:
    """Of the tap, at one position."""
    if tap == "value_vectors":
        return config.kv_heads, config.head_dim
    if tap == "values":
        return config.heads, config.head_dim
    return (config.heads, config.width) if tap == "head_outputs" else (config.width,)


def _placed(edit: Edit, config: ModelConfig, length: int, course: Course | None) -> Placed:
    if edit.steps is not None and course is None:
        raise JaxsinkError("edit: steps are those of a sampler; leave them out for a single pass.")
    count = 1 if edit.tap in OF_PASS else config.layers
    value = None if edit.value is None else _value(edit, config)
    rows = 1 if value is None else len(value)
    if value is None and edit.source is not None:
        rows = _shape(edit)[-3 - edit.axes]
    kind = KINDS.index(edit.at) if isinstance(edit.at, str) and edit.at in KINDS else None
    if kind == MASKED and config.mask_id is None:
        raise JaxsinkError(f"edit: {a_model(config.family)} has no mask token, so that nothing is at='masked'.")
    ends = (*config.eos_ids, *(() if config.eot_id is None else (config.eot_id,)))
    if isinstance(edit.at, str) and edit.at == "end-of-text" and not ends:
        raise JaxsinkError(f"edit: {a_model(config.family)} names no token that ends a text.")
    heads = vector_shape(config, edit.tap)[0]
    return Placed(
        layers=_layer_index(edit, count, rows, one_for_all=edit.source is None and not edit.by_layer),
        steps=None if edit.steps is None or course is None else _chosen("step", edit.steps, course.steps),
        heads=None if edit.heads is None else _chosen("head", edit.heads, heads),
        value=value,
        rows=_rows(edit, length, course),
        how=edit.how,
        tap=edit.tap,
        kind=kind,
        tokens=ends if isinstance(edit.at, str) and edit.at == "end-of-text" else None,
        at_sink=isinstance(edit.at, str) and edit.at == "sink",
    )


def _value(edit: Edit, config: ModelConfig) -> Float[Array, "N ..."]:
    value, shape = jnp.asarray(edit.value, jnp.float32), vector_shape(config, edit.tap)
    value = value if edit.by_layer else value[None]
    try:
        fits = np.broadcast_shapes(value.shape[1:], shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise JaxsinkError(f"edit: a value of shape {value.shape[1:]} does not fit the tap {edit.tap!r}, {shape}.")
    return value


def _layer_index(edit: Edit, count: int, rows: int, *, one_for_all: bool) -> Int[Array, " L"]:
    """Where each layer's values are among the rows that were given."""
    layers = tuple(range(count)) if edit.layers is None else edit.layers
    for layer in layers:
        if layer >= count:
            raise JaxsinkError(f"edit: the model has no layer {layer}, only 0 to {count - 1}.")
    index = np.full(count, -1, np.int32)
    index[list(layers)] = 0 if one_for_all else _rows_of(edit, layers, count, rows)
    return jnp.asarray(index)


def _rows_of(edit: Edit, layers: tuple[int, ...], count: int, rows: int) -> list[int]:
    """The source's row of each of these layers."""
    known = edit.source_layers
    if known is None and rows == count:
        if rows > 1 and len(layers) == count and layers != tuple(range(count)):
            raise JaxsinkError(
                "edit: a source of all layers is in their order, and `layers` names them in another; leave it out, or give "
                "the Generation itself, which knows its order."
            )
        known = tuple(range(count))
    elif known is None and rows == len(layers):
        known = layers
    if known is None or not set(layers) <= set(known):
        raise JaxsinkError(
            f"edit: the source has {rows} layers; name those {rows} in its order (the model has {count})."
        )
    return [known.index(layer) for layer in layers]


def _chosen(what: str, numbers: tuple[int, ...], count: int) -> Bool[Array, " N"]:
    for number in numbers:
        if number >= count:
            raise JaxsinkError(f"edit: there is no {what} {number}, only 0 to {count - 1}.")
    return jnp.isin(jnp.arange(count), jnp.array(numbers, jnp.int32))


def _shape(edit: Edit) -> tuple[int, ...]:
    """Of the source."""
    return () if edit.source is None else np.shape(edit.source)


def _has_steps(edit: Edit) -> bool:
    return len(_shape(edit)) == edit.axes + 4


def _one_query(edit: Edit, length: int) -> bool:
    """Is the source of a run that ran one token in each step?"""
    return _has_steps(edit) and _shape(edit)[3] == 1 < length


def _rows(edit: Edit, length: int, course: Course | None) -> Int[Array, " T"] | None:
    """Where each step of the run is in the source, whose steps have to be the run's."""
    if not _has_steps(edit):
        return None
    count, known, one_query = _shape(edit)[0], edit.source_steps, _one_query(edit, length)
    if course is None:
        if count != 1 and not one_query:
            raise JaxsinkError(
                f"edit: a single pass takes one step, and the source has {count}; say which one by from_step."
            )
        return None
    if known is None:
        if count != course.steps:
            raise JaxsinkError(
                f"edit: the source has {count} recorded steps and the run has {course.steps}, so that they cannot be told "
                "apart: give the Generation itself, which knows what `every` left out, or one of its steps by `from_step`."
            )
        return None if one_query else jnp.arange(count)
    missing = [step for step in edit.steps or range(course.steps) if step not in known]
    if missing:
        raise JaxsinkError(
            f"edit: the source has no record of step {missing[0]}, only of {_shown(known)}; name some of those by `steps`, "
            "or one for all by `from_step`, or record it without `every`."
        )
    if one_query:
        return None
    return jnp.array([known.index(step) if step in known else 0 for step in range(course.steps)], jnp.int32)


def _shown(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers)) if len(numbers) <= 4 else f"{numbers[0]}, {numbers[1]}, …, {numbers[-1]}"


def _source(edit: Edit, config: ModelConfig, mask: Bool[Array, "B S"], course: Course | None) -> Source:
    values, ran = None, None
    if edit.source is not None:
        values = jnp.asarray(edit.source)
        if _one_query(edit, mask.shape[1]):
            values, ran = _where_they_ran(edit, values, mask.shape[1], course)
        values = values if values.ndim == edit.axes + 4 else values[None]
        shape = vector_shape(config, edit.tap)
        if values.ndim != edit.axes + 4 or values.shape[3:] != (mask.shape[1], *shape):
            raise JaxsinkError(
                f"edit: the source must be a record of {edit.tap!r}, [L, B, S, …] with {mask.shape[1]} positions and "
                f"vectors of shape {shape}, with a leading axis for steps if it has those, not {np.shape(edit.source)}."
            )
        if values.shape[2] not in (1, len(mask)):
            raise JaxsinkError(f"edit: the source has {values.shape[2]} sequences, and there are {len(mask)}.")
        values = jnp.broadcast_to(values, (*values.shape[:2], len(mask), *values.shape[3:]))
    chosen = None if edit.at is None or isinstance(edit.at, str) else _positions(edit.at, mask)
    if ran is not None:
        chosen = ran & mask if chosen is None else ran & chosen
    by_step = None if chosen is None else chosen[None, None]
    if ran is None and not _all_taken(edit):
        taken = jnp.asarray(edit.source_taken)[:, None, :, None] & jnp.ones(mask.shape, bool)
        by_step = taken if by_step is None else taken & by_step
    return Source(values, by_step)


def _all_taken(edit: Edit) -> bool:
    """Did every sequence of the source take all its recorded steps?"""
    return edit.source_taken is None or bool(np.all(edit.source_taken))


def _where_they_ran(
    edit: Edit, values: Float[Array, "T L B 1 *F"], length: int, course: Course | None
) -> tuple[Float[Array, "1 L B S *F"], Bool[Array, "#B S"]]:
    """The queries of all steps at their positions, where each ran once; and which positions these are."""
    start = edit.source_start
    if start is None and edit.source_steps is None and course is not None:
        start = course.start
    steps = np.arange(len(values)) if edit.source_steps is None else np.array(edit.source_steps)
    if start is None or start + steps[-1] >= length:
        raise JaxsinkError(
            "edit: the source has one query per step, and which position that is, is not known here; record all of them by "
            "forward(model, out.tokens, record=…)."
        )
    place = start + steps
    moved = jnp.moveaxis(values[:, :, :, 0], 0, 2)
    whole = jnp.zeros((*moved.shape[:2], length, *moved.shape[3:]), values.dtype).at[:, :, place].set(moved)
    ran = np.zeros((1 if edit.source_taken is None else np.shape(edit.source_taken)[1], length), bool)
    ran[:, place] = True if edit.source_taken is None else np.asarray(edit.source_taken).T
    return whole[None], jnp.asarray(ran)


def _positions(
    at: Sequence[int] | Int[ArrayLike, " N"] | Bool[ArrayLike, "B S"], mask: Bool[Array, "B S"]
) -> Bool[Array, "B S"]:
    given = np.asarray(at)
    if given.dtype == bool:
        if given.shape != mask.shape:
            raise JaxsinkError(f"edit: at must be bool{list(mask.shape)}, not of shape {given.shape}.")
        return jnp.asarray(given & mask)
    longest = mask.shape[1] if isinstance(mask, Tracer) else int(mask.sum(axis=1).max())
    if given.ndim != 1 or not np.issubdtype(given.dtype, np.integer) or (given < 0).any() or (given >= longest).any():
        raise JaxsinkError(
            f"edit: at must be token positions from 0 to {longest - 1}, bool[B,S] or a name, not {at!r}."
        )
    return jnp.asarray((count_tokens(mask)[..., None] == given).any(axis=-1) & mask)
