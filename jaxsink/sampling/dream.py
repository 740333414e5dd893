"""Dream's sampler."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.base import check_filters, require
from jaxsink.sampling.canvas import Commit, Window
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
from jaxsink.sampling.rng import ORDER, TRANSFER, Draws, gumbel, position_keys
from jaxsink.sampling.schedules import dream_ratios


@dataclass(frozen=True)
class DreamSampler(DiffusionSampler):
    """Dream's generation: the whole response at once, shifted logits, a share of the masks per step.

    alg: "entropy", "maskgit_plus" (top probability), "topk_margin", or "origin" (random positions). alg_temp > 0 draws the
    positions at random, surer ones more often. The share of step i is int(masks * (1 - t[i+1]/t[i])), all at the end.
    """

    max_new_tokens: int = 128
    steps: int = 128
    alg: Literal["origin", "maskgit_plus", "topk_margin", "entropy"] = "entropy"
    alg_temp: float | None = None
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    eps: float = 1e-3

    length_field = "max_new_tokens"

    def check(self, config: ModelConfig) -> None:
        require(min(self.max_new_tokens, self.steps) > 0, "DreamSampler: max_new_tokens and steps must be positive.")
        known = ("origin", "maskgit_plus", "topk_margin", "entropy")
        require(self.alg in known, f"DreamSampler: unknown alg {self.alg!r}; known are {', '.join(known)}.")
        require(0 < self.eps < 1, f"DreamSampler: eps must lie in (0, 1), and is {self.eps}.")
        require(self.alg_temp is None or self.alg_temp >= 0, "DreamSampler: alg_temp must not be negative.")
        check_filters("DreamSampler", self.temperature, self.top_p, self.top_k)

    def total_steps(self, masks: int) -> int:
        return self.steps

    def with_length(self, length: int) -> DreamSampler:
        """As many tokens per step."""
        return replace(self, max_new_tokens=length, steps=max(1, length * self.steps // self.max_new_tokens))

    def decide(self, config: ModelConfig, logits: Float[Array, "B W V"], window: Window, draws: Draws) -> Commit:
        assert config.mask_id is not None
        shaped = shape_logits(logits, self.temperature, self.top_p, self.top_k)
        noise = token_noise(draws, window, logits.shape[-1]) if self.temperature > 0 else None
        choice = choose_token(shaped, logits, config.mask_id, noise)
        ratio = jnp.asarray(dream_ratios(self.steps, self.eps))[window.step]
        if self.alg == "origin":
            draw = position_draws(draws, TRANSFER, window)
            is_last = window.step == self.steps - 1
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
