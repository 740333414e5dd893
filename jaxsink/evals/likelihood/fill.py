"""The text that a diffusion model prefers in the place of masks: a sampler that fills those of the prompt, and no more."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxsink.errors import JaxsinkError, a_model
from jaxsink.evals.batching import power_of_two
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.canvas import Block, Canvas, Commit, Window
from jaxsink.sampling.confidence import choose_token, commit_above, log_odds
from jaxsink.sampling.diffusion import DiffusionSampler
from jaxsink.sampling.rng import Draws

LEAST_STEPS = 8


@dataclass(frozen=True)
class FillMasks(DiffusionSampler):
    """One mask per step, the surest first, without chance: what LLaDA's evaluation calls greedy.

    Sequences may have different numbers of masks; one is finished when it has none left.
    """

    cfg_scale: float = 0.0

    @property
    def adaptive(self) -> bool:
        return True

    @property
    def response_length(self) -> int:
        return 0

    def check(self, config: ModelConfig) -> None:
        if not config.is_diffusion:
            raise JaxsinkError(f"FillMasks: {a_model(config.family)} has no mask token.")
        if self.cfg_scale < 0:
            raise JaxsinkError(f"FillMasks: cfg_scale must not be negative, and is {self.cfg_scale}.")

    def total_steps(self, masks: int) -> int:
        """Rounded up, so that answers of many lengths share a program; sequences that are full end it."""
        return max(power_of_two(masks), LEAST_STEPS)

    def block(self, config: ModelConfig, canvas: Canvas) -> Block:
        batch, length = canvas.tokens.shape
        zero = jnp.zeros(batch, jnp.int32)
        return Block(number=zero, begin=zero, end=jnp.full(batch, length))

    def decide(self, config: ModelConfig, logits: Float[Array, "B W V"], window: Window, draws: Draws) -> Commit:
        assert config.mask_id is not None
        choice = choose_token(logits, logits, config.mask_id, None)
        order = choice.order(log_odds(logits, choice.token))
        return Commit(choice.token, commit_above(order, window.eligible, jnp.zeros_like(window.eligible)))
