"""Attention rollout (Abnar & Zuidema, arXiv 2005.00928): where what a token ends up with came from, through all layers.

Every layer mixes: with A its attention, mean over heads, and the residual stream that goes past it, a token is left with
½A + ½I of what stood there before. Rollout is the product of these matrices over the layers.

Recorders see one layer at a time and nothing of the others, so this is a pass of its own. It goes through the layers with
one product [B,S,S] in hand, 4·B·S² bytes, and one layer's map: [B,H,S,S] with the backend "naive", [B,S,S] with
"blocked", which averages over heads query block by query block. The maps of all layers, [L,B,H,S,S], never exist. Chosen
queries are cut out of the product at the end; it takes 2·B·S³ operations per layer for however few of them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Bool, Float32, Int, PyTree

from jaxsink.checks import Range, at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.nn.attention import NAIVE_LIMIT
from jaxsink.nn.batch import Batch, Execution
from jaxsink.nn.compilation import model_jit
from jaxsink.nn.config import AttentionKind
from jaxsink.nn.context import LayerContext
from jaxsink.nn.inputs import ForwardInputs, check_inputs, check_shape
from jaxsink.nn.layer import Layer, Stream
from jaxsink.nn.recorder import Recorder
from jaxsink.nn.sharding import mesh_of
from jaxsink.nn.taps import Tap
from jaxsink.nn.transformer import Model


@checked(residual=Range(0, 1), block_length=at_least(1))
def rollout(
    model: Model,
    tokens: PyTree[ArrayLike],
    mask: PyTree[ArrayLike] = None,
    *,
    queries: PyTree[ArrayLike] = None,
    residual: float = 0.5,
    drop: PyTree[ArrayLike] = None,
    attention: AttentionKind | None = None,
    block_length: int | None = None,
) -> Float32[Array, "B N S"]:
    """f32[B,N,S]: the share of each query's last residual stream that came from each token of the input.

    A row of a real query sums to 1, less what flowed to an extra sink token; padded queries and keys have 0.

    Args:
        model: any
        tokens: int[B,S]
        mask: as for `jaxsink.forward`, and so are drop, attention and block_length
        queries: int[B,N], the positions that are asked; None: all, N = S
        residual: what goes past each layer
        drop: bool[L,B,H,S], keys that are hidden
        attention: pattern, on the same weights; None: the model's own
        block_length: of "block_causal"

    Examples:
        >>> came_from = jaxsink.sinks.rollout(model, tokens, queries=[[3, 18]])
        >>> came_from.shape, came_from.sum(axis=-1).round(3).tolist()
        ((1, 2, 19), [[1.0, 1.0]])
    """
    model = model.with_attention(attention, block_length)
    inputs = check_inputs(model.config, tokens, mask, drop=drop)
    batch, length = inputs.tokens.shape
    asked = None if queries is None else positions(queries, batch, length)
    backend = "naive" if length <= NAIVE_LIMIT else "blocked"
    return _rollout(model, inputs, asked, residual, Execution(backend, mesh_of(model)))


def positions(queries: PyTree[ArrayLike], batch: int, length: int) -> Int[Array, "B N"]:
    at = jnp.asarray(queries)
    if at.ndim != 2 or not jnp.issubdtype(at.dtype, jnp.integer):
        raise JaxsinkError(f"rollout: queries must be whole numbers [B,N], not {at.dtype} of shape {at.shape}.")
    check_shape("rollout: queries", at, (batch, at.shape[1]))
    if at.size and not (int(at.min()) >= 0 and int(at.max()) < length):
        raise JaxsinkError(f"rollout: queries must be positions from 0 to {length - 1}.")
    return at


@model_jit(static=("execution",))
def _rollout(
    model: Model, inputs: ForwardInputs, asked: Int[Array, "B N"] | None, residual: float, execution: Execution
) -> Float32[Array, "B N S"]:
    batch = Batch.make(model.config, inputs.tokens, inputs.mask)
    context = LayerContext.make(model.config, batch, (HEAD_MEAN,), execution)
    if model.time is not None:
        context = replace(context, condition=model.time(batch))
    stack, length = model.stack(execution.mesh), inputs.tokens.shape[1]
    product = jnp.broadcast_to(jnp.eye(length), (len(inputs.tokens), length, length))
    carry, first = (model.embed(batch, context), product), 0
    for segment in stack.segments:
        through = partial(through_layer, context, residual)
        count = 1 if stack.unrolled else segment.attention_norm.weight.shape[0]
        windows = None if stack.windows is None else jnp.asarray(stack.windows[first : first + count])
        drop = None if inputs.drop is None else inputs.drop[first : first + count]
        if stack.unrolled:
            carry, _ = through(carry, (segment, *jax.tree.map(lambda x: x[0], (windows, drop))))
        else:
            carry, _ = lax.scan(through, carry, (segment, windows, drop))
        first += count
    real = inputs.mask[:, :, None] & inputs.mask[:, None, :]
    found = jnp.where(real, carry[1], 0.0)
    return found if asked is None else jnp.take_along_axis(found, asked[..., None], axis=1)


Carry = tuple[Stream, Float32[Array, "B S S"]]
OfLayer = tuple[Layer, Bool[Array, ""] | None, Array | None]


def through_layer(context: LayerContext, residual: float, carry: Carry, of_layer: OfLayer) -> tuple[Carry, None]:
    """One layer further."""
    stream, product = carry
    layer, use_window, drop = of_layer
    out = layer(stream, context.at(jnp.int32(0), drop, use_window, context.recorders))
    mean = out.record[0][:, 0]
    mixed = jnp.einsum("bqs,bsk->bqk", mean, product, precision="highest")
    return (out.stream, residual * product + (1 - residual) * mixed), None


def _head_mean(tap: Tap) -> Float32[Array, "B 1 Q S"]:
    assert tap.probs is not None
    return tap.probs.mean(axis=1, keepdims=True)


HEAD_MEAN = Recorder(_head_mean, "rows")
