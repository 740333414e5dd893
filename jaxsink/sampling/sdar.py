"""SDAR's sampler."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxsink.errors import a_model
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.base import require
from jaxsink.sampling.blocks import BlockCausalSampler, first_open_block, whole_blocks
from jaxsink.sampling.canvas import Block, Canvas, Commit, Window
from jaxsink.sampling.confidence import choose_token, commit_best, log_odds, probability, shape_logits, token_noise
from jaxsink.sampling.rng import Draws


@dataclass(frozen=True)
class SDARSampler(BlockCausalSampler):
    """SDAR's generation: blocks of the model's own length, counted from the first token of the prompt.

    A step commits every position surer than `threshold` if these are at least its quota, else its quota of the surest. The
    last block is always a whole one, so a response may exceed gen_length by less than a block.

    Attributes:
        gen_length: tokens of the response, at least
        steps_per_block: None: the block length
        threshold: probability above which a position is committed; None always commits the quota
        temperature: of the draws; 0 takes the likeliest token
        top_p: draw from the likeliest tokens that have this probability together
        top_k: draw from so many of the likeliest tokens
        stop_at_eos: a sequence that has an eos in its response when a block is full is finished, and its rest is eos

    Examples:
        >>> jaxsink.SDARSampler(gen_length=64, threshold=None).with_length(32).gen_length
        32
    """

    stop_rule = "any"

    gen_length: int = 128
    steps_per_block: int | None = None
    threshold: float | None = 0.9
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    stop_at_eos: bool = False

    @property
    def adaptive(self) -> bool:
        return True

    def check(self, config: ModelConfig) -> None:
        super().check(config)
        require(config.block_length is not None, f"SDARSampler: {a_model(config.family)} is not block-causal.")
        steps = self.steps_per_block
        fits = steps is None or (config.block_length is not None and steps <= config.block_length)
        require(fits, f"SDARSampler: steps_per_block must lie between 1 and the block length, and is {steps}.")
        require(not self.stop_at_eos or bool(config.eos_ids), "SDARSampler: stop_at_eos needs a model with an eos id.")

    def total_steps(self, masks: int) -> int:
        return masks

    def response_mask(
        self, config: ModelConfig, prompt_lengths: Int[np.ndarray, " B"], padded: bool
    ) -> Bool[np.ndarray, "B R"]:
        return whole_blocks(config, prompt_lengths, self.gen_length, padded)

    def window(self, config: ModelConfig) -> int:
        assert config.block_length is not None
        return config.block_length

    def block(self, config: ModelConfig, canvas: Canvas) -> Block:
        return first_open_block(config, canvas)

    def decide(self, config: ModelConfig, logits: Float[Array, "B W V"], window: Window, draws: Draws) -> Commit:
        assert config.mask_id is not None and config.block_length is not None
        shaped = shape_logits(logits, self.temperature, self.top_p, self.top_k, k_first=True)
        noise = token_noise(draws, window, logits.shape[-1]) if self.temperature > 0 else None
        choice = choose_token(shaped, logits, config.mask_id, noise)
        confidence = choice.order(log_odds(shaped, choice.token))
        steps = self.steps_per_block or config.block_length
        quota = config.block_length // steps + (window.block_step < config.block_length % steps)
        best = commit_best(confidence, window.eligible, quota)
        if self.threshold is None:
            return Commit(choice.token, best)
        sure = window.eligible & ~choice.waits & (probability(confidence) > self.threshold)
        return Commit(choice.token, jnp.where((sure.sum(axis=1) >= quota)[:, None], sure, best))
