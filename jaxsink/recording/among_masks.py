"""A recorder of the attention that masked tokens pay to each other: FOCUS's importance (arXiv 2601.23278)."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32

from jaxsink.checks import at_least, check_fields
from jaxsink.nn.batch import MASKED
from jaxsink.nn.recorder import Recorder, ready_made
from jaxsink.nn.taps import Tap

TINY = 1e-30


@ready_made
def among_masks(first: int = 0, last: int | None = None) -> Recorder:
    """f32[B,H,S]: what each masked token receives from the masked tokens, if these attended to masked tokens alone.

    Each masked query's attention is spread over the masked keys: a key counts as much as the strongest of itself and the
    masked keys next to it on either side, and the query gives 1 in all. The sum over heads is what FOCUS calls importance.

    Args:
        first: position that takes part, such as the first of the current block
        last: position that takes part; None: to the end

    Examples:
        >>> from jaxsink.recording.among_masks import among_masks
        >>> seen = jaxsink.generate(model, question, sampler, record=among_masks())
        >>> seen.record.shape == out.record.shape  # steps, layers, sequences, heads, keys
        True
    """
    return Recorder(_AmongMasks(first, last), "sum")


@dataclass(frozen=True)
class _AmongMasks:
    first: int
    last: int | None

    def __post_init__(self) -> None:
        check_fields(self, "among_masks", {"first": at_least(0), "last": at_least(0)})

    def __call__(self, tap: Tap) -> Float32[Array, "B H S"]:
        assert tap.probs is not None
        length = tap.probs.shape[-1]
        end = length - 1 if self.last is None else self.last
        position = jnp.arange(length)
        keys = tap.mask & (tap.key_kind == MASKED) & (position >= self.first) & (position <= end)
        at = tap.query_position
        queries = tap.query_mask & (tap.query_kind == MASKED) & (at >= self.first) & (at <= end)
        paid = jnp.where(keys[:, None, None, :], tap.probs, 0.0)
        pooled = jnp.where(keys[:, None, None, :], strongest_beside(paid, keys), 0.0)
        shares = pooled / jnp.maximum(pooled.sum(axis=-1, keepdims=True), TINY)
        return jnp.where(queries[:, None, :, None], shares, 0.0).sum(axis=2)


def strongest_beside(paid: Float32[Array, "B H Q S"], keys: Bool[Array, "B S"]) -> Float32[Array, "B H Q S"]:
    """The largest of each key's own and those of the nearest of these keys before and after it."""
    length = keys.shape[-1]
    position = jnp.arange(length)
    before = lax.cummax(jnp.where(keys, position, -1), axis=1)
    before = jnp.pad(before, ((0, 0), (1, 0)), constant_values=-1)[:, :length]
    after = lax.cummin(jnp.where(keys, position, length), axis=1, reverse=True)
    after = jnp.pad(after, ((0, 0), (0, 1)), constant_values=length)[:, 1:]

    def neighbour(index: Array) -> Array:
        there = (index >= 0) & (index < length)
        index = jnp.clip(index, 0, length - 1)[:, None, None, :]
        return jnp.where(there[:, None, None, :], jnp.take_along_axis(paid, index, axis=-1), 0.0)

    return jnp.maximum(paid, jnp.maximum(neighbour(before), neighbour(after)))
