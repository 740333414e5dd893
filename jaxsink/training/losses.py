"""The losses: next token, and masked diffusion with the mask drawn from the seed.

**Masked diffusion** (LLaDA). For a noise level t, uniform in (0, 1], each of the n tokens that may be masked is masked
with probability t; the loss is the cross-entropy of the masked ones, weighted 1/t, over n. Levels are spread evenly over
the batch, which changes no expectation and takes much of the variance. `noise="bernoulli"` does just that. `"count"`, the
default, masks exactly k = ceil(t n) tokens with the weight n/k. Both have the same expectation, for

    integral over t of C(n,k) t^k (1-t)^(n-k) / t  =  1/k  =  (1/n) (n/k),

but no sequence is left without masks, and none gets a weight far above n.

**Shifted logits** (next-token models, Dream): the token at position i is predicted from the output at i - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxsink.nn.batch import Batch
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.transformer import Model

SMALLEST = 1e-3  # noise level of "bernoulli", as in LLaDA's code: 1/t stays finite


class Noised(NamedTuple):
    tokens: Array  # i32[B,S], with masks
    masked: Array  # bool[B,S]
    level: Array  # f32[B], t; the weight of a masked token is 1/t


def noise_levels(key: Array, batch: int) -> Array:
    """f32[B] in (0, 1], each uniform, together evenly spread."""
    return 1.0 - (jax.random.uniform(key) + jnp.arange(batch) / batch) % 1.0


def add_noise(key: Array, tokens: Array, maskable: Array, mask_id: int, kind: str, most: Array | float = 1.0) -> Noised:
    """tokens i32[B,S]; maskable bool[B,S], tokens that may be masked, at least one per sequence; levels are <= `most`."""
    for_level, for_position = jax.random.split(key)
    level = most * noise_levels(for_level, tokens.shape[0])
    draw = jax.random.uniform(for_position, tokens.shape)
    if kind == "bernoulli":
        level = SMALLEST + (1 - SMALLEST) * level
        masked = maskable & (draw < level[:, None])
    else:
        total = maskable.sum(axis=1)
        masks = jnp.clip(jnp.ceil(level * total), 1, total)
        level = masks / total
        rank = jnp.argsort(jnp.argsort(jnp.where(maskable, draw, 2.0), axis=1), axis=1)
        masked = rank < masks[:, None]
    return Noised(jnp.where(masked, mask_id, tokens), masked, level)


def opened_mask(key: Array, length: int, share: Array | float) -> Array:
    """bool[S,S]: causal, and of the pairs that look ahead the given share: none at 0, all from 1 on."""
    causal = jnp.tril(jnp.ones((length, length), bool))
    return causal | (jax.random.uniform(key, (length, length)) < share)


def predictions(model: Model, tokens: Array, real: Array, start: int, visible: Array | None, shifted: bool) -> Array:
    """f32[B,S-start,V]: logits *for* the tokens from `start` on; shifted ones come from the position before."""
    batch, length = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(start, length) - shifted, (batch, length - start))
    see = None if visible is None else jnp.broadcast_to(visible, (batch, length, length))
    out = model(Batch.make(model.config, tokens, real)._replace(visible=see, outputs=positions))
    assert out.logits is not None
    return out.logits


def cross_entropy(scores: Array, tokens: Array) -> Array:
    """f32[B,W] of logits [B,W,V] and tokens [B,W]."""
    picked = jnp.take_along_axis(scores, tokens[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(scores, axis=-1) - picked


def from_start(starts: Sequence[int], length: int) -> tuple[Array, int]:
    """(bool[B,S]: the positions from each sequence's start on, the earliest start)."""
    return jnp.arange(length) >= jnp.asarray(starts)[:, None], min(starts)


def causal_loss(model: Model, tokens: Array, real: Array, starts: Sequence[int]) -> Array:
    """Mean cross-entropy of the tokens from each sequence's start on, each given those before it, up to its first eos."""
    wanted, earliest = from_start(starts, tokens.shape[1])
    first = max(earliest, 1)
    before = jnp.cumsum(is_end(model.config, tokens), axis=1) - is_end(model.config, tokens)
    counts = (wanted & real & (before == 0))[:, first:] & real[
        :, first - 1 : -1
    ]  # the first real token has nothing before it
    losses = cross_entropy(predictions(model, tokens, real, first, None, True), tokens[:, first:])
    return jnp.where(counts, losses, 0.0).sum() / counts.sum()


def diffusion_loss(
    model: Model,
    key: Array,
    tokens: Array,
    real: Array,
    starts: Sequence[int],
    noise: str,
    visible: Array | None = None,
    most: Array | float = 1.0,
) -> Array:
    """Cross-entropy of masked tokens, weighted 1/t, over the number of tokens that may be masked: those from each sequence's
    start on."""
    config, shifted = model.config, model.config.shift_logits
    assert config.mask_id is not None
    wanted, earliest = from_start(starts, tokens.shape[1])
    maskable = real & wanted
    if shifted:  # the first real token has no position before it
        maskable = maskable & jnp.pad(real[:, :-1], ((0, 0), (1, 0)))
    first = max(earliest, int(shifted))
    noised = add_noise(key, tokens, maskable, config.mask_id, noise, most)
    losses = cross_entropy(predictions(model, noised.tokens, real, first, visible, shifted), tokens[:, first:])
    weight = noised.masked[:, first:] / (noised.level * maskable.sum(axis=1))[:, None]
    return (losses * weight).sum() / tokens.shape[0]


def is_end(config: ModelConfig, tokens: Array) -> Any:
    """i32[B,S]: 1 at eos."""
    return jnp.isin(tokens, jnp.asarray(config.eos_ids)).astype(jnp.int32)
