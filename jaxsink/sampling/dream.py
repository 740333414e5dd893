"""Dream's sampler."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.base import require
from jaxsink.sampling.canvas import Block, Canvas, Commit, Window
from jaxsink.sampling.confidence import (
    choose_token,
    commit_best,
    log_odds,
    position_draws,
    probability,
    shape_logits,
    sure_by_entropy,
    sure_by_margin,
    token_noise,
)
from jaxsink.sampling.diffusion import DiffusionSampler
from jaxsink.sampling.llada import default_block
from jaxsink.sampling.rng import ORDER, TRANSFER, Draws, gumbel, position_keys
from jaxsink.sampling.schedules import dream_ratios


@dataclass(frozen=True, repr=False)
class DreamSampler(DiffusionSampler):
    """Dream's generation: the whole response at once, shifted logits, a share of the masks per step.

    The share of step i is int(masks * (1 - t[i+1]/t[i])), all at the end.

    Attributes:
        max_new_tokens: tokens of the response
        steps: in all
        alg: which positions are filled first: "entropy", "maskgit_plus" (top probability), "topk_margin", or "origin"
            (random positions)
        alg_temp: above 0 draws the positions at random, surer ones more often
        temperature: of the draws of tokens; 0 takes the likeliest
        top_p: draw from the likeliest tokens that have this probability together
        top_k: draw from so many of the likeliest tokens
        eps: the last noise level of the schedule
        block_length: fill the response block by block, each with its share of the steps and a schedule of its own, as
            Fast-dLLM runs Dream; None, as Dream itself, has one block
        cache: "prefix" or "dual" reuse keys and values within a block: faster, approximate, and recorded attention then
            covers the tokens that ran only (docs/numerics.md)

    Examples:
        >>> dream = jaxsink.load("mini-dream")
        >>> filled = jaxsink.generate(dream, question, jaxsink.DreamSampler(max_new_tokens=16, steps=8))
        >>> filled.steps.tolist()
        [8]
        >>> four = jaxsink.DreamSampler(max_new_tokens=128, steps=64, block_length=32)
        >>> four.blocks, four.steps_per_block
        (4, 16)
    """

    later = ("block_length", "cache")

    max_new_tokens: int = 128
    steps: int = 128
    alg: Literal["origin", "maskgit_plus", "topk_margin", "entropy"] = "entropy"
    alg_temp: float | None = None
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    eps: float = 1e-3
    block_length: int | None = None
    cache: Literal["prefix", "dual"] | None = None

    length_field = "max_new_tokens"

    def check(self, config: ModelConfig) -> None:
        super().check(config)
        size = self.block_length
        require(
            size is None or self.max_new_tokens % size == 0,
            f"DreamSampler: max_new_tokens {self.max_new_tokens} is not a multiple of block_length {size}.",
        )
        require(
            self.steps % self.blocks == 0,
            f"DreamSampler: {self.steps} steps cannot be shared evenly by {self.blocks} blocks.",
        )

    @property
    def blocks(self) -> int:
        return 1 if self.block_length is None else self.max_new_tokens // self.block_length

    @property
    def steps_per_block(self) -> int:
        return self.steps // self.blocks

    def total_steps(self, masks: int) -> int:
        return self.steps

    def window(self, config: ModelConfig) -> int:
        return self.block_length or self.max_new_tokens

    def block(self, config: ModelConfig, canvas: Canvas) -> Block:
        if self.block_length is None:
            return super().block(config, canvas)
        number = jnp.full(canvas.tokens.shape[0], canvas.step // self.steps_per_block)
        begin = canvas.prompt_length + number * self.block_length
        return Block(number, begin, begin + self.block_length)

    def queries_per_step(self, length: int) -> float:
        if self.cache is None:
            return float(length)
        block = self.block_length or self.max_new_tokens
        part = 1 + (block if self.cache == "dual" else self.max_new_tokens)
        return (length + (self.steps_per_block - 1) * min(part, length)) / self.steps_per_block

    def with_length(self, length: int) -> DreamSampler:
        """As many tokens per step, in blocks that fit."""
        block = self.block_length
        if block is not None and length % block:
            block = default_block(length)
        blocks = 1 if block is None else length // block
        steps = max(1, length * self.steps // self.max_new_tokens // blocks) * blocks
        return replace(self, max_new_tokens=length, steps=steps, block_length=block)

    def decide(self, config: ModelConfig, logits: Float[Array, "B W V"], window: Window, draws: Draws) -> Commit:
        assert config.mask_id is not None
        shaped = shape_logits(logits, self.temperature, self.top_p, self.top_k)
        noise = token_noise(draws, window, logits.shape[-1]) if self.temperature > 0 else None
        choice = choose_token(shaped, logits, config.mask_id, noise)
        step = window.step % self.steps_per_block
        ratio = jnp.asarray(dream_ratios(self.steps_per_block, self.eps))[step]
        if self.alg == "origin":
            draw = position_draws(draws, TRANSFER, window)
            is_last = step == self.steps_per_block - 1
            return Commit(choice.token, window.eligible & (draw < ratio) & (~choice.waits | is_last))
        confidence = self.confidence(shaped, choice.token)
        if self.alg_temp:
            keys = position_keys(draws.keys, ORDER, window.step, window.offset)
            value = confidence if self.alg == "entropy" else probability(confidence)
            confidence = value / self.alg_temp + gumbel(keys, 1)[..., 0]
        quota = jnp.floor(window.eligible.sum(axis=1).astype(jnp.float32) * ratio).astype(jnp.int32)
        return Commit(choice.token, commit_best(choice.order(confidence), window.eligible, quota))

    def confidence(self, shaped: Float[Array, "B W V"], token: Int[Array, "B W"]) -> Float[Array, "B W"]:
        """Log-odds of p or p1 - p2, or the negative entropy."""
        if self.alg == "maskgit_plus":
            return log_odds(shaped, token)
        return sure_by_margin(shaped) if self.alg == "topk_margin" else sure_by_entropy(shaped)

    def __repr__(self) -> str:
        """As a call. Fingerprints of runs are made of it; see `stated`."""
        return f"DreamSampler({', '.join(f'{name}={value!r}' for name, value in self.stated().items())})"
