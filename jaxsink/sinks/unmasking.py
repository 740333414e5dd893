"""Where the sampler is working, beside where the sinks are: the frontier of unmasking, and blocks.

at = frontier(out.committed_at, out.mask, out.recorded_steps)
distance(tracks.position, at.last)                        # Dream: do sinks stay with the rightmost mask?
drift_per_block(tracks.position, blocks(at, out.prompt_length, 32))
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int, Real

from jaxsink.checks import NAN_TOO, at_least
from jaxsink.doors import checked


class Frontier(NamedTuple):
    """Positions per recorded step and sequence.

    Attributes:
        first: the leftmost mask; -1 where there is none
        last: the rightmost mask; -1 where there is none
        filled: mean position of the tokens that this step fills in; NaN where there are none

    Examples:
        >>> at = jaxsink.sinks.frontier(out.committed_at, out.mask, out.recorded_steps)
        >>> at.first.shape, bool((at.first <= at.last).all())
        ((8, 1), True)
    """

    first: Int[Array, "T B"]
    last: Int[Array, "T B"]
    filled: Float[Array, "T B"]


@checked()
@jax.jit
def frontier(
    committed_at: Int[ArrayLike, "B S"], mask: Bool[ArrayLike, "B S"], recorded_steps: Int[ArrayLike, " T"]
) -> Frontier:
    """What is masked when each recorded step begins.

    Args:
        committed_at: `Generation.committed_at`
        mask: `Generation.mask`
        recorded_steps: `Generation.recorded_steps`

    Examples:
        >>> at = jaxsink.sinks.frontier(np.array([[-1, 1, 0]]), np.ones((1, 3), bool), np.arange(2))
        >>> at.first.ravel().tolist(), at.last.ravel().tolist(), at.filled.ravel().tolist()
        ([1, 1], [2, 1], [2.0, 1.0])
    """
    committed, step = jnp.asarray(committed_at)[None], jnp.asarray(recorded_steps)[:, None, None]
    position = jnp.arange(committed.shape[-1])
    masked = (committed >= step) & jnp.asarray(mask)[None]
    filling = (committed == step) & jnp.asarray(mask)[None]
    any_left = masked.any(axis=-1)
    first = jnp.where(any_left, jnp.argmax(masked, axis=-1), -1)
    last = jnp.where(any_left, position.size - 1 - jnp.argmax(masked[..., ::-1], axis=-1), -1)
    count = filling.sum(axis=-1)
    return Frontier(first, last, jnp.where(count > 0, (filling * position).sum(axis=-1) / count, jnp.nan))


@checked(at=NAN_TOO)
@jax.jit
def distance(position: Int[ArrayLike, "T L B H"], at: Real[ArrayLike, "T B"]) -> Float[Array, "T L B H"]:
    """How far the largest sink is from a position (positive = right of it); NaN where one of them is missing.

    Args:
        position: `Tracks.position`
        at: a field of `Frontier`

    Examples:
        >>> at = jaxsink.sinks.frontier(out.committed_at, out.mask, out.recorded_steps)
        >>> tracks = jaxsink.sinks.track(out.record, mask=out.mask)
        >>> jaxsink.sinks.distance(tracks.position, at.first).shape == tracks.position.shape
        True
    """
    position, origin = jnp.asarray(position), jnp.asarray(at, jnp.float32)[:, None, :, None]
    known = (position >= 0) & ~jnp.isnan(origin) & (origin >= 0)
    return jnp.where(known, position - origin, jnp.nan)


@checked(prompt_length=at_least(0), block_length=at_least(1))
def blocks(at: Frontier, prompt_length: int, block_length: int) -> Int[Array, "T B"]:
    """The block that each step works on under block decoding; -1 when all is filled.

    Args:
        at: from `frontier`
        prompt_length: `Generation.prompt_length`
        block_length: that of the sampler

    Examples:
        >>> at = jaxsink.sinks.frontier(out.committed_at, out.mask, out.recorded_steps)
        >>> jaxsink.sinks.blocks(at, out.prompt_length, block_length=16)[:, 0].tolist()
        [0, 0, 0, 0, 0, 0, 0, 0]
    """
    return jnp.where(at.first < 0, -1, (at.first - prompt_length) // block_length)


@checked(count=at_least(1))
def drift_per_block(
    position: Int[ArrayLike, "T L B H"], block: Int[ArrayLike, "T B"], count: int | None = None
) -> tuple[Float[Array, "N L B H"], Float[Array, "N-1 L B H"]]:
    """(mean position of the largest sink in each block, its change from block to block).

    Steps without a sink do not count, and a block without any gives NaN.

    Args:
        position: `Tracks.position`
        block: from `blocks`
        count: how many blocks; None: up to the last

    Examples:
        >>> position = np.array([2, 4, 8, 10]).reshape(4, 1, 1, 1)  # of the largest sink, step by step
        >>> mean, change = jaxsink.sinks.drift_per_block(position, np.array([[0], [0], [1], [1]]))
        >>> mean.ravel().tolist(), change.ravel().tolist()
        ([3.0, 9.0], [6.0])
    """
    position, block = jnp.asarray(position), jnp.asarray(block)
    return _drift_per_block(position, block, int(block.max()) + 1 if count is None else count)


@partial(jax.jit, static_argnames="count")
def _drift_per_block(
    position: Int[Array, "T L B H"], block: Int[Array, "T B"], count: int
) -> tuple[Float[Array, "N L B H"], Float[Array, "N-1 L B H"]]:
    inside = (block[None] == jnp.arange(count)[:, None, None])[:, :, None, :, None] & (position >= 0)[None]
    steps = inside.sum(axis=1)
    mean = jnp.where(steps > 0, jnp.where(inside, position[None], 0).sum(axis=1) / jnp.maximum(steps, 1), jnp.nan)
    return mean, mean[1:] - mean[:-1]
