"""What a policy really hid: how many keys, how long, whether they were sinks, and how much attention they had.

    record = {"received": received(), "dropped": dropped()}
    out = generate(model, prompts, sampler, record=record, intervene=policy).on_host()
    hidden_keys(**out.record, mask=out.real_at(), steps=out.recorded_of(), policy=policy)

Every step must be recorded, because keys were selected from the map of the step before: what `received()` recorded, if the
policy ranks on masked maps (and an autoregressive sampler does not add up its queries).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int, Shaped

from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.sampling.interventions import Previous
from jaxsink.sinks.mask import MaskSinks
from jaxsink.sinks.rules import Threshold, detect


class HiddenKeys(NamedTuple):
    """Means over heads, layers and all steps but the first, one per sequence; NaN where there is nothing to count.

    Examples:
        >>> both = {"received": jaxsink.record.received(), "dropped": jaxsink.record.dropped()}
        >>> hidden = jaxsink.generate(model, question, sampler, record=both, intervene=jaxsink.sinks.MaskSinks(k=2))
        >>> jaxsink.sinks.hidden_keys(hidden.record["received"], hidden.record["dropped"], hidden.mask).number.tolist()
        [2.0]
    """

    number: Float[np.ndarray, " B"]
    """Hidden keys per head and step."""
    share: Float[np.ndarray, " B"]
    """The same as a share of the keys that were there."""
    duty: Float[np.ndarray, " B"]
    """Of the steps in which a key could be hidden, those in which it was; mean over keys that were hidden at least once."""
    are_sinks: Float[np.ndarray, " B"]
    """Share of the hidden keys that pass Eq. 3 in the map they were selected from."""
    mass: Float[np.ndarray, " B"]
    """What the hidden keys of a head together received in that map, as a share of all attention."""
    short: Float[np.ndarray, " B"]
    """select="mass" only: share of heads and steps whose hidden keys received less than the sinks that they stand for."""


@checked()
def hidden_keys(
    received: Float[ArrayLike, "T L B H S"],
    dropped: Bool[ArrayLike, "T L B H S"],
    mask: Bool[ArrayLike, "B S"] | Bool[ArrayLike, "T B S"],
    steps: Int[ArrayLike, " B"] | None = None,
    eps: float = 3.0,
    policy: MaskSinks | None = None,
) -> HiddenKeys:
    """What was hidden, from the records of `received()` and `dropped()`.

    Args:
        mask: real tokens; of an autoregressive model by step (`Generation.real_at`)
        steps: recorded steps that each sequence took (`Generation.recorded_of`); None = all
        eps: of Eq. 3
        policy: what hid them: needed for `short`. Maps of rank_on="clean" are not recorded, so `are_sinks` and
            `mass` are NaN

    Examples:
        >>> both = {"received": jaxsink.record.received(), "dropped": jaxsink.record.dropped()}
        >>> hidden = jaxsink.generate(model, question, sampler, record=both, intervene=jaxsink.sinks.MaskSinks(k=2))
        >>> jaxsink.sinks.hidden_keys(hidden.record["received"], hidden.record["dropped"], hidden.mask).number.tolist()
        [2.0]
    """
    received, dropped = np.asarray(received), np.asarray(dropped, bool)
    if received.shape != dropped.shape or received.ndim != 5:
        raise JaxsinkError(f"hidden_keys: records must be [T,L,B,H,S], not {received.shape} and {dropped.shape}.")
    total, layers, batch, heads, length = received.shape
    real = np.broadcast_to(np.asarray(mask, bool), (total, batch, length))
    counted = np.arange(1, total)[:, None] < (total if steps is None else np.asarray(steps)[None, :])
    there = (real[:-1] & counted[..., None])[:, None, :, None, :]  # keys that could be hidden, [T-1,1,B,1,S]
    hidden, before = dropped[1:] & there, np.where(there, received[:-1], 0.0).astype(np.float64)
    maps = np.broadcast_to(counted, (total - 1, batch)).sum(axis=0) * layers * heads
    number, own = hidden.sum(axis=-1), np.where(hidden, before, 0.0).sum(axis=-1)
    on_record, unknown = policy is None or policy.rank_on == "masked", np.full(batch, np.nan)
    sinks = hidden & np.asarray(detect(received[:-1], Threshold(eps), real[:-1]))
    short = unknown
    if policy is not None and policy.select == "mass" and on_record:
        followed = np.where(followed_keys(policy, received, real)[1:] & there, before, 0.0).sum(axis=-1)
        short = ratio(per_sequence(own < followed * (1 - 1e-6)), maps)
    return HiddenKeys(
        number=ratio(per_sequence(number), maps),
        share=ratio(per_sequence(number / np.maximum(there.sum(axis=-1), 1)), maps),
        duty=duty(hidden, there),
        are_sinks=ratio(per_sequence(sinks.sum(axis=-1)), per_sequence(number)) if on_record else unknown,
        mass=ratio(per_sequence(own / np.maximum(before.sum(axis=-1), 1e-30)), maps) if on_record else unknown,
        short=short,
    )


def duty(hidden: Bool[np.ndarray, "T L B H S"], there: Bool[np.ndarray, "T 1 B 1 S"]) -> Float[np.ndarray, " B"]:
    """How much of its steps a key was hidden, if it ever was; mean over such keys."""
    times = hidden.sum(axis=0)
    part = times / np.maximum(there.sum(axis=0), 1)
    return ratio(part.sum(axis=(0, 2, 3)), (times > 0).sum(axis=(0, 2, 3)))


def per_sequence(values: Shaped[np.ndarray, "T L B H"]) -> Shaped[np.ndarray, " B"]:
    return values.sum(axis=(0, 1, 3))


def ratio(part: Shaped[np.ndarray, " B"], whole: Shaped[np.ndarray, " B"]) -> Float[np.ndarray, " B"]:
    """NaN where there is no whole."""
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)


def followed_keys(
    policy: MaskSinks, received: Float[np.ndarray, "T L B H S"], real: Bool[np.ndarray, "T B S"]
) -> Bool[np.ndarray, "T L B H S"]:
    """The sinks that a matched control stood for in each step: its choices again, from the maps that it saw."""
    return np.asarray(_followed(policy, jnp.asarray(received, jnp.float32), jnp.asarray(real)))


@partial(jax.jit, static_argnames="policy")
def _followed(
    policy: MaskSinks, received: Float[Array, "T L B H S"], real: Bool[Array, "T B S"]
) -> Bool[Array, "T L B H S"]:
    nothing = jnp.zeros(received.shape[1:], bool)
    tokens = jnp.zeros(real.shape[1:], jnp.int32)
    keys = jax.random.split(jax.random.key(0), real.shape[1])  # what is followed does not depend on chance

    def step(targets: Array, before: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        number, record, mask = before
        previous = Previous(record, number + 1, tokens, mask, tokens > 0, keys, nothing, targets=targets)
        targets = policy.targets(previous) & mask[None, :, None, :]
        return targets, targets

    _, found = lax.scan(step, nothing, (jnp.arange(len(received) - 1), received[:-1], real[:-1]))
    return jnp.concatenate([nothing[None], found])
