"""Fast-dLLM v2's block cache: full blocks keep their keys and values, and while a small block is filled it runs alone.

Attention is block-causal, so keys and values of full blocks are exact. Those of the block at hand are those of its last
pass as a whole, which comes first in a block, and again for as long as a small block has no first token; in between a pass
runs the small block on them, which is the approximation. Sequences stand at different places of their blocks; each does
what it would do alone. If one of them has to run a block, all run one, and tokens that should not only fill the number up.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from jaxsink.nn.batch import Batch
from jaxsink.nn.recorder import Recorder
from jaxsink.sampling.block_cache import Hiding, PassOutput, whole_or_part
from jaxsink.sampling.canvas import Window
from jaxsink.sampling.diffusion import DiffusionCarry
from jaxsink.sampling.run import Decoding


class Stretch(NamedTuple):
    """What each sequence runs in a step."""

    is_block: Bool[Array, " B"]  # a whole block; else the small block
    block: Int[Array, " B"]  # position of the block's first token …
    small: Int[Array, " B"]  # … and of the small block's

    @classmethod
    def make(cls, run: Decoding, carry: DiffusionCarry, window: Window, sizes: tuple[int, int]) -> Stretch:
        """A block that has no seed yet needs a pass over the block before it, which predicts the seed."""
        small, first = window.position[:, 0], jnp.argmax(run.inputs.mask, axis=1)
        is_bare = jnp.take_along_axis(carry.tokens, small[:, None], axis=1)[:, 0] == run.config.mask_id
        place, (block_size, small_block_size) = small - first, sizes
        lacks_seed = is_bare & (place % block_size == 0)
        block = small - place % block_size - jnp.where(lacks_seed, block_size, 0)
        is_block = ~carry.done & (is_bare | (window.block_step == 0))
        length = carry.tokens.shape[1]  # finished sequences stand nowhere
        return cls(is_block, jnp.clip(block, 0, length - block_size), jnp.clip(small, 0, length - small_block_size))

    @property
    def begin(self) -> Int[Array, "B 1"]:
        return jnp.where(self.is_block, self.block, self.small)[:, None]

    def runs(self, length: int, sizes: tuple[int, int]) -> Bool[Array, "B S"]:
        position, size = jnp.arange(length), jnp.where(self.is_block, *sizes)[:, None]
        return (position >= self.begin) & (position < self.begin + size)


def small_block_pass(
    run: Decoding,
    carry: DiffusionCarry,
    window: Window,
    hiding: Hiding,
    recorders: tuple[Recorder, ...],
    sizes: tuple[int, int],
) -> PassOutput:
    """sizes: of a block and of a small block. The first token of a small block that runs alone predicts itself."""
    assert carry.cache is not None
    length = carry.tokens.shape[1]
    stretch = Stretch.make(run, carry, window, sizes)
    batch = Batch.make(run.config, carry.tokens, run.inputs.mask, prompt=run.inputs.prompt, done=carry.done)
    batch = batch._replace(hidden_from=hiding.hidden_from, runs=stretch.runs(length, sizes))

    def over(start: Int[Array, " B"], queries: int) -> PassOutput:
        outputs = jnp.clip(jnp.maximum(window.position - 1, stretch.begin) - start[:, None], 0, queries - 1)
        part = run.looked_into(batch._replace(outputs=outputs, start=start, queries=queries), carry.step)
        out = run.model(part, cache=carry.cache, drop=hiding.drop, recorders=recorders, execution=run.spec.execution)
        assert out.logits is not None and out.cache is not None
        return out.logits, out.record, out.cache

    blocks, small_blocks = partial(over, stretch.block, sizes[0]), partial(over, stretch.small, sizes[1])
    return whole_or_part(stretch.is_block.any(), blocks, small_blocks, recorders)
