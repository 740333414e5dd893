"""Decoding blocks that come one after the other: where they are, and what of the canvas is there already."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.canvas import Appending, Block, Canvas, Sight, Window
from jaxsink.sampling.diffusion import DiffusionSampler


class BlockCausalSampler(DiffusionSampler):
    """A sampler of block-causal models, whose blocks are counted from the first token of the prompt.

    Later blocks are not there yet, as in the originals, which run the model up to the end of the block. No logits depend on
    that, but records and interventions do. A prompt is there as a whole, whichever of its masks are filled first.
    """

    def sight(self, config: ModelConfig, canvas: Canvas, block: Block, window: Window) -> Sight | None:
        return None if config.block_length is None else blocks_so_far(canvas, block, config.block_length, canvas.first)

    def appending(self, config: ModelConfig) -> Appending | None:
        size = self.run_config(config).block_length
        return None if size is None else Appending(size, from_first=True, edits=self.edits)


def whole_blocks(
    config: ModelConfig, prompt_lengths: Int[np.ndarray, " B"], gen_length: int, padded: bool
) -> Bool[np.ndarray, "B R"]:
    """The positions of a response of `gen_length` that goes on to the end of its last block."""
    assert config.block_length is not None
    length = gen_length + -(prompt_lengths + gen_length) % config.block_length
    widest = gen_length + config.block_length - 1 if padded else int(length.max())
    return np.arange(widest) < length[:, None]


def first_open_block(config: ModelConfig, canvas: Canvas) -> Block:
    """The block of each sequence's first mask, or the one in which it stays; blocks count from its first token."""
    assert config.block_length is not None
    number = (jnp.argmax(canvas.masked, axis=1) - canvas.first) // config.block_length
    if canvas.stays is not None and canvas.block is not None:
        number = jnp.where(canvas.stays, canvas.block, number)
    begin = canvas.first + number * config.block_length
    return Block(number, begin, jnp.minimum(begin + config.block_length, canvas.tokens.shape[1]))


def blocks_so_far(
    canvas: Canvas,
    block: Block,
    size: int,
    origin: Int[Array, " B"] | int,
    limit: Int[Array, "B S"] | None = None,
) -> Sight:
    """The prompt is there, and all up to the end of the block. origin: the position that blocks are counted from."""
    assert canvas.block is not None

    def up_to(number: Int[Array, " B"]) -> Bool[Array, "B S"]:
        end = jnp.maximum(origin + (number + 1) * size, canvas.prompt_length)
        return jnp.arange(canvas.tokens.shape[1]) < end[:, None]

    return Sight(mask=up_to(block.number), limit=limit, before=up_to(canvas.block))
