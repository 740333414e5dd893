"""How sinks move over the steps of a generation: positions, lifetimes, jumps, drift, and what kind of sink a head has.

Everything is computed at once for all layers, rows and heads, from received scores [T, ..., S].
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxsink.sinks.rules import Rule, Threshold, with_mask

NONE, STATIC, MOVING, FLICKERING = range(4)
KINDS = ("none", "static", "moving", "flickering")
STATIC_SHARE = 0.9  # static: one position holds the largest sink in at least this share of the steps that have one
PRESENT_SHARE = 0.5  # none: fewer than this share of the steps have a sink
FLICKER_LIFETIME = 2.0  # flickering: sinks live less than this many steps on average


class Tracks(NamedTuple):
    """Trajectories of sinks; "..." are the record's axes between steps and sequence, usually [L,B,H]."""

    sinks: Array  # bool[T,...,S]
    sink_count: Array  # i32[T,...], per step
    position: Array  # i32[T,...], of the largest sink; -1 where there is none
    score: Array  # f32[T,...], of the largest sink; 0 where there is none
    births: Array  # i32[...,S], how often the token became a sink
    steps_as_sink: Array  # i32[...,S]
    longest: Array  # i32[...,S], the longest stay
    lifetime: Array  # f32[...], mean length of a stay over all tokens; 0 without sinks
    jumps: Array  # i32[...], steps at which the largest sink changes its position
    drift: Array  # f32[...], mean signed change of its position per step, over steps that follow each other
    centroid: Array  # f32[T,...], mean position of the sinks weighted by score; NaN where there is none
    temporal_variance: Array  # f32[...], of the centroid over steps
    spatial_variance: Array  # f32[...], over positions, of the mean score over steps
    kind: Array  # i32[...], NONE, STATIC, MOVING or FLICKERING, by the constants of this module


def track(received: Any, rule: Rule | None = None, mask: Any = None, steps: Any = None) -> Tracks:
    """Follow the sinks of a record [T, ..., S].

    mask: bool[B,S] for records [T,L,B,H,S]. steps: i32[B], how many steps each row took, if some stopped early
    (`Generation.steps`): later ones have no sinks anyway, but then do not count as steps without a sink either.
    """
    scores, real = with_mask(received, mask)
    counted = jnp.ones(scores.shape[:-1], bool)
    if steps is not None:
        taken = jnp.arange(scores.shape[0])[:, None] < jnp.asarray(steps)[None, :]  # [T,B]
        counted = jnp.broadcast_to(taken[:, None, :, None], scores.shape[:-1])
    return _track(scores, jnp.broadcast_to(real, scores.shape), counted, rule or Threshold())


@partial(jax.jit, static_argnames="rule")
def _track(scores: Array, real: Array, counted: Array, rule: Rule) -> Tracks:
    sinks = rule.find(scores, real) & counted[..., None]
    count = sinks.sum(axis=-1)
    among = jnp.where(sinks, scores, -jnp.inf)
    present = count > 0
    position = jnp.where(present, jnp.argmax(among, axis=-1), -1)

    before = jnp.concatenate([jnp.zeros_like(sinks[:1]), sinks[:-1]])
    births = (sinks & ~before).sum(axis=0)
    steps_as_sink = sinks.sum(axis=0)
    all_births = births.sum(axis=-1)
    lifetime = steps_as_sink.sum(axis=-1) / jnp.maximum(all_births, 1)

    follow = present[1:] & present[:-1]
    move = jnp.where(follow, position[1:] - position[:-1], 0)
    jumps = (move != 0).sum(axis=0)
    drift = move.sum(axis=0) / jnp.maximum(follow.sum(axis=0), 1)

    weight = jnp.where(sinks, scores, 0.0)
    centroid = (weight * jnp.arange(scores.shape[-1])).sum(axis=-1) / weight.sum(axis=-1)
    return Tracks(
        sinks=sinks,
        sink_count=count,
        position=position,
        score=jnp.where(present, among.max(axis=-1), 0.0),
        births=births,
        steps_as_sink=steps_as_sink,
        longest=_longest_run(sinks),
        lifetime=lifetime,
        jumps=jumps,
        drift=drift,
        centroid=centroid,
        temporal_variance=_variance(centroid, present, axis=0),
        spatial_variance=_variance(_mean(scores, counted[..., None], axis=0), real.any(axis=0), axis=-1),
        kind=_kinds(sinks, position, present, counted, lifetime),
    )


def _longest_run(sinks: Array) -> Array:
    """i32[...,S]: the most steps in a row that a token is a sink."""

    def one(carry: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], None]:
        run, longest = carry
        run = jnp.where(now, run + 1, 0)
        return (run, jnp.maximum(longest, run)), None

    zero = jnp.zeros(sinks.shape[1:], jnp.int32)
    return jax.lax.scan(one, (zero, zero), sinks)[0][1]


def _mean(values: Array, where: Array, axis: int) -> Array:
    where = jnp.broadcast_to(where, values.shape)
    return jnp.where(where, values, 0.0).sum(axis=axis) / jnp.maximum(where.sum(axis=axis), 1)


def _variance(values: Array, where: Array, axis: int) -> Array:
    mean = jnp.expand_dims(_mean(values, where, axis), axis)
    return _mean(jnp.square(values - mean), where, axis)


def _kinds(sinks: Array, position: Array, present: Array, counted: Array, lifetime: Array) -> Array:
    """Documented by the constants on top: none, else static, else flickering, else moving."""
    length = sinks.shape[-1]
    largest = (position[..., None] == jnp.arange(length)) & present[..., None]
    steps_present = present.sum(axis=0)
    share_at_home = largest.sum(axis=0).max(axis=-1) / jnp.maximum(steps_present, 1)
    absent = steps_present < PRESENT_SHARE * jnp.maximum(counted.sum(axis=0), 1)
    kind = jnp.where(lifetime < FLICKER_LIFETIME, FLICKERING, MOVING)
    kind = jnp.where(share_at_home >= STATIC_SHARE, STATIC, kind)
    return jnp.where(absent, NONE, kind)
