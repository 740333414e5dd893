"""MDLM's and BD3LM's sampler."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Float32, Int

from jaxsink.errors import a_model
from jaxsink.nn.conditioning import as_time
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.base import require
from jaxsink.sampling.blocks import BlockCausalSampler, first_open_block, whole_blocks
from jaxsink.sampling.canvas import Block, Canvas, Commit, Window
from jaxsink.sampling.confidence import commit_best, keep_within_p, pick, position_draws, token_noise, without
from jaxsink.sampling.rng import TRANSFER, Draws
from jaxsink.sampling.schedules import dream_ratios, torch_linspace


@dataclass(frozen=True)
class AncestralSampler(BlockCausalSampler):
    """The masking process run backwards: positions come at random, tokens are drawn from the model, and both stay.

    Block-causal models are sampled block by block, and their last block is always a whole one.

    Attributes:
        gen_length: tokens of the response
        steps: so many noise levels from 1 to `eps`; between t and s a mask is filled with probability 1 - s/t, and the last
            step fills the rest (MDLM). None goes from one filled mask to the next instead, in a random order: what
            infinitely many steps would give (the first-hitting sampler, BD3LM)
        temperature: of the draws
        top_p: draw from the likeliest tokens that have no more than this probability together
        eps: the last noise level
        stop_at_eos: a sequence that has an eos in its response when a block is full is finished

    Examples:
        >>> jaxsink.AncestralSampler(gen_length=16, steps=8).total_steps(16)
        8
        >>> jaxsink.AncestralSampler(gen_length=16).total_steps(16)  # one mask after another
        16
    """

    stop_rule = "any"

    gen_length: int = 128
    steps: int | None = None
    temperature: float = 1.0
    top_p: float | None = None
    eps: float = 1e-5
    stop_at_eos: bool = False

    @property
    def adaptive(self) -> bool:
        return self.steps is None

    def check(self, config: ModelConfig) -> None:
        super().check(config)
        require(
            self.steps is None or config.block_length is None,
            f"AncestralSampler: {a_model(config.family)} of blocks is filled one mask at a time; leave steps out.",
        )
        require(
            self.steps is not None or config.time_conditioning in (None, "constant"),
            f"AncestralSampler: this {config.family} model is told the noise level, so give steps.",
        )
        require(
            not self.stop_at_eos or bool(config.eos_ids), "AncestralSampler: stop_at_eos needs a model with an eos id."
        )

    def total_steps(self, masks: int) -> int:
        return masks if self.steps is None else self.steps

    def response_mask(
        self, config: ModelConfig, prompt_lengths: Int[np.ndarray, " B"], padded: bool
    ) -> Bool[np.ndarray, "B R"]:
        if config.block_length is None:
            return super().response_mask(config, prompt_lengths, padded)
        return whole_blocks(config, prompt_lengths, self.gen_length, padded)

    def window(self, config: ModelConfig) -> int:
        return config.block_length or self.gen_length

    def block(self, config: ModelConfig, canvas: Canvas) -> Block:
        return super().block(config, canvas) if config.block_length is None else first_open_block(config, canvas)

    def time(self, config: ModelConfig, window: Window) -> Float32[Array, " B"] | None:
        if self.steps is None:
            return None
        level = jnp.asarray(torch_linspace(1.0, self.eps, self.steps + 1))[window.step]
        return as_time(config, jnp.full(len(window.position), level))

    def decide(self, config: ModelConfig, logits: Float[Array, "B W V"], window: Window, draws: Draws) -> Commit:
        assert config.mask_id is not None
        shaped = without(logits, (config.mask_id,))
        shaped = shaped / self.temperature if self.temperature > 0 else shaped
        shaped = shaped if self.top_p is None or self.top_p == 1 else keep_within_p(shaped, self.top_p)
        noise = token_noise(draws, window, logits.shape[-1]) if self.temperature > 0 else None
        token, draw = pick(shaped, noise), position_draws(draws, TRANSFER, window)
        if self.steps is None:
            return Commit(token, commit_best(draw, window.eligible, jnp.ones(len(draw), jnp.int32)))
        ratio = jnp.asarray(dream_ratios(self.steps, self.eps))[window.step]
        return Commit(token, window.eligible & (draw < ratio))
