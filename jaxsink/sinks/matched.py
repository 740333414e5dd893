"""Random keys that match sinks: partners, hidden exactly as long as their sinks; and keys that receive as much together.

Both go by a random order of all tokens that a sequence will have, drawn once per generation, for each layer and head, from
the seed and the token positions. It is the same in every step, so that the compiler sorts once, before the loop.

**Partners.** The partner of a key is the next real token in that order, the first one for the last: a permutation without
fixed points, in which every other token is equally likely. When an autoregressive model writes a token, it takes its
place in the order, so that one earlier key, the one before it, changes its partner, and no other does. (No permutation of
n tokens becomes one of n + 1 without fixed points with fewer changes.)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int, Key, Shaped


def draw_by_token(keys: Key[Array, " B"], mask: Bool[Array, "B S"], layers: int, heads: int) -> Float[Array, "L B H S"]:
    """Uniform numbers that depend on key and token position, so that neither batch nor padding changes them."""
    token_position = jnp.cumsum(mask, axis=1)

    def draw(key: Array, position: Array) -> Array:
        return jax.random.uniform(jax.random.fold_in(key, position), (layers, heads))

    drawn: Float[Array, "B S L H"] = jax.vmap(jax.vmap(draw, (None, 0)))(keys, token_position)
    return drawn.transpose(2, 0, 3, 1)


def random_order(keys: Key[Array, " B"], canvas: Bool[Array, "B S"], layers: int, heads: int) -> Int[Array, "L B H S"]:
    """The positions of each sequence in a random order, tokens before padding."""
    drawn = draw_by_token(keys, canvas, layers, heads)
    return jnp.argsort(jnp.where(canvas[None, :, None, :], drawn, jnp.inf), axis=-1)


def partners(
    targets: Bool[Array, "L B H S"], order: Int[Array, "L B H S"], mask: Bool[Array, "B S"]
) -> Bool[Array, "L B H S"]:
    """The partners of the targets among the tokens that exist; a token that is alone has none."""
    there = jnp.take_along_axis(jnp.broadcast_to(mask[None, :, None, :], order.shape), order, axis=-1)
    place = jnp.where(there, jnp.arange(order.shape[-1]), -1)
    up_to_here = lax.cummax(place, axis=place.ndim - 1)
    last = up_to_here[..., -1:]
    before = jnp.concatenate([jnp.full_like(last, -1), up_to_here[..., :-1]], axis=-1)
    before = jnp.maximum(jnp.where(before < 0, last, before), 0)
    follows = jnp.take_along_axis(jnp.take_along_axis(targets, order, axis=-1), before, axis=-1)
    alone = there.sum(axis=-1, keepdims=True) < 2
    return put_back(follows & there & ~alone, order)


def as_much(
    scores: Float[Array, "L B H S"],
    targets: Bool[Array, "L B H S"],
    candidates: Bool[Array, "L B H S"],
    order: Int[Array, "L B H S"],
) -> Bool[Array, "L B H S"]:
    """The first candidates in the order whose scores together reach those of the targets; no more than needed.

    Where all of them do not reach it, all but the last are taken, so that one stays.
    """
    wanted = jnp.where(targets, scores, 0.0).sum(axis=-1, keepdims=True)
    usable = jnp.take_along_axis(candidates, order, axis=-1)
    received = jnp.where(usable, jnp.take_along_axis(scores, order, axis=-1), 0.0)
    so_far = jnp.cumsum(received, axis=-1)
    before = jnp.concatenate([jnp.zeros_like(so_far[..., :1]), so_far[..., :-1]], axis=-1)
    is_last = jnp.cumsum(usable, axis=-1) == usable.sum(axis=-1, keepdims=True)
    return put_back(usable & (before < wanted) & ~is_last, order)


def put_back(ordered: Shaped[Array, "L B H S"], order: Int[Array, "L B H S"]) -> Shaped[Array, "L B H S"]:
    """From the order to the positions."""
    return jnp.take_along_axis(ordered, jnp.argsort(order, axis=-1), axis=-1)
