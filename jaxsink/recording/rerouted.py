"""Recorders of where attention goes when a key is taken away, and where it comes from when a key takes it.

Both hold a map against what the softmax alone would do: a query that loses a key gives more to all its other keys, and one
that turns to a key gives less to all its others, **in proportion**. What differs from that is the model's doing.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32, Int

from jaxsink.nn.recorder import Recorder, ready_made
from jaxsink.nn.taps import Tap

TINY = 1e-30


@ready_made
def without_top() -> Recorder:
    """The head's strongest key (by the mean over the queries that see it), and the map that hiding it alone would make.

    {"key": i32[B,H], its position; "paid": f32[B,H,Q], what each query pays to it; "received": f32[B,H,S] and "own":
    f32[B,H], what keys would receive, and what queries would pay to themselves, both summed over real queries, if each
    query shared what it paid to that key among its other keys in proportion}
    """
    return Recorder(_without_top)


@ready_made
def takeover() -> Recorder:
    """How a key takes over between two steps, for a batch whose second half shows the sequences of the first a step later.

    The key is the strongest one of the later step. f32[B/2,H] each, summed over the queries that turn to it: "gain", what
    they give it more; "from_self", what they pay less to themselves; "in_proportion", what they would pay less to
    themselves if all their other keys had lost in proportion. "before" and "after": what all queries pay to themselves, on
    average.
    """
    return Recorder(_takeover)


def _without_top(tap: Tap) -> dict[str, Array]:
    assert tap.probs is not None
    key = strongest(tap)
    hidden = jnp.arange(tap.probs.shape[-1]) == key[..., None]  # [B,H,S]
    others = jnp.where(hidden[:, :, None, :], 0.0, tap.probs)
    extra = 0.0 if tap.extra is None else tap.extra
    left = others.sum(axis=-1) + extra
    blind = left <= TINY  # a query that sees no other key keeps what it has
    shared = others / jnp.where(blind, 1.0, left)[..., None]
    shared = jnp.where(blind[..., None], tap.probs, shared)
    shared = jnp.where(tap.query_mask[:, None, :, None], shared, 0.0)
    paid = jnp.where(hidden[:, :, None, :], tap.probs, 0.0).sum(axis=-1)
    return {"key": key, "paid": paid, "received": shared.sum(axis=2), "own": own(shared, tap).sum(axis=-1)}


def _takeover(tap: Tap) -> dict[str, Float32[Array, "_ H"]]:
    assert tap.probs is not None
    half = tap.probs.shape[0] // 2
    before, after = tap.probs[:half], tap.probs[half:]
    key = strongest(tap)[half:]
    own_before, own_after = (part.astype(jnp.float32) for part in jnp.split(own(tap.probs, tap), 2))
    to_key = [jnp.take_along_axis(part, key[:, :, None, None], axis=-1)[..., 0] for part in (before, after)]
    gain = to_key[1] - to_key[0]
    turns = (gain > 0) & (tap.query_position != key[..., None]) & tap.query_mask[half:, None, :]
    in_proportion = own_before * gain / jnp.maximum(1 - to_key[0], TINY)
    count = jnp.maximum(tap.query_mask[half:].sum(axis=1), 1)[:, None]

    def added(values: Float32[Array, "B H Q"]) -> Float32[Array, "B H"]:
        return jnp.where(turns, values, 0.0).sum(axis=-1)

    return {
        "gain": added(gain),
        "from_self": added(own_before - own_after),
        "in_proportion": added(in_proportion),
        "before": own_before.sum(axis=-1) / count,
        "after": own_after.sum(axis=-1) / count,
    }


def strongest(tap: Tap) -> Int[Array, "B H"]:
    """The key that queries pay most to, on average of those that see it; of equal ones the first."""
    assert tap.probs is not None
    seen = tap.context.visibility.seen(tap.context.queries) & tap.query_mask[:, None, :, None]
    mean = tap.probs.sum(axis=2) / jnp.maximum(seen.sum(axis=2), 1)
    return jnp.argmax(jnp.where(tap.mask[:, None, :], mean, -1.0), axis=-1)


def own(probs: Float32[Array, "B H Q S"], tap: Tap) -> Float32[Array, "B H Q"]:
    """What each query pays to itself."""
    return jnp.take_along_axis(probs, tap.query_position[None, None, :, None], axis=-1, mode="clip")[..., 0]
