"""What callers give to a pass: checked, and as arrays of the right shapes and types."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Bool, Float32, Int, Int32, PyTree, Shaped

from jaxsink.arrays import check_array
from jaxsink.checks import shown
from jaxsink.errors import JaxsinkError, a_model
from jaxsink.nn.config import ModelConfig

TRUTHS = Bool[np.ndarray, "..."]  # also as 0 and 1


class ForwardInputs(NamedTuple):
    tokens: Int32[Array, "B S"]
    mask: Bool[Array, "B S"]
    visible: Bool[Array, "B S S"] | None
    drop: Bool[Array, "L B H S"] | Float32[Array, "L B H S"] | None  # keys to hide, or factors on attention
    prompt: Bool[Array, "B S"] | None
    hidden_from: Bool[Array, "B S"] | None = None  # queries that lose what is dropped; None = all
    positions: Int32[Array, "B S"] | None = None  # where tokens stand for the model; None = counted
    time: Float32[Array, " B"] | None = None  # what the model is told of the noise; None = of the share of masks


def check_inputs(
    config: ModelConfig,
    tokens: PyTree[ArrayLike],
    mask: PyTree[ArrayLike] = None,
    visible: PyTree[ArrayLike] = None,
    drop: PyTree[ArrayLike] = None,
    scale: PyTree[ArrayLike] = None,
    prompt: PyTree[ArrayLike] = None,
    hidden_from: PyTree[ArrayLike] = None,
    positions: PyTree[ArrayLike] = None,
    time: PyTree[ArrayLike] = None,
) -> ForwardInputs:
    """The arguments of `forward` as arrays, or one sentence about what is wrong."""
    ids = check_tokens(config, tokens)
    batch, length = ids.shape
    per_head = (config.layers, batch, config.heads, length)
    real = as_bool("mask", mask, (batch, length))
    see = as_bool("visible", visible, (batch, length, length))
    if drop is not None and jnp.issubdtype(as_numbers("drop", drop).dtype, jnp.floating):
        raise JaxsinkError("drop must be bool, True = hidden; factors on the attention of keys go into scale.")
    hide = as_bool("drop", drop, per_head)
    if scale is not None:
        check_shape("scale", scale, per_head)
        factors = jnp.asarray(scale).astype("float32")
        if not isinstance(factors, Tracer) and not bool((jnp.isfinite(factors) & (factors >= 0)).all()):
            raise JaxsinkError("scale must hold finite factors of 0 or more: 0 hides a key, 1 leaves it alone.")
        hide = factors if hide is None else jnp.where(hide, 0.0, factors)
    given = as_bool("prompt", prompt, (batch, length))
    some = as_bool("hidden_from", hidden_from, (batch, length))
    if some is not None and hide is None:
        raise JaxsinkError("hidden_from says which queries lose what is dropped; give drop or scale as well.")
    real = jnp.ones((batch, length), bool) if real is None else real
    places, noise = check_positions(config, positions, (batch, length)), check_time(config, time, batch)
    return ForwardInputs(jnp.asarray(ids).astype(jnp.int32), real, see, hide, given, some, places, noise)


def check_tokens(config: ModelConfig, tokens: PyTree[ArrayLike]) -> Int[Array, "B S"] | Int[np.ndarray, "B S"]:
    ids = as_numbers("tokens", tokens)
    shape = ids.shape
    if len(shape) != 2 or 0 in shape:
        raise JaxsinkError(f"tokens must be [batch, sequence] with at least one token, not of shape {shape}.")
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


def check_positions(
    config: ModelConfig, positions: PyTree[ArrayLike], shape: tuple[int, ...]
) -> Int32[Array, "B S"] | None:
    if positions is None:
        return None
    check_shape("positions", positions, shape)
    given = jnp.asarray(positions)
    if not jnp.issubdtype(given.dtype, jnp.integer):
        raise JaxsinkError(f"positions must be whole numbers, not {given.dtype}.")
    most = config.max_positions - 1 if config.positions == "learned" else None
    if not isinstance(given, Tracer) and (given.min() < 0 or (most is not None and given.max() > most)):
        raise JaxsinkError(f"positions count from 0{'' if most is None else f' to {most}'}, and one of them does not.")
    return given.astype(jnp.int32)


def check_time(config: ModelConfig, time: PyTree[ArrayLike], batch: int) -> Float32[Array, " B"] | None:
    if time is None:
        return None
    if config.time_conditioning is None:
        raise JaxsinkError(f"{a_model(config.family)} is told nothing of the noise level; leave time out.")
    check_shape("time", time, (batch,))
    given = jnp.asarray(time).astype(jnp.float32)
    if not isinstance(given, Tracer) and not (jnp.isfinite(given) & (given >= 0)).all():
        raise JaxsinkError("time must hold numbers from 0 on, one per sequence.")
    return given


def as_numbers(name: str, value: object) -> Shaped[np.ndarray, "..."] | Shaped[Array, "..."]:
    """An array of numbers, of JAX as it is; one sentence about lists of unequal lengths, texts and the like."""
    try:
        array = value if isinstance(value, Array) else np.asarray(value)
    except (TypeError, ValueError) as error:
        raise JaxsinkError(f"{name} must be an array of numbers, not {shown(value)}.") from error
    if not (jnp.issubdtype(array.dtype, jnp.number) or array.dtype == bool):
        raise JaxsinkError(f"{name} must be an array of numbers, not of {array.dtype}: {shown(value)}.")
    return array


def check_shape(name: str, value: PyTree[ArrayLike], wanted: tuple[int, ...]) -> None:
    shape = as_numbers(name, value).shape
    if shape != wanted:
        raise JaxsinkError(f"{name} must have the shape {wanted}, not {shape}.")


def as_bool(name: str, value: PyTree[ArrayLike], shape: tuple[int, ...]) -> Bool[Array, ...] | None:
    if value is None:
        return None
    check_shape(name, value, shape)
    check_array(name, value, TRUTHS)
    return jnp.asarray(value).astype(bool)
