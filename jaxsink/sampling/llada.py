"""LLaDA's and MMaDA's sampler."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.base import require
from jaxsink.sampling.canvas import Block, Canvas, Commit, Window
from jaxsink.sampling.confidence import (
    choose_token,
    commit_above,
    commit_best,
    log_odds,
    position_draws,
    probability,
    token_noise,
    without,
)
from jaxsink.sampling.diffusion import DiffusionSampler
from jaxsink.sampling.rng import REMASK, Draws

Remasking = Literal["low_confidence", "random", "left_to_right"]
"""Which masks of the block are committed first."""


@dataclass(frozen=True)
class LLaDASampler(DiffusionSampler):
    """LLaDA's and MMaDA's generation: block by block, the surest positions first.

    Attributes:
        gen_length: tokens of the response
        steps: in all, shared evenly by the blocks
        block_length: tokens of a block
        temperature: of the Gumbel noise on the logits; 0 takes the likeliest token
        cfg_scale: guidance, against the same canvas without its prompt; 0: none
        remasking: "low_confidence" commits the surest positions; "random" any; "left_to_right" the first ones, however
            unsure, so that nothing ever waits
        logits_eos_inf: never write an eos
        confidence_eos_eot_inf: commit an eos or eot only where nothing else is left
        threshold: commit every position at least this sure, and at least one, instead of a fixed number per step; blocks
            then end when they are full
        stop_at_eos: a sequence whose block ends in eos is finished, and its rest is eos
        text_only: never emit ids beyond the text vocabulary (MMaDA's image codes)
        cache: "prefix" or "dual" reuse keys and values within a block (Fast-dLLM): faster, approximate, and recorded
            attention then covers the tokens that ran only. With a threshold as well, the sequences of a batch wait for each
            other at the end of every block, so `steps` and `committed_at` are those of the batch; random draws, which belong
            to steps, are refused there

    Examples:
        >>> fast = jaxsink.LLaDASampler(gen_length=16, steps=16, block_length=16, threshold=0.9)
        >>> int(jaxsink.generate(model, question, fast).steps[0]) < 16
        True
        >>> fast.blocks, fast.steps_per_block
        (1, 16)
    """

    gen_length: int = 128
    steps: int = 128
    block_length: int = 128
    temperature: float = 0.0
    cfg_scale: float = 0.0
    remasking: Remasking = "low_confidence"
    logits_eos_inf: bool = False
    confidence_eos_eot_inf: bool = False
    threshold: float | None = None
    stop_at_eos: bool = False
    text_only: bool = False
    cache: Literal["prefix", "dual"] | None = None

    @property
    def blocks(self) -> int:
        return self.gen_length // self.block_length

    @property
    def steps_per_block(self) -> int:
        return self.steps // self.blocks

    @property
    def adaptive(self) -> bool:
        """Sequences move on when their block is full, not when its time is up."""
        return self.threshold is not None

    def check(self, config: ModelConfig) -> None:
        super().check(config)
        require(
            self.gen_length % self.block_length == 0,
            f"LLaDASampler: gen_length {self.gen_length} is not a multiple of block_length {self.block_length}.",
        )
        require(
            self.steps % self.blocks == 0,
            f"LLaDASampler: {self.steps} steps cannot be shared evenly by {self.blocks} blocks.",
        )
        require(self.cache is None or self.cfg_scale == 0, "LLaDASampler: guidance and a cache do not go together.")
        require(
            not self.text_only or config.text_vocab is not None,
            "LLaDASampler: text_only needs a model whose config says where text ends (text_vocab).",
        )
        needs_eos = self.stop_at_eos or self.logits_eos_inf or self.confidence_eos_eot_inf
        require(not needs_eos or bool(config.eos_ids), "LLaDASampler: the eos options need a model with an eos id.")
        draws = self.temperature > 0 or self.remasking == "random"
        require(
            self.cache is None or self.threshold is None or not draws,
            "LLaDASampler: with a cache and a threshold the steps depend on the batch, and so would random draws; set "
            "temperature to 0 and remasking to 'low_confidence', or leave one of the two out.",
        )

    def total_steps(self, masks: int) -> int:
        return masks if self.adaptive else self.steps_per_block * self.blocks

    def window(self, config: ModelConfig) -> int:
        return self.block_length

    def block(self, config: ModelConfig, canvas: Canvas) -> Block:
        batch = canvas.tokens.shape[0]
        if self.adaptive:
            first_mask = jnp.argmax(canvas.masked, axis=1)
            number = jnp.maximum(first_mask - canvas.prompt_length, 0) // self.block_length
        else:
            number = jnp.full(batch, canvas.step // self.steps_per_block)
        number = jnp.minimum(number, self.blocks - 1)
        if self.cache is not None and self.adaptive:  # sequences share the cached block
            number = jnp.full(batch, jnp.where(canvas.masked.any(axis=1), number, self.blocks).min())
        begin = canvas.prompt_length + number * self.block_length
        return Block(number, begin, begin + self.block_length)

    def queries_per_step(self, length: int) -> float:
        if self.cache is None:
            return float(length)
        part = self.block_length if self.cache == "dual" else self.gen_length
        return (length + (self.steps_per_block - 1) * min(part, length)) / self.steps_per_block

    def with_length(self, length: int) -> LLaDASampler:
        """As many tokens per step, in blocks that fit."""
        is_one_block, fits = self.block_length == self.gen_length, length % self.block_length == 0
        block = length if is_one_block else self.block_length if fits else default_block(length)
        blocks = length // block
        steps = max(1, length * self.steps // self.gen_length // blocks) * blocks
        return replace(self, gen_length=length, block_length=block, steps=steps)

    def decide(self, config: ModelConfig, logits: Float[Array, "B W V"], window: Window, draws: Draws) -> Commit:
        assert config.mask_id is not None
        if self.text_only and config.text_vocab is not None:
            logits = logits.at[..., config.text_vocab :].set(-jnp.inf)
        if self.logits_eos_inf:
            logits = without(logits, config.eos_ids[:1])
        noise = self.temperature * token_noise(draws, window, logits.shape[-1]) if self.temperature > 0 else None
        choice = choose_token(logits, logits, config.mask_id, noise)
        if self.remasking == "random":
            order = value = position_draws(draws, REMASK, window)
        else:
            order = log_odds(without(logits, self.unsure_ids(config)), choice.token)
            value = probability(order)
        order = -window.offset.astype(jnp.float32) if self.remasking == "left_to_right" else choice.order(order)
        if self.threshold is not None:
            above = ~choice.waits & (value >= self.threshold)
            return Commit(choice.token, commit_above(order, window.eligible, above))
        share, rest = window.block_masks // self.steps_per_block, window.block_masks % self.steps_per_block
        return Commit(choice.token, commit_best(order, window.eligible, share + (window.block_step < rest)))

    def unsure_ids(self, config: ModelConfig) -> tuple[int, ...]:
        """Tokens that count as unlikely when positions are ranked."""
        if not self.confidence_eos_eot_inf:
            return ()
        return (*config.eos_ids[:1], *(() if config.eot_id is None else (config.eot_id,)))


def default_block(tokens: int) -> int:
    """32; or the largest length from 8 on that divides the response; or all of it."""
    return next((n for n in range(min(32, tokens), 7, -1) if tokens % n == 0), tokens)
