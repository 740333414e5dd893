"""Fast-dLLM v2's sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxsink.errors import a_model
from jaxsink.nn.batch import Batch
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.recorder import Recorder
from jaxsink.sampling.base import require
from jaxsink.sampling.block_cache import Hiding, PassOutput, check_last_query
from jaxsink.sampling.blocks import BlockCausalSampler
from jaxsink.sampling.canvas import Appending, Block, Canvas, Commit, Window
from jaxsink.sampling.confidence import choose_token, commit_above, log_odds, probability
from jaxsink.sampling.diffusion import DiffusionCarry
from jaxsink.sampling.rng import Draws
from jaxsink.sampling.run import Decoding
from jaxsink.sampling.small_block_cache import small_block_pass


@dataclass(frozen=True)
class FastDLLMv2Sampler(BlockCausalSampler):
    """Fast-dLLM v2's generation: blocks counted from the first token of the prompt, filled small block by small block.

    The first token of a block, its seed, is what the last token of the full block before it predicts. In a small block a
    step commits every position surer than `threshold`, and in any case the surest. A response is as many whole blocks, and
    the seed after the last, as hold max_new_tokens: it may exceed them by less than a block.

    Attributes:
        max_new_tokens: tokens of the response, at least
        block_size: tokens of a block, and what the model sees as one, whatever it was trained with
        small_block_size: tokens that are filled together
        threshold: probability above which a position is committed
        use_block_cache: while a small block is filled, it alone runs, on keys and values of the last pass over its block
            (small_block_cache.py): faster, approximate, and recorded attention then covers the tokens that ran only
        stop_at_eos: a sequence is finished as soon as an eos has no mask before it, and the masks behind it become eos

    Examples:
        >>> jaxsink.FastDLLMv2Sampler(max_new_tokens=64, threshold=0.8).response_length
        64
    """

    stop_rule = "first"
    length_field = "max_new_tokens"

    max_new_tokens: int = 128
    block_size: int = 32
    small_block_size: int = 8
    threshold: float = 0.9
    use_block_cache: bool = False
    stop_at_eos: bool = True

    @property
    def adaptive(self) -> bool:
        return True

    @property
    def cache(self) -> Literal["block"] | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "block" if self.use_block_cache else None

    @property
    def prefills(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.use_block_cache

    def check(self, config: ModelConfig) -> None:
        super().check(config)
        require(
            config.block_length is not None and config.shift_logits,
            f"FastDLLMv2Sampler: {a_model(config.family)} is not block-causal with shifted logits.",
        )
        require(
            self.block_size % self.small_block_size == 0,
            f"FastDLLMv2Sampler: block_size {self.block_size} is not a multiple of small_block_size "
            f"{self.small_block_size}.",
        )
        require(
            not self.stop_at_eos or bool(config.eos_ids),
            "FastDLLMv2Sampler: stop_at_eos needs a model with an eos id.",
        )

    def total_steps(self, masks: int) -> int:
        return masks

    def response_mask(
        self, config: ModelConfig, prompt_lengths: Int[np.ndarray, " B"], padded: bool
    ) -> Bool[np.ndarray, "B R"]:
        size = self.block_size
        blocks = -(-(prompt_lengths + self.max_new_tokens - 1) // size)
        length = blocks * size + 1 - prompt_lengths
        widest = self.max_new_tokens + size - 1 if padded else int(length.max())
        return np.arange(widest) < length[:, None]

    def window(self, config: ModelConfig) -> int:
        return self.small_block_size

    def block(self, config: ModelConfig, canvas: Canvas) -> Block:
        """The small block of the first mask; of a block that has no seed yet, its first position alone."""
        place = jnp.argmax(canvas.masked, axis=1) - canvas.first
        lacks_seed = place % self.block_size == 0
        begin = canvas.first + place - place % self.small_block_size
        number = place // self.block_size - lacks_seed  # the seed is the last step of the block before
        return Block(number, begin, begin + jnp.where(lacks_seed, 1, self.small_block_size))

    def appending(self, config: ModelConfig) -> Appending:
        """A block is there once its seed is."""
        return Appending(self.block_size, seeds=True, from_first=True)

    def queries_per_step(self, length: int) -> float:
        """With the cache at most a block."""
        return float(min(self.block_size, length) if self.use_block_cache else length)

    def prefill(self, run: Decoding, carry: DiffusionCarry) -> DiffusionCarry:
        """With the cache: keys and values of the prompt, of which those of its full blocks stay."""
        if carry.cache is None:
            return carry
        batch = Batch.make(run.config, carry.tokens, run.inputs.mask, prompt=run.inputs.prompt)
        batch = run.looked_into(batch._replace(queries=run.spec.prompt_length), carry.step)
        return carry.replace(cache=run.model(batch, cache=carry.cache, execution=run.spec.execution, head=False).cache)

    def cached_pass(
        self, run: Decoding, carry: DiffusionCarry, window: Window, hiding: Hiding, recorders: tuple[Recorder, ...]
    ) -> PassOutput:
        check_last_query(run, self, recorders)
        return small_block_pass(run, carry, window, hiding, recorders, (self.block_size, self.small_block_size))

    def run_config(self, config: ModelConfig) -> ModelConfig:
        return config.replace(block_length=self.block_size)

    def decide(self, config: ModelConfig, logits: Float[Array, "B W V"], window: Window, draws: Draws) -> Commit:
        assert config.mask_id is not None
        choice = choose_token(logits, logits, config.mask_id, None)
        confidence = choice.order(log_odds(logits, choice.token))
        above = ~choice.waits & (probability(confidence) > self.threshold)
        return Commit(choice.token, commit_above(confidence, window.eligible, above))
