"""Decoding blocks of block-causal models, which are counted from the first token of the prompt."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.canvas import Block, Canvas


def whole_blocks(
    config: ModelConfig, prompt_lengths: Int[np.ndarray, " B"], gen_length: int, padded: bool
) -> Bool[np.ndarray, "B R"]:
    """The positions of a response of `gen_length` that goes on to the end of its last block."""
    assert config.block_length is not None
    length = gen_length + -(prompt_lengths + gen_length) % config.block_length
    widest = gen_length + config.block_length - 1 if padded else int(length.max())
    return np.arange(widest) < length[:, None]


def first_open_block(config: ModelConfig, canvas: Canvas) -> Block:
    """The block of each sequence's first mask."""
    assert config.block_length is not None
    number = (jnp.argmax(canvas.masked, axis=1) - canvas.first) // config.block_length
    begin = canvas.first + number * config.block_length
    return Block(number, begin, jnp.minimum(begin + config.block_length, canvas.tokens.shape[1]))
