"""How sinks move over the steps of a generation: positions, lifetimes, jumps, drift, and what kind of sink a head has.

Everything is computed at once for all layers, sequences and heads, from the attention that keys receive, in one pass
over the steps: the scores of a step are in the cache while all its figures are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int, PyTree, Shaped

from jaxsink.checks import check_value, shown
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.nn.inputs import as_numbers
from jaxsink.parallel.mesh import Device
from jaxsink.parallel.pmap import pmap_batch
from jaxsink.sinks.rules import Rule, Threshold, with_mask

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NONE, STATIC, MOVING, FLICKERING = range(4)
KINDS = ("none", "static", "moving", "flickering")

STATIC_SHARE = 0.9
"""Static: one position holds the largest sink in at least this share of the steps that have one."""

PRESENT_SHARE = 0.5
"""None: fewer than this share of the steps have a sink."""

FLICKER_LIFETIME = 2.0
"""Flickering: sinks live less than this many steps on average."""


class Tracks(NamedTuple):
    """Trajectories of sinks; "..." are the record's axes between steps and sequence, usually "L B H".

    The first six are per step, the next four per token, the others per layer, sequence and head.

    Attributes:
        sinks: which tokens are sinks
        sink_count: how many there are
        position: of the largest sink; -1 where there is none
        score: of the largest sink; 0 where there is none
        absorbed: share of all attention that falls on sinks
        centroid: mean position of the sinks weighted by score; NaN where there is none
        births: how often a token became a sink
        deaths: how often it stopped being one
        steps_as_sink: at how many steps it was one
        longest: its longest stay, in steps
        lifetime: mean length of a stay over all tokens; 0 without sinks
        jumps: steps at which the largest sink changes its position
        drift: mean signed change of its position per step, over steps that follow each other
        temporal_variance: variance of the centroid over steps
        spatial_variance: variance over positions of the mean score over steps
        kind: NONE, STATIC, MOVING or FLICKERING, by the constants of this module

    Examples:
        >>> tracks = jaxsink.sinks.track(out.record, jaxsink.sinks.Threshold(eps=3.0), out.mask)
        >>> tracks.position.shape, tracks.lifetime.shape  # [T,L,B,H] and [L,B,H]
        ((8, 4, 1, 4), (4, 1, 4))
        >>> tracks.plot_trajectory(layer=3, head=0).get_xlabel(), tracks.plot_layers().get_ylabel()
        ('step', 'layer')
    """

    sinks: Bool[Array, "T ... S"]
    sink_count: Int[Array, "T ..."]
    position: Int[Array, "T ..."]
    score: Float[Array, "T ..."]
    absorbed: Float[Array, "T ..."]
    centroid: Float[Array, "T ..."]
    births: Int[Array, "... S"]
    deaths: Int[Array, "... S"]
    steps_as_sink: Int[Array, "... S"]
    longest: Int[Array, "... S"]
    lifetime: Float[Array, "..."]
    jumps: Int[Array, "..."]
    drift: Float[Array, "..."]
    temporal_variance: Float[Array, "..."]
    spatial_variance: Float[Array, "..."]
    kind: Int[Array, "..."]

    def __repr__(self) -> str:
        """Shapes instead of numbers."""
        return f"Tracks({', '.join(f'{name}={shape_text(value)}' for name, value in self._asdict().items())})"

    def plot_trajectory(self, **options: Any) -> Axes:
        """Where the largest sink of a head is, step by step; options as for `jaxsink.plots.plot_trajectory`."""
        from jaxsink.report.plots import plot_trajectory

        return plot_trajectory(self, **options)

    def plot_layers(self, **options: Any) -> Axes:
        """How strong the largest sink is in each layer and head; options as for `jaxsink.plots.plot_layers`."""
        from jaxsink.report.plots import plot_layers

        return plot_layers(self, **options)


PER_STEP = ("sinks", "sink_count", "position", "score", "absorbed", "centroid")


def shape_text(value: object) -> str:
    """An array as "int32[16,4,1,4]", anything else as it is."""
    if not hasattr(value, "dtype"):
        return repr(value)
    return f"{value.dtype}[{','.join(map(str, np.shape(value)))}]"  # type: ignore[attr-defined]


@checked()
def track(
    received: Float[ArrayLike, "T *axes S"],
    rule: Rule | None = None,
    mask: Shaped[ArrayLike, "..."] | None = None,
    steps: Int[ArrayLike, " B"] | Sequence[int] | None = None,
    devices: Sequence[Device] | None = None,
) -> Tracks:
    """Follow the sinks of a record over its steps.

    Args:
        received: from `record.received()`, of all steps
        rule: what counts as a sink; None: `Threshold()`
        mask: True = real token: [B,S] for records [T,L,B,H,S], or [T,B,S] where the tokens that exist change
            (`Generation.real_at`)
        steps: how many of the recorded steps each sequence took, if some stopped early; the later ones then do not count as
            steps without a sink
        devices: split the batch of a record [T,L,B,H,S] over these devices by pmap

    Examples:
        >>> tracks = jaxsink.sinks.track(out.record, jaxsink.sinks.Threshold(eps=3.0), out.mask)
        >>> tracks.position.shape  # steps, layers, sequences, heads
        (8, 4, 1, 4)
    """
    scores, real = with_mask(received, mask)
    counted = jnp.ones((scores.shape[0], *[1] * (scores.ndim - 2)), bool)
    if steps is not None:
        limits = jnp.asarray(as_numbers("track: steps", steps))
        fits = limits.ndim == 1 and (scores.ndim != 5 or limits.shape == scores.shape[2:3])
        if not fits or not jnp.issubdtype(limits.dtype, jnp.integer):
            raise JaxsinkError(f"track: steps must be a whole number per sequence, not {shown(steps)}.")
        taken: Bool[Array, "T B"] = jnp.arange(scores.shape[0])[:, None] < limits[None, :]
        counted = taken[:, None, :, None]
    real = real.reshape(*[1] * (scores.ndim - real.ndim), *real.shape)
    rule = check_value("track: rule", rule, Rule | None) or Threshold()
    if devices is None:
        return _track(scores, real, counted, rule)
    if scores.ndim != 5:
        raise JaxsinkError(
            f"track: to be split over devices, a record must be [T,L,B,H,S], not of shape {scores.shape}."
        )
    in_axes = (2, 2 if real.shape[2] > 1 else None, 2 if counted.shape[2] > 1 else None)
    out_axes: PyTree[int] = Tracks._make(2 if name in PER_STEP else 1 for name in Tracks._fields)
    return pmap_batch(_track, (scores, real, counted), in_axes, out_axes, devices, static={"rule": rule})


@partial(jax.jit, static_argnames="rule")
def _track(
    scores: Float[Array, "T *axes S"], real: Bool[Array, "#T #*axes S"], counted: Bool[Array, "#T #*axes"], rule: Rule
) -> Tracks:
    """One pass over the steps. `real` and `counted` have size 1 along axes on which they do not depend."""
    shape, length = scores.shape[1:], scores.shape[-1]
    positions = jnp.arange(length)
    zero = jnp.zeros(shape, jnp.int16 if scores.shape[0] < 1 << 15 else jnp.int32)  # small counters stay in the cache
    start = dict.fromkeys(("births", "steps_as_sink", "stay", "longest"), zero)
    start |= {"before": zero > 0, "total": jnp.zeros(shape)}

    def follow(state: dict[str, Array], step: Int[Array, ""]) -> tuple[dict[str, Array], tuple[Array, ...]]:
        now = scores[step]
        real_now = real[step] if real.shape[0] > 1 else real[0]
        counts = (counted[step] if counted.shape[0] > 1 else counted[0])[..., None]
        sinks = rule.find(now, real_now) & counts
        among = jnp.where(sinks, now, 0.0)
        count, largest = sinks.sum(axis=-1), jnp.where(sinks, now, -jnp.inf).max(axis=-1)
        position = jnp.where(sinks & (now == largest[..., None]), positions, length).min(axis=-1)
        stay = jnp.where(sinks, state["stay"] + 1, 0).astype(zero.dtype)
        mass = among.sum(axis=-1)
        state = {
            "before": jnp.where(counts, sinks, state["before"]),
            "births": state["births"] + (sinks & ~state["before"]).astype(zero.dtype),
            "steps_as_sink": state["steps_as_sink"] + sinks.astype(zero.dtype),
            "stay": stay,
            "longest": jnp.maximum(state["longest"], stay),
            "total": state["total"] + jnp.where(counts, now, 0.0),
        }
        absorbed = mass / jnp.maximum(jnp.where(real_now, now, 0.0).sum(axis=-1), 1e-30)
        centroid = (among * positions).sum(axis=-1) / mass
        present = count > 0
        position, largest = jnp.where(present, position, -1), jnp.where(present, largest, 0.0)
        return state, (sinks, count, position, largest, absorbed, centroid)

    end, (sinks, count, position, score, absorbed, centroid) = lax.scan(follow, start, jnp.arange(scores.shape[0]))
    counters = {name: end[name].astype(jnp.int32) for name in ("births", "steps_as_sink", "longest")}
    present = count > 0
    lifetime = counters["steps_as_sink"].sum(axis=-1) / jnp.maximum(counters["births"].sum(axis=-1), 1)
    steps_at_home = ((position[:, None] == position[None]).sum(axis=1) * present).max(axis=0)
    consecutive = present[1:] & present[:-1]
    move = jnp.where(consecutive, position[1:] - position[:-1], 0)
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
        drift=move.sum(axis=0) / jnp.maximum(consecutive.sum(axis=0), 1),
        temporal_variance=_variance(centroid, present, axis=0),
        spatial_variance=_variance(mean_score, jnp.broadcast_to(real.any(axis=0), shape), axis=-1),
        kind=_kinds(steps_at_home, present.sum(axis=0), steps, lifetime),
    )


def _mean(values: Float[Array, "*axes"], where: Bool[Array, "*axes"], axis: int) -> Float[Array, "..."]:
    return jnp.where(where, values, 0.0).sum(axis=axis) / jnp.maximum(where.sum(axis=axis), 1)


def _variance(values: Float[Array, "*axes"], where: Bool[Array, "*axes"], axis: int) -> Float[Array, "..."]:
    mean = jnp.expand_dims(_mean(values, where, axis), axis)
    return _mean(jnp.square(values - mean), where, axis)


def _kinds(
    steps_at_home: Int[Array, "*axes"],
    steps_present: Int[Array, "*axes"],
    steps: Int[Array, "*axes"],
    lifetime: Float[Array, "*axes"],
) -> Int[Array, "*axes"]:
    """None, else static, else flickering, else moving: the constants on top define them.

    steps_at_home: at how many steps the largest sink is at its most frequent position.
    """
    absent = steps_present < PRESENT_SHARE * jnp.maximum(steps, 1)
    kind = jnp.where(lifetime < FLICKER_LIFETIME, FLICKERING, MOVING)
    kind = jnp.where(steps_at_home >= STATIC_SHARE * jnp.maximum(steps_present, 1), STATIC, kind)
    return jnp.where(absent, NONE, kind)
