"""Recorders for nulls: what keys would receive if it were chance which queries meet, or which queries are masked.

Draws follow from the layer, the head and the token position of a query, so neither batch nor padding changes them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32, Int

from jaxsink.nn.batch import MASKED
from jaxsink.nn.recorder import Recorder, ready_made
from jaxsink.nn.taps import Tap

SEED = 20


@ready_made
def received_shuffled() -> Recorder:
    """f32[B,H,S]: `received`, after each query's attention was moved round by a distance of its own.

    A query gives as much to its first, second, … key as before, but which key that is, is chance: keys that many queries
    share are gone, heads that look at few keys still do. Only keys that the query may see take part, so a causal map stays
    causal. They must lie side by side, as in every family.
    """
    return Recorder(_received_shuffled, "sum")


@ready_made
def received_random_split() -> Recorder:
    """f32[B,H,S]: what keys receive from queries drawn at random, as many as are masked: a null for `received_by_query`."""
    return Recorder(_received_random_split, "sum")


def _received_shuffled(tap: Tap) -> Float32[Array, "B H S"]:
    assert tap.probs is not None
    seen = tap.context.visibility.seen(tap.context.queries)  # [B,1,Q,S]
    count, first = seen.sum(axis=-1), jnp.argmax(seen, axis=-1)  # [B,1,Q]
    heads = tap.probs.shape[1]
    key = jax.random.fold_in(jax.random.key(SEED), tap.layer)
    drawn = _draw(key, tap.context.queries.token_position, heads)  # [B,Q,H]
    distance = jnp.floor(drawn.transpose(0, 2, 1) * count).astype(jnp.int32)  # [B,H,Q]
    number = jnp.arange(tap.probs.shape[-1]) - first[..., None]  # of a key among those that the query sees
    source = first[..., None] + (number + distance[..., None]) % jnp.maximum(count, 1)[..., None]
    moved = jnp.take_along_axis(tap.probs, jnp.broadcast_to(source, tap.probs.shape), axis=-1)
    return jnp.where(seen, moved, 0.0).sum(axis=2)


def _received_random_split(tap: Tap) -> Float32[Array, "B H S"]:
    assert tap.probs is not None
    key = jax.random.fold_in(jax.random.key(SEED + 1), tap.layer)
    drawn = jnp.where(tap.mask, _draw(key, tap.context.visibility.token_position, 1)[..., 0], jnp.inf)  # [B,S]
    rank = jnp.argsort(jnp.argsort(drawn, axis=-1), axis=-1)
    masked = (tap.mask & (tap.key_kind == MASKED)).sum(axis=-1, keepdims=True)
    position = jnp.broadcast_to(tap.query_position, tap.query_mask.shape)
    chosen = jnp.take_along_axis(rank < masked, position, axis=1)  # [B,Q]
    return jnp.where(chosen[:, None, :, None], tap.probs, 0.0).sum(axis=2)


def _draw(key: Array, token_position: Int[Array, "B Q"], count: int) -> Float32[Array, "B Q N"]:
    """`count` uniform numbers for each token position."""
    return jax.vmap(jax.vmap(lambda position: jax.random.uniform(jax.random.fold_in(key, position), (count,))))(
        token_position
    )
