"""LLaDA2.0's and 2.1's sampler."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxsink.errors import a_model
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.base import require
from jaxsink.sampling.blocks import BlockCausalSampler, first_open_block
from jaxsink.sampling.canvas import Block, Canvas, Commit, Window
from jaxsink.sampling.confidence import choose_token, commit_best, log_odds, probability, shape_logits, token_noise
from jaxsink.sampling.rng import Draws


@dataclass(frozen=True)
class LLaDA2Sampler(BlockCausalSampler):
    """LLaDA2's generation: blocks counted from the first token of the prompt, each filled in at most `steps` steps.

    A step commits every mask surer than `threshold` if these are at least its quota, else its quota of the surest; the
    quotas of a block's steps are even shares of its length. The last block is always a whole one, so a response may exceed
    gen_length by less than a block. A sequence that has an eos in its response when a block is full is finished, and its
    rest is eos.

    With an `editing_threshold` it is LLaDA2.1's algorithm. In the same step every token of the block that this run wrote,
    and that the model is surer than this should be another, is replaced; a full block is gone through again until nothing
    changes. `steps` does nothing then, and an eos ends a sequence only with eos_early_stop. `Generation.commits` has every
    token that a position had.

    Attributes:
        gen_length: tokens of the response, at least
        block_length: tokens of a block, and what the model sees as one, whatever its own
        steps: per block
        threshold: probability above which a mask is filled; None always commits the quota
        editing_threshold: probability above which a written token is replaced; None: never
        max_post_steps: passes over a full block, at most (editing)
        num_to_transfer: the quota of a step (editing)
        eos_early_stop: a sequence is finished as soon as no mask stands before an eos
        temperature: of the draws; 0 takes the likeliest token
        top_p: draw from the likeliest tokens that have this probability together
        top_k: draw from so many of the likeliest tokens

    Examples:
        >>> jaxsink.LLaDA2Sampler(gen_length=64, threshold=0.7, editing_threshold=0.5).edits
        True
    """

    gen_length: int = 128
    block_length: int = 32
    steps: int = 32
    threshold: float | None = 0.95
    editing_threshold: float | None = None
    max_post_steps: int = 16
    num_to_transfer: int = 1
    eos_early_stop: bool = False
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None

    @property
    def adaptive(self) -> bool:
        return True

    @property
    def edits(self) -> bool:
        return self.editing_threshold is not None

    @property
    def infills(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return not self.edits

    @property
    def stop_at_eos(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.eos_early_stop or not self.edits

    @property
    def stop_rule(self) -> Literal["any", "first"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "first" if self.eos_early_stop and not self.edits else "any"

    def check(self, config: ModelConfig) -> None:
        super().check(config)
        require(config.block_length is not None, f"LLaDA2Sampler: {a_model(config.family)} is not block-causal.")
        require(
            self.num_to_transfer <= self.block_length,
            f"LLaDA2Sampler: num_to_transfer must lie between 1 and the block length, and is {self.num_to_transfer}.",
        )

    def run_config(self, config: ModelConfig) -> ModelConfig:
        return config.replace(block_length=self.block_length)

    def total_steps(self, masks: int) -> int:
        if not self.edits:
            return masks
        blocks = masks // self.block_length + 1
        filling = min(masks, blocks * math.ceil(self.block_length / self.num_to_transfer))
        return filling + blocks * self.max_post_steps

    def response_mask(
        self, config: ModelConfig, prompt_lengths: Int[np.ndarray, " B"], padded: bool
    ) -> Bool[np.ndarray, "B R"]:
        length = self.gen_length + -(prompt_lengths + self.gen_length) % self.block_length
        widest = self.gen_length + self.block_length - 1 if padded else int(length.max())
        return np.arange(widest) < length[:, None]

    def window(self, config: ModelConfig) -> int:
        return self.block_length

    def block(self, config: ModelConfig, canvas: Canvas) -> Block:
        return first_open_block(config, canvas)

    def quota(self, step: Int[Array, " B"]) -> Int[Array, " B"] | int:
        """How many masks a step of a block commits at least."""
        if self.edits:
            return self.num_to_transfer
        steps = min(self.steps, self.gen_length)
        return self.block_length // steps + (step < self.block_length % steps)

    def decide(self, config: ModelConfig, logits: Float[Array, "B W V"], window: Window, draws: Draws) -> Commit:
        assert config.mask_id is not None
        shaped = shape_logits(logits, self.temperature, self.top_p, self.top_k, k_first=True)
        noise = token_noise(draws, window, logits.shape[-1]) if self.temperature > 0 else None
        choice = choose_token(shaped, logits, config.mask_id, noise)
        odds = log_odds(shaped, choice.token)
        sureness = jnp.where(choice.waits, -1.0, probability(odds))
        quota = jnp.broadcast_to(self.quota(window.block_step), window.block_step.shape)
        filled = commit_best(choice.order(odds), window.eligible, quota)
        if self.threshold is not None:
            sure = window.eligible & (sureness > self.threshold)
            filled = jnp.where((sure.sum(axis=1) >= quota)[:, None], sure, filled)
        if self.editing_threshold is None:
            return Commit(choice.token, filled)
        assert window.written is not None and window.full_steps is not None
        edited = window.written & (choice.token != window.token) & (sureness > self.editing_threshold)
        again = jnp.where(window.eligible.any(axis=1), 0, window.full_steps) < self.max_post_steps
        changes = window.eligible.any(axis=1) | edited.any(axis=1)
        return Commit(choice.token, filled | edited, stays=changes & again)
