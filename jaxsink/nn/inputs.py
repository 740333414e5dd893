"""What callers give to a pass: checked, and as arrays of the right shapes and types."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Bool, Float32, Int, Int32, PyTree

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig


class ForwardInputs(NamedTuple):
    tokens: Int32[Array, "B S"]
    mask: Bool[Array, "B S"]
    visible: Bool[Array, "B S S"] | None
    drop: Bool[Array, "L B H S"] | Float32[Array, "L B H S"] | None  # keys to hide, or factors on attention
    prompt: Bool[Array, "B S"] | None
    hidden_from: Bool[Array, "B S"] | None = None  # queries that lose what is dropped; None = all


def check_inputs(
    config: ModelConfig,
    tokens: PyTree[ArrayLike],
    mask: PyTree[ArrayLike] = None,
    visible: PyTree[ArrayLike] = None,
    drop: PyTree[ArrayLike] = None,
    scale: PyTree[ArrayLike] = None,
    prompt: PyTree[ArrayLike] = None,
    hidden_from: PyTree[ArrayLike] = None,
) -> ForwardInputs:
    """The arguments of `forward` as arrays, or one sentence about what is wrong."""
    ids = check_tokens(config, tokens)
    batch, length = ids.shape
    per_head = (config.layers, batch, config.heads, length)
    real = as_bool("mask", mask, (batch, length))
    see = as_bool("visible", visible, (batch, length, length))
    hide = as_bool("drop", drop, per_head)
    if drop is not None and jnp.issubdtype(jnp.asarray(drop).dtype, jnp.floating):
        raise JaxsinkError("drop must be bool, True = hidden; factors on the attention of keys go into scale.")
    if scale is not None:
        check_shape("scale", scale, per_head)
        factors = jnp.asarray(scale).astype("float32")
        hide = factors if hide is None else jnp.where(hide, 0.0, factors)
    given = as_bool("prompt", prompt, (batch, length))
    some = as_bool("hidden_from", hidden_from, (batch, length))
    if some is not None and hide is None:
        raise JaxsinkError("hidden_from says which queries lose what is dropped; give drop or scale as well.")
    real = jnp.ones((batch, length), bool) if real is None else real
    return ForwardInputs(jnp.asarray(ids).astype(jnp.int32), real, see, hide, given, some)


def check_tokens(config: ModelConfig, tokens: PyTree[ArrayLike]) -> Int[Array, "B S"] | Int[np.ndarray, "B S"]:
    shape = np.shape(tokens)
    if len(shape) != 2 or 0 in shape:
        raise JaxsinkError(f"tokens must be [batch, sequence] with at least one token, not of shape {shape}.")
    ids = tokens if isinstance(tokens, jax.Array) else np.asarray(tokens)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise JaxsinkError(f"tokens must be whole numbers, not {ids.dtype}.")
    if not isinstance(ids, Tracer):
        values = np.asarray(ids)
        if values.min() < 0 or values.max() >= config.vocab:
            wrong = values.min() if values.min() < 0 else values.max()
            raise JaxsinkError(f"token id {wrong} is outside the model's vocabulary of {config.vocab} rows.")
    if config.positions == "learned" and shape[1] > config.max_positions:
        raise JaxsinkError(
            f"{shape[1]} tokens are more than the {config.max_positions} positions this model has learned."
        )
    return ids


def check_shape(name: str, value: PyTree[ArrayLike], wanted: tuple[int, ...]) -> None:
    if np.shape(value) != wanted:
        raise JaxsinkError(f"{name} must have the shape {wanted}, not {np.shape(value)}.")


def as_bool(name: str, value: PyTree[ArrayLike], shape: tuple[int, ...]) -> Bool[Array, ...] | None:
    if value is None:
        return None
    check_shape(name, value, shape)
    return jnp.asarray(value).astype(bool)
