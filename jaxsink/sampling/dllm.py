"""The samplers of dllm, for models that were adapted to diffusion (A2D): MDLM's and, block by block, BD3LM's.

Both share a schedule: a step commits its share of the block's masks, as a linear noise schedule has it, rounded half to
even; steps whose share rounds to nothing are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.base import require
from jaxsink.sampling.blocks import blocks_so_far
from jaxsink.sampling.canvas import Appending, Block, Canvas, Commit, Sight, Window
from jaxsink.sampling.confidence import choose_token, commit_best, log_odds, position_draws, token_noise, without
from jaxsink.sampling.diffusion import DiffusionSampler
from jaxsink.sampling.nemotron import block_end
from jaxsink.sampling.rng import REMASK, Draws
from jaxsink.sampling.schedules import linear_quotas

Remasking = Literal["low_confidence", "random"]


@dataclass(frozen=True)
class MDLMSampler(DiffusionSampler):
    """dllm's MDLM generation: the whole response is there from the beginning, and filled block by block.

    Attributes:
        max_new_tokens: tokens of the response
        steps: in all, shared by the blocks
        block_size: tokens of a block; the last may be a shorter one
        cfg_scale: guidance, against the same canvas without its prompt; 0: none
        right_shift_logits: the logits at a position predict the next one
        suppress_tokens: ids that are never written
        temperature: of the Gumbel noise on the logits; 0 takes the likeliest token
        remasking: "low_confidence" commits the surest positions, "random" any, "left_to_right" the first ones
        stop_at_eos: a sequence whose block ends in eos is finished, and its rest is eos

    Examples:
        >>> jaxsink.MDLMSampler(max_new_tokens=64, steps=32, block_size=32).total_steps(64)
        32
        >>> two = jaxsink.MDLMSampler(max_new_tokens=64, steps=32, block_size=32)
        >>> two.blocks, two.steps_per_block
        (2, 16)
    """

    length_field = "max_new_tokens"

    max_new_tokens: int = 128
    steps: int = 128
    block_size: int = 128
    cfg_scale: float = 0.0
    right_shift_logits: bool = False
    suppress_tokens: tuple[int, ...] | None = None
    temperature: float = 0.0
    remasking: Remasking = "low_confidence"
    stop_at_eos: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.suppress_tokens, list):
            object.__setattr__(self, "suppress_tokens", tuple(self.suppress_tokens))

    @property
    def blocks(self) -> int:
        return -(-self.max_new_tokens // self.block_size)

    @property
    def steps_per_block(self) -> int:
        return -(-self.steps // self.blocks)

    @property
    def adaptive(self) -> bool:
        return True

    def check(self, config: ModelConfig) -> None:
        super().check(config)
        name = type(self).__name__
        wrong = [token for token in self.suppress_tokens or () if not 0 <= token < config.vocab]
        require(not wrong, f"{name}: suppress_tokens names ids {wrong}, outside the vocabulary of {config.vocab} rows.")
        require(not self.stop_at_eos or bool(config.eos_ids), f"{name}: stop_at_eos needs a model with an eos id.")

    def total_steps(self, masks: int) -> int:
        return min(masks, self.blocks * self.steps_per_block)

    def with_length(self, length: int) -> Self:
        """As many tokens per step."""
        block = length if self.block_size == self.max_new_tokens else min(self.block_size, length)
        return replace(
            self, max_new_tokens=length, steps=max(1, length * self.steps // self.max_new_tokens), block_size=block
        )

    def window(self, config: ModelConfig) -> int:
        return min(self.block_size, self.max_new_tokens)

    def block(self, config: ModelConfig, canvas: Canvas) -> Block:
        first_mask = jnp.argmax(canvas.masked, axis=1)
        number = jnp.maximum(first_mask - canvas.prompt_length, 0) // self.block_size
        begin = canvas.prompt_length + number * self.block_size
        return Block(number, begin, jnp.minimum(begin + self.block_size, canvas.tokens.shape[1]))

    def readers(self, config: ModelConfig, canvas: Canvas, window: Window) -> Int[Array, "B W"]:
        shifts = self.right_shift_logits or config.shift_logits
        position = jnp.maximum(window.position - shifts, canvas.first[:, None])
        return jnp.clip(position, 0, canvas.tokens.shape[1] - 1)

    def decide(self, config: ModelConfig, logits: Float[Array, "B W V"], window: Window, draws: Draws) -> Commit:
        assert config.mask_id is not None
        logits = without(logits, self.suppress_tokens or ())
        noise = self.temperature * token_noise(draws, window, logits.shape[-1]) if self.temperature > 0 else None
        choice = choose_token(logits, logits, config.mask_id, noise)
        is_random = self.remasking == "random"
        order = position_draws(draws, REMASK, window) if is_random else log_odds(logits, choice.token)
        quotas = jnp.asarray(linear_quotas(window.position.shape[1], self.steps_per_block))
        quota = quotas[window.block_masks, jnp.minimum(window.block_step, self.steps_per_block - 1)]
        return Commit(choice.token, commit_best(choice.order(order), window.eligible, quota))


@dataclass(frozen=True)
class BD3LMSampler(MDLMSampler):
    """dllm's block diffusion: a block is appended, and its tokens see each other and the blocks before, never those after.

    Blocks are counted from the end of the prompt to both sides, so the prompt's first block may be a short one. The
    settings are MDLMSampler's, but for one.

    Attributes:
        stop_at_eos: a sequence with an eos in a full block is finished, and its rest is eos; otherwise it goes on, and its
            text ends at the eos all the same

    Examples:
        >>> jaxsink.BD3LMSampler(max_new_tokens=64, steps=64, block_size=16).appending(model.config) is not None
        True
    """

    stop_rule = "any"
    infills = False

    block_size: int = 32

    def appending(self, config: ModelConfig) -> Appending:
        return Appending(self.block_size)

    def check(self, config: ModelConfig) -> None:
        super().check(config)
        require(
            config.attention == "bidirectional",
            f"BD3LMSampler: it decides itself who sees whom, and this {config.family} model has {config.attention} "
            "attention; give it model.with_attention('bidirectional').",
        )

    def keeps(self, config: ModelConfig) -> bool:
        """Guidance has another context without the prompt, and shifted logits another query before the block."""
        return self.cfg_scale == 0 and not (self.right_shift_logits or config.shift_logits)

    def sight(self, config: ModelConfig, canvas: Canvas, block: Block, window: Window) -> Sight:
        limit = jnp.broadcast_to(block_end(canvas, self.block_size), canvas.tokens.shape)
        return blocks_so_far(canvas, block, self.block_size, canvas.prompt_length, limit)
