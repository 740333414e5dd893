"""The text that a diffusion model prefers in the place of masks: a sampler that fills those of the prompt, and no more."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from jaxsink.errors import JaxsinkError
from jaxsink.evals.batching import power_of_two
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling import confidence as choose
from jaxsink.sampling import rng as noise
from jaxsink.sampling.samplers import Canvas, Window

LEAST_STEPS = 8


@dataclass(frozen=True)
class FillMasks:
    """One mask per step, the surest first, without chance: what LLaDA's evaluation calls greedy.

    Rows may have different numbers of masks; a row is finished when it has none left.
    """

    cfg_scale: float = 0.0

    length = 0
    cache = None
    adaptive = True
    stop_at_eos = False

    def check(self, config: ModelConfig) -> None:
        if not config.is_diffusion:
            raise JaxsinkError(f"FillMasks: a {config.family} model has no mask token.")
        if self.cfg_scale < 0:
            raise JaxsinkError(f"FillMasks: cfg_scale must not be negative, and is {self.cfg_scale}.")

    def total_steps(self, masks: int) -> int:
        """Rounded up, so that answers of many lengths share a program; rows that are full end it."""
        return max(power_of_two(masks), LEAST_STEPS)

    def window(self, config: ModelConfig) -> int:
        return 0

    def block(self, config: ModelConfig, canvas: Canvas) -> tuple[Array, Array, Array]:
        batch, length = canvas.tokens.shape
        return jnp.zeros(batch, jnp.int32), jnp.zeros(batch, jnp.int32), jnp.full(batch, length)

    def decide(self, config: ModelConfig, logits: Array, window: Window, draws: noise.Draws) -> tuple[Array, Array]:
        assert config.mask_id is not None
        choice = choose.choose_token(logits, logits, config.mask_id, None)
        order = choice.order(choose.sure_of(logits, choice.token))
        return choice.token, choose.commit_above(order, window.eligible, jnp.zeros_like(window.eligible))
