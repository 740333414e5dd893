"""How sinks move over the steps of a generation: positions, lifetimes, jumps, drift, and what kind of sink a head has.

Everything is computed at once for all layers, rows and heads, from received scores [T, ..., S], in one pass over the
steps: the scores of a step are in the cache while all its figures are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsink.errors import JaxsinkError
from jaxsink.parallel.rows import pmap_rows
from jaxsink.sinks.rules import Rule, Threshold, with_mask

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    absorbed: Array  # f32[T,...], share of all attention that falls on sinks
    centroid: Array  # f32[T,...], mean position of the sinks weighted by score; NaN where there is none
    births: Array  # i32[...,S], how often the token became a sink
    deaths: Array  # i32[...,S], how often it stopped being one
    steps_as_sink: Array  # i32[...,S]
    longest: Array  # i32[...,S], the longest stay
    lifetime: Array  # f32[...], mean length of a stay over all tokens; 0 without sinks
    jumps: Array  # i32[...], steps at which the largest sink changes its position
    drift: Array  # f32[...], mean signed change of its position per step, over steps that follow each other
    temporal_variance: Array  # f32[...], of the centroid over steps
    spatial_variance: Array  # f32[...], over positions, of the mean score over steps
    kind: Array  # i32[...], NONE, STATIC, MOVING or FLICKERING, by the constants of this module

    def plot_trajectory(self, **options: Any) -> Axes:
        """Where the largest sink of a head is, step by step; options as for `jaxsink.plots.plot_trajectory`."""
        from jaxsink.reporting.plots import plot_trajectory

        return plot_trajectory(self, **options)

    def plot_layers(self, **options: Any) -> Axes:
        """How strong the largest sink is in each layer and head; options as for `jaxsink.plots.plot_layers`."""
        from jaxsink.reporting.plots import plot_layers

        return plot_layers(self, **options)


PER_STEP = ("sinks", "sink_count", "position", "score", "absorbed", "centroid")


def track(
    received: Any,
    rule: Rule | None = None,
    mask: Any = None,
    steps: Any = None,
    devices: Sequence[Any] | None = None,
) -> Tracks:
    """Follow the sinks of a record [T, ..., S].

    mask     bool[B,S] for records [T,L,B,H,S], or bool[T,B,S] where the tokens that exist change (`Generation.real_at`)
    steps    i32[B], how many of the recorded steps each row took, if some stopped early: later ones have no sinks
             anyway, but then do not count as steps without a sink either
    devices  deal the batch of a record [T,L,B,H,S] out over these devices by pmap
    """
    scores, real = with_mask(received, mask)
    counted = jnp.ones((scores.shape[0], *[1] * (scores.ndim - 2)), bool)
    if steps is not None:
        taken = jnp.arange(scores.shape[0])[:, None] < jnp.asarray(steps)[None, :]  # [T,B]
        counted = taken[:, None, :, None]
    real = real.reshape(*[1] * (scores.ndim - real.ndim), *real.shape)
    function = _Track(rule or Threshold())
    if devices is None:
        return function(scores, real, counted)
    if scores.ndim != 5:
        raise JaxsinkError(f"track: to be dealt out over devices, a record must be [T,L,B,H,S], not {scores.shape}.")
    in_axes = (2, 2 if real.shape[2] > 1 else None, 2 if counted.shape[2] > 1 else None)
    out_axes: Any = Tracks._make(2 if name in PER_STEP else 1 for name in Tracks._fields)
    return pmap_rows(function, (scores, real, counted), in_axes, out_axes, devices)


@dataclass(frozen=True)
class _Track:
    rule: Rule

    def __call__(self, scores: Array, real: Array, counted: Array) -> Tracks:
        return _track(scores, real, counted, self.rule)


@partial(jax.jit, static_argnames="rule")
def _track(scores: Array, real: Array, counted: Array, rule: Rule) -> Tracks:
    """scores [T,...,S]; real and counted have the same number of axes, with size 1 where they do not change."""
    shape, length = scores.shape[1:], scores.shape[-1]
    place = jnp.arange(length)
    zero = jnp.zeros(shape, jnp.int16 if scores.shape[0] < 1 << 15 else jnp.int32)  # small counters stay in the cache
    first = {
        "before": zero > 0, "births": zero, "steps_as_sink": zero, "run": zero, "longest": zero,
        "total": jnp.zeros(shape),
    }  # fmt: skip

    def one(state: dict[str, Array], number: Array) -> tuple[dict[str, Array], tuple[Array, ...]]:
        now = scores[number]
        real_now = real[number] if real.shape[0] > 1 else real[0]
        counts = (counted[number] if counted.shape[0] > 1 else counted[0])[..., None]
        sinks = rule.find(now, real_now) & counts
        among = jnp.where(sinks, now, 0.0)
        count, largest = sinks.sum(axis=-1), jnp.where(sinks, now, -jnp.inf).max(axis=-1)
        position = jnp.where(sinks & (now == largest[..., None]), place, length).min(axis=-1)
        run = jnp.where(sinks, state["run"] + 1, 0).astype(zero.dtype)
        mass = among.sum(axis=-1)
        state = {
            "before": jnp.where(counts, sinks, state["before"]),
            "births": state["births"] + (sinks & ~state["before"]).astype(zero.dtype),
            "steps_as_sink": state["steps_as_sink"] + sinks.astype(zero.dtype),
            "run": run,
            "longest": jnp.maximum(state["longest"], run),
            "total": state["total"] + jnp.where(counts, now, 0.0),
        }
        absorbed = mass / jnp.maximum(jnp.where(real_now, now, 0.0).sum(axis=-1), 1e-30)
        centroid = (among * place).sum(axis=-1) / mass
        present = count > 0
        position, largest = jnp.where(present, position, -1), jnp.where(present, largest, 0.0)
        return state, (sinks, count, position, largest, absorbed, centroid)

    end, (sinks, count, position, score, absorbed, centroid) = lax.scan(one, first, jnp.arange(scores.shape[0]))
    counters = {name: end[name].astype(jnp.int32) for name in ("births", "steps_as_sink", "longest")}
    present = count > 0
    lifetime = counters["steps_as_sink"].sum(axis=-1) / jnp.maximum(counters["births"].sum(axis=-1), 1)
    at_home = ((position[:, None] == position[None]).sum(axis=1) * present).max(axis=0)
    follow = present[1:] & present[:-1]
    move = jnp.where(follow, position[1:] - position[:-1], 0)
    steps = jnp.broadcast_to(counted.sum(axis=0) if counted.shape[0] > 1 else counted[0] * scores.shape[0], shape[:-1])
    mean_score = end["total"] / jnp.maximum(steps, 1)[..., None]
    return Tracks(
        sinks=sinks,
        sink_count=count,
        position=position,
        score=score,
        absorbed=absorbed,
        centroid=centroid,
        **counters,
        deaths=counters["births"] - end["before"],
        lifetime=lifetime,
        jumps=(move != 0).sum(axis=0),
        drift=move.sum(axis=0) / jnp.maximum(follow.sum(axis=0), 1),
        temporal_variance=_variance(centroid, present, axis=0),
        spatial_variance=_variance(mean_score, jnp.broadcast_to(real.any(axis=0), shape), axis=-1),
        kind=_kinds(at_home, present.sum(axis=0), steps, lifetime),
    )


def _mean(values: Array, where: Array, axis: int) -> Array:
    return jnp.where(where, values, 0.0).sum(axis=axis) / jnp.maximum(where.sum(axis=axis), 1)


def _variance(values: Array, where: Array, axis: int) -> Array:
    mean = jnp.expand_dims(_mean(values, where, axis), axis)
    return _mean(jnp.square(values - mean), where, axis)


def _kinds(steps_at_home: Array, steps_present: Array, steps: Array, lifetime: Array) -> Array:
    """Documented by the constants on top: none, else static, else flickering, else moving."""
    absent = steps_present < PRESENT_SHARE * jnp.maximum(steps, 1)
    kind = jnp.where(lifetime < FLICKER_LIFETIME, FLICKERING, MOVING)
    kind = jnp.where(steps_at_home >= STATIC_SHARE * jnp.maximum(steps_present, 1), STATIC, kind)
    return jnp.where(absent, NONE, kind)
