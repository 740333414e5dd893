"""Where the sampler is working, beside where the sinks are: the frontier of unmasking, and blocks.

at = frontier(out.committed_at, out.mask, out.recorded_steps)
distance(tracks.position, at.last)                        # Dream: do sinks stay with the rightmost mask?
drift_per_block(tracks.position, blocks(at, out.prompt_length, 32))
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Frontier(NamedTuple):
    """Positions per recorded step and row, [T,B]; -1 (NaN for the mean) where there is none."""

    first: Array  # i32, leftmost mask
    last: Array  # i32, rightmost mask
    filled: Array  # f32, mean position of what this step fills in


@jax.jit
def frontier(committed_at: Any, mask: Any, recorded_steps: Any) -> Frontier:
    """What is masked when each recorded step begins, from `Generation.committed_at` i32[B,S]."""
    committed, step = jnp.asarray(committed_at)[None], jnp.asarray(recorded_steps)[:, None, None]
    place = jnp.arange(committed.shape[-1])
    masked = (committed >= step) & jnp.asarray(mask)[None]
    filling = (committed == step) & jnp.asarray(mask)[None]
    any_left = masked.any(axis=-1)
    first = jnp.where(any_left, jnp.argmax(masked, axis=-1), -1)
    last = jnp.where(any_left, place.size - 1 - jnp.argmax(masked[..., ::-1], axis=-1), -1)
    count = filling.sum(axis=-1)
    return Frontier(first, last, jnp.where(count > 0, (filling * place).sum(axis=-1) / count, jnp.nan))


@jax.jit
def distance(position: Any, at: Any) -> Array:
    """f32[T,L,B,H]: places from `at` [T,B] to the largest sink [T,L,B,H] (right of it is positive); NaN without one."""
    position, at = jnp.asarray(position), jnp.asarray(at, jnp.float32)[:, None, :, None]
    known = (position >= 0) & ~jnp.isnan(at) & (at >= 0)
    return jnp.where(known, position - at, jnp.nan)


def blocks(at: Frontier, prompt_length: int, block_length: int) -> Array:
    """i32[T,B]: the block that each step works on under block decoding; -1 when all is filled."""
    return jnp.where(at.first < 0, -1, (at.first - prompt_length) // block_length)


def drift_per_block(position: Any, block: Any, count: int | None = None) -> tuple[Array, Array]:
    """(mean position of the largest sink in each block f32[N,L,B,H], change from block to block f32[N-1,L,B,H]).

    position i32[T,L,B,H], block i32[T,B]; steps without a sink do not count, and a block without any gives NaN.
    """
    position, block = jnp.asarray(position), jnp.asarray(block)
    return _drift_per_block(position, block, int(block.max()) + 1 if count is None else count)


@partial(jax.jit, static_argnames="count")
def _drift_per_block(position: Array, block: Array, count: int) -> tuple[Array, Array]:
    inside = (block[None] == jnp.arange(count)[:, None, None])[:, :, None, :, None] & (position >= 0)[None]
    steps = inside.sum(axis=1)
    mean = jnp.where(steps > 0, jnp.where(inside, position[None], 0).sum(axis=1) / jnp.maximum(steps, 1), jnp.nan)
    return mean, mean[1:] - mean[:-1]
