"""The block sampler of Nemotron-Labs-Diffusion."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.base import require
from jaxsink.sampling.canvas import Appending, Block, Canvas, Commit, Part, Sight, Window
from jaxsink.sampling.confidence import choose_token, commit_above, commit_best, log_odds, probability, token_noise
from jaxsink.sampling.diffusion import DiffusionSampler
from jaxsink.sampling.llada import default_block
from jaxsink.sampling.rng import Draws


@dataclass(frozen=True)
class NemotronSampler(DiffusionSampler):
    """Nemotron-Labs-Diffusion's generation: blocks that are decoded in both directions, on a context that was read causally.

    A block begins with a causal pass over what stands before it, which writes the block's first token, the seed: the one
    that an autoregressive model would write. Then the block's tokens see each other and all before them, and each step
    commits the surest position; with a threshold every one at least that sure, and at least one.

    Keys and values of what is finished are kept, as in the original, and recorders see the attention of the context all the
    same. Under an intervention all that exists runs in every step instead, so that sinks may be hidden from every query or
    (rows="decoded") from those of the block alone, as they would be on a cache.

    Attributes:
        max_new_tokens: tokens of the response
        block_length: tokens of a block
        threshold: commit every position at least this sure; None: the surest one
        causal_context: False: prompt and finished blocks were read in both directions, and there is no seed
        temperature: of the draws; 0 takes the likeliest token
        stop_at_eos: a sequence ends with its first eos, once no mask is left before it, and its rest is eos

    Examples:
        >>> jaxsink.NemotronSampler(max_new_tokens=64, block_length=16, threshold=0.9).response_length
        64
    """

    length_field = "max_new_tokens"
    stop_rule = "first"
    infills = False

    max_new_tokens: int = 128
    block_length: int = 32
    threshold: float | None = None
    causal_context: bool = True
    temperature: float = 0.0
    stop_at_eos: bool = True

    @property
    def adaptive(self) -> bool:
        return True

    def appending(self, config: ModelConfig) -> Appending:
        return Appending(self.block_length, seeds=self.causal_context)

    def check(self, config: ModelConfig) -> None:
        super().check(config)
        require(
            self.max_new_tokens % self.block_length == 0,
            f"NemotronSampler: max_new_tokens {self.max_new_tokens} is not a multiple of block_length {self.block_length}.",
        )
        check_opened("NemotronSampler", config)

    def total_steps(self, masks: int) -> int:
        return masks

    def with_length(self, length: int) -> NemotronSampler:
        block = self.block_length if length % self.block_length == 0 else default_block(length)
        return replace(self, max_new_tokens=length, block_length=block)

    def window(self, config: ModelConfig) -> int:
        return self.block_length

    def block(self, config: ModelConfig, canvas: Canvas) -> Block:
        """While the seed is missing, the block is that one position."""
        number = jnp.maximum(jnp.argmax(canvas.masked, axis=1) - canvas.prompt_length, 0) // self.block_length
        begin = canvas.prompt_length + number * self.block_length
        return Block(number, begin, begin + jnp.where(self.seeds(canvas, begin), 1, self.block_length))

    def keeps(self, config: ModelConfig) -> bool:
        return True

    def part(self, config: ModelConfig, canvas: Canvas, block: Block) -> Part:
        """The seed is predicted by a causal pass over what stands before it: the block before, or the prompt's end."""
        if not self.causal_context:
            return Part(block.begin)
        seeds = self.seeds(canvas, block.begin)
        return Part(block.begin - jnp.where(seeds, self.block_length, 0), seeds)

    def seeds(self, canvas: Canvas, begin: Int[Array, " B"]) -> Bool[Array, " B"]:
        """Sequences whose step writes the seed of the block that begins here."""
        is_missing = jnp.take_along_axis(canvas.masked, begin[:, None], axis=1)[:, 0]
        return is_missing & self.causal_context

    def sight(self, config: ModelConfig, canvas: Canvas, block: Block, window: Window) -> Sight:
        position, begin = jnp.arange(canvas.tokens.shape[1]), block.begin[:, None]
        end = begin + self.block_length
        if self.causal_context:
            limit = jnp.where(position >= begin, end, position + 1)
        else:
            limit = jnp.broadcast_to(block_end(canvas, self.block_length, whole_prompt=True), canvas.tokens.shape)
        is_new = window.block_step[:, None] <= int(self.causal_context)
        return Sight(
            mask=position < jnp.where(self.seeds(canvas, block.begin)[:, None], begin, end),
            limit=limit,
            before=position < jnp.where(is_new, begin, end),
        )

    def readers(self, config: ModelConfig, canvas: Canvas, window: Window) -> Int[Array, "B W"]:
        """A causal query predicts the next position, one of a block its own."""
        before = self.seeds(canvas, window.position[:, 0])[:, None]
        return jnp.clip(window.position - before, 0, canvas.tokens.shape[1] - 1)

    def decide(self, config: ModelConfig, logits: Float[Array, "B W V"], window: Window, draws: Draws) -> Commit:
        assert config.mask_id is not None
        noise = self.temperature * token_noise(draws, window, logits.shape[-1]) if self.temperature > 0 else None
        choice = choose_token(logits, logits, config.mask_id, noise)
        odds = log_odds(logits, choice.token)
        if self.threshold is None:
            one = jnp.ones(len(odds), jnp.int32)
            return Commit(choice.token, commit_best(choice.order(odds), window.eligible, one))
        above = ~choice.waits & (probability(odds) >= self.threshold)
        return Commit(choice.token, commit_above(choice.order(odds), window.eligible, above))


def check_opened(name: str, config: ModelConfig) -> None:
    """The model's own pattern must leave it to the sampler who sees whom."""
    require(
        config.attention == "bidirectional" and not config.shift_logits,
        f"{name}: it decides itself who sees whom, on a model with bidirectional attention whose logits predict their own "
        f"position; this {config.family} model has {config.attention} attention"
        f"{' and shifted logits' if config.shift_logits else ''}.",
    )


def block_end(canvas: Canvas, block: int, whole_prompt: bool = False) -> Int[Array, " S"]:
    """For every position the first one after its block. Blocks are counted from the end of the prompt, to both sides; or
    the whole prompt is one."""
    offset = jnp.arange(canvas.tokens.shape[1]) - canvas.prompt_length
    end = canvas.prompt_length + (offset // block + 1) * block
    return jnp.where(offset < 0, canvas.prompt_length, end) if whole_prompt else end
