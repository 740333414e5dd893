"""Recorders of Euclidean lengths: of keys, values, the residual stream, and what heads and mlps add to it."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Float32

from jaxsink.nn.recorder import Recorder, ready_made
from jaxsink.nn.taps import Tap, VectorTap


@ready_made
def key_norm() -> Recorder:
    """f32[B,K,S]: Euclidean length of each key; 0 for padded keys.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.key_norm())
        >>> seen.record.shape
        (4, 1, 4, 19)
    """
    return Recorder(_key_norm, "once")


@ready_made
def value_norm() -> Recorder:
    """f32[B,K,S]: Euclidean length of each value (low at sinks); 0 for padded keys.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.value_norm())
        >>> seen.record.shape
        (4, 1, 4, 19)
    """
    return Recorder(_value_norm, "once")


@ready_made
def residual_norm() -> Recorder:
    """f32[B,S]: Euclidean length of the residual stream after the layer; 0 for padded queries.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.residual_norm())
        >>> seen.record.shape
        (4, 1, 19)
    """
    return Recorder(_vector_norm, "once", tap="residual")


@ready_made
def mlp_norm() -> Recorder:
    """f32[B,S]: Euclidean length of what the mlp adds to the residual stream; 0 for padded queries.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.mlp_norm())
        >>> seen.record.shape
        (4, 1, 19)
    """
    return Recorder(_vector_norm, "once", tap="mlp")


@ready_made
def head_norm() -> Recorder:
    """f32[B,H,S]: Euclidean length of what each head hands on, its attention times the values; 0 for padded queries.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.head_norm())
        >>> seen.record.shape
        (4, 1, 4, 19)
    """
    return Recorder(_head_norm, "once", tap="values")


def _key_norm(tap: Tap) -> Float32[Array, "B K S"]:
    return _by_head(_length(tap.k), tap.mask)


def _value_norm(tap: Tap) -> Float32[Array, "B K S"]:
    return _by_head(_length(tap.v), tap.mask)


def _vector_norm(tap: VectorTap) -> Float32[Array, "B Q"]:
    return jnp.where(tap.query_mask, _length(tap.vectors), 0.0)


def _head_norm(tap: VectorTap) -> Float32[Array, "B H Q"]:
    return _by_head(_length(tap.vectors), tap.query_mask)


def _length(vectors: Float[Array, "B S *H D"]) -> Float32[Array, "B S *H"]:
    return jnp.sqrt(jnp.square(vectors.astype(jnp.float32)).sum(axis=-1))


def _by_head(length: Float32[Array, "B S H"], mask: Bool[Array, "B S"]) -> Float32[Array, "B H S"]:
    """Heads first; 0 for what is padded."""
    return jnp.where(mask[:, None, :], length.transpose(0, 2, 1), 0.0)
