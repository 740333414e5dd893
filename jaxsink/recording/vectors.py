"""Recorders of the vectors themselves, position by position: the residual stream, and what heads and mlps add to it."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Float32

from jaxsink.nn.context import LayerContext
from jaxsink.nn.recorder import Recorder, ready_made
from jaxsink.nn.taps import Tap, VectorTap


@ready_made
def hidden() -> Recorder:
    """f32[B,S,E]: the residual stream that enters the layer.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.hidden())
        >>> seen.record.shape  # layers, sequences, positions, width
        (4, 1, 19, 128)
    """
    return Recorder(_hidden, "once")


@ready_made
def hidden_max() -> Recorder:
    """{"max", "median": f32[B,S], "dimension": i32[B,S]} of |hidden|: massive activations.

    The usual rule is max > 100 and max >= 1000 * median; `dimension` says which feature is the largest.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.hidden_max())
        >>> bool((seen.record["max"] >= seen.record["median"]).all())
        True
    """
    return Recorder(_hidden_max, "once")


@ready_made
def residual() -> Recorder:
    """f32[B,S,E]: the residual stream after the layer.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.residual())
        >>> seen.record.shape
        (4, 1, 19, 128)
    """
    return Recorder(_vectors, "once", tap="residual")


@ready_made
def embedding() -> Recorder:
    """f32[B,S,E]: the residual stream before the first layer. The record's layer axis has one entry, as the pass has one.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.embedding())
        >>> seen.record.shape  # one layer, sequences, positions, width
        (1, 1, 19, 128)
    """
    return Recorder(_vectors, "once", tap="embedding")


@ready_made
def residual_before() -> Recorder:
    """f32[B,S,E]: the residual stream that enters the layer.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.residual_before())
        >>> seen.record.shape  # layers, sequences, positions, width
        (4, 1, 19, 128)
    """
    return Recorder(_vectors, "once", tap="residual_before")


@ready_made
def value_vectors() -> Recorder:
    """f32[B,S,K,D]: the value vectors that attention mixes, one per key and head of keys; of a cache, all that it holds.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.value_vectors())
        >>> seen.record.shape  # layers, sequences, keys, heads of keys, width of a head
        (4, 1, 19, 4, 32)
    """
    return Recorder(_value_vectors, "once")


@ready_made
def head_values() -> Recorder:
    """f32[B,S,H,D]: what each head hands on, its attention times the values, before the output projection.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.head_values())
        >>> seen.record.shape  # layers, sequences, positions, heads, width of a head
        (4, 1, 19, 4, 32)
    """
    return Recorder(_vectors, "once", tap="values")


@ready_made
def head_outputs() -> Recorder:
    """f32[B,S,H,E]: what each head adds to the residual stream, after the output projection (without its bias).

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.head_outputs())
        >>> seen.record.shape  # layers, sequences, positions, heads, width
        (4, 1, 19, 4, 128)
    """
    return Recorder(_vectors, "once", tap="head_outputs")


@ready_made
def attention_output() -> Recorder:
    """f32[B,S,E]: what all heads together add to the residual stream.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.attention_output())
        >>> seen.record.shape  # layers, sequences, positions, width
        (4, 1, 19, 128)
    """
    return Recorder(_vectors, "once", tap="attention_output")


@ready_made
def mlp_output() -> Recorder:
    """f32[B,S,E]: what the mlp adds to the residual stream.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.mlp_output())
        >>> seen.record.shape  # layers, sequences, positions, width
        (4, 1, 19, 128)
    """
    return Recorder(_vectors, "once", tap="mlp")


@ready_made
def final_norm() -> Recorder:
    """f32[B,S,E]: the residual stream after the last layer and the final norm: what logits are read from. One layer, too.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.final_norm())
        >>> seen.record.shape  # one layer, sequences, positions, width
        (1, 1, 19, 128)
    """
    return Recorder(_vectors, "once", tap="final_norm")


def of_unfinished(context: LayerContext, x: Float[Array, "B ..."]) -> Float32[Array, "B ..."]:
    """0 for sequences that have finished: how long they still run depends on the others."""
    goes_on = context.keys.counted.any(axis=1)
    return jnp.where(goes_on.reshape(-1, *[1] * (x.ndim - 1)), x.astype(jnp.float32), 0.0)


def _hidden(tap: Tap) -> Float32[Array, "B Q E"]:
    return of_unfinished(tap.context, tap.hidden)


def _value_vectors(tap: Tap) -> Float32[Array, "B S K D"]:
    return of_unfinished(tap.context, tap.v)


def _hidden_max(tap: Tap) -> dict[str, Array]:
    size = jnp.abs(tap.hidden.astype(jnp.float32))
    largest = jnp.where(tap.query_mask, size.max(axis=-1), 0.0)
    median = jnp.where(tap.query_mask, jnp.median(size, axis=-1), 0.0)
    return {"max": largest, "median": median, "dimension": jnp.where(tap.query_mask, size.argmax(axis=-1), 0)}


def _vectors(tap: VectorTap) -> Float32[Array, "B Q *F"]:
    return of_unfinished(tap.context, tap.vectors)
