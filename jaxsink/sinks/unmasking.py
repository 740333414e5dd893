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


class Frontier(NamedTuple):
    """Positions per recorded step and sequence.

    first   the leftmost mask; -1 where there is none
    last    the rightmost mask; -1 where there is none
    filled  mean position of the tokens that this step fills in; NaN where there are none
    """

    first: Int[Array, "T B"]
    last: Int[Array, "T B"]
    filled: Float[Array, "T B"]


@jax.jit
def frontier(
    committed_at: Int[ArrayLike, "B S"], mask: Bool[ArrayLike, "B S"], recorded_steps: Int[ArrayLike, " T"]
) -> Frontier:
    """What is masked when each recorded step begins; the arguments are those of `Generation`."""
    committed, step = jnp.asarray(committed_at)[None], jnp.asarray(recorded_steps)[:, None, None]
    position = jnp.arange(committed.shape[-1])
    masked = (committed >= step) & jnp.asarray(mask)[None]
    filling = (committed == step) & jnp.asarray(mask)[None]
    any_left = masked.any(axis=-1)
    first = jnp.where(any_left, jnp.argmax(masked, axis=-1), -1)
    last = jnp.where(any_left, position.size - 1 - jnp.argmax(masked[..., ::-1], axis=-1), -1)
    count = filling.sum(axis=-1)
    return Frontier(first, last, jnp.where(count > 0, (filling * position).sum(axis=-1) / count, jnp.nan))


@jax.jit
def distance(position: Int[ArrayLike, "T L B H"], at: Real[ArrayLike, "T B"]) -> Float[Array, "T L B H"]:
    """How far the largest sink is from position `at` (positive = right of it); NaN where one of them is missing."""
    position, origin = jnp.asarray(position), jnp.asarray(at, jnp.float32)[:, None, :, None]
    known = (position >= 0) & ~jnp.isnan(origin) & (origin >= 0)
    return jnp.where(known, position - origin, jnp.nan)


def blocks(at: Frontier, prompt_length: int, block_length: int) -> Int[Array, "T B"]:
    """The block that each step works on under block decoding; -1 when all is filled."""
    return jnp.where(at.first < 0, -1, (at.first - prompt_length) // block_length)


def drift_per_block(
    position: Int[ArrayLike, "T L B H"], block: Int[ArrayLike, "T B"], count: int | None = None
) -> tuple[Float[Array, "N L B H"], Float[Array, "N-1 L B H"]]:
    """(mean position of the largest sink in each block, its change from block to block).

    Steps without a sink do not count, and a block without any gives NaN. count: how many blocks; None = up to the last.
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
