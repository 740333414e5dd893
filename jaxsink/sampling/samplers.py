"""The samplers as small frozen records of their settings: LLaDA, Dream and SDAR decide, per step, what to commit.

A diffusion sampler looks at a window of the canvas. It says where the window stands for each row (`frontier`), and, given
the window's logits, which tokens go where (`decide`). The loop around it is the same for all (diffusion.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling import confidence as choose
from jaxsink.sampling import rng as noise
from jaxsink.sampling.schedules import dream_ratios


class Canvas(NamedTuple):
    """What a sampler sees of the run before a step."""

    tokens: Array  # i32[B,S]
    masked: Array  # bool[B,S], still to be filled
    first: Array  # i32[B], index of each row's first real token
    step: Array  # i32[]
    prompt: int  # P, where the generated part starts


class Window(NamedTuple):
    """The part of the canvas that this step may change."""

    position: Array  # i32[B,W], in the sequence
    eligible: Array  # bool[B,W], masked and inside the block
    block_step: Array  # i32[B], steps taken in this block
    block_masks: Array  # i32[B], masks when the block began
    step: Array  # i32[]
    place: Array  # i32[B,W], index counted from the start of the generated part


@runtime_checkable
class Sampler(Protocol):
    """What the diffusion loop needs; the contract's samplers below, or a user's own frozen dataclass."""

    cfg_scale: float  # 0: no guidance
    cache: str | None  # None: every step runs the whole sequence
    adaptive: bool  # rows finish when they are full, and not after a fixed number of steps
    stop_at_eos: bool  # with it: stop_rule, "last" token of a block or "any" token of the response

    @property
    def length(self) -> int: ...
    def check(self, config: ModelConfig) -> None: ...
    def total_steps(self, masks: int) -> int: ...
    def window(self, config: ModelConfig) -> int: ...
    def block(self, config: ModelConfig, canvas: Canvas) -> tuple[Array, Array, Array]: ...
    def decide(self, config: ModelConfig, logits: Array, window: Window, draws: noise.Draws) -> tuple[Array, Array]: ...


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise JaxsinkError(message)


def _check_threshold(name: str, threshold: float | None) -> None:
    _require(threshold is None or 0 <= threshold <= 1, f"{name}: threshold must lie in [0, 1], and is {threshold}.")


def _check_filters(name: str, temperature: float, top_p: float | None, top_k: int | None) -> None:
    _require(temperature >= 0, f"{name}: temperature must not be negative, and is {temperature}.")
    _require(top_p is None or 0 < top_p <= 1, f"{name}: top_p must lie in (0, 1], and is {top_p}.")
    _require(top_k is None or top_k >= 0, f"{name}: top_k must not be negative, and is {top_k}.")


@dataclass(frozen=True)
class LLaDASampler:
    """LLaDA's and MMaDA's generation: block by block, the surest positions first.

    threshold: commit every position at least this sure, and at least one, instead of a fixed number per step; blocks
    then end when they are full. stop_at_eos: a row whose block ends in eos is finished, and its rest is eos.
    text_only: never emit ids beyond the text vocabulary (MMaDA's image codes). cache: "prefix" or "dual" reuse keys and
    values within a block (Fast-dLLM): faster, approximate, and recorded attention then covers the tokens that ran only.
    """

    stop_rule = "last"

    gen_length: int = 128
    steps: int = 128
    block_length: int = 128
    temperature: float = 0.0
    cfg_scale: float = 0.0
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    logits_eos_inf: bool = False
    confidence_eos_eot_inf: bool = False
    threshold: float | None = None
    stop_at_eos: bool = False
    text_only: bool = False
    cache: Literal["prefix", "dual"] | None = None

    @property
    def length(self) -> int:
        return self.gen_length

    @property
    def blocks(self) -> int:
        return self.gen_length // self.block_length

    @property
    def steps_per_block(self) -> int:
        return self.steps // self.blocks

    @property
    def adaptive(self) -> bool:
        """Rows move on when their block is full, not when its time is up."""
        return self.threshold is not None

    def check(self, config: ModelConfig) -> None:
        _require(
            min(self.gen_length, self.steps, self.block_length) > 0, "LLaDASampler: lengths and steps must be positive."
        )
        _require(
            self.gen_length % self.block_length == 0,
            f"LLaDASampler: gen_length {self.gen_length} is not a multiple of block_length {self.block_length}.",
        )
        _require(
            self.steps % self.blocks == 0,
            f"LLaDASampler: {self.steps} steps cannot be shared evenly by {self.blocks} blocks.",
        )
        _require(self.remasking in ("low_confidence", "random"), f"LLaDASampler: unknown remasking {self.remasking!r}.")
        _require(self.cfg_scale >= 0, f"LLaDASampler: cfg_scale must not be negative, and is {self.cfg_scale}.")
        _require(self.cache in (None, "prefix", "dual"), f"LLaDASampler: unknown cache {self.cache!r}.")
        _require(self.cache is None or self.cfg_scale == 0, "LLaDASampler: guidance and a cache do not go together.")
        _require(
            self.cache is None or not config.shift_logits,
            f"LLaDASampler: a cache needs logits that predict their own position, and {config.family}'s are shifted.",
        )
        _require(
            not self.text_only or config.text_vocab is not None,
            "LLaDASampler: text_only needs a model whose config says where text ends (text_vocab).",
        )
        needs_eos = self.stop_at_eos or self.logits_eos_inf or self.confidence_eos_eot_inf
        _require(not needs_eos or bool(config.eos_ids), "LLaDASampler: the eos options need a model with an eos id.")
        _check_threshold("LLaDASampler", self.threshold)
        _check_filters("LLaDASampler", self.temperature, None, None)

    def total_steps(self, masks: int) -> int:
        return masks if self.adaptive else self.steps_per_block * self.blocks

    def window(self, config: ModelConfig) -> int:
        return self.block_length

    def block(self, config: ModelConfig, canvas: Canvas) -> tuple[Array, Array, Array]:
        batch = canvas.tokens.shape[0]
        if self.adaptive:
            first_mask = jnp.argmax(canvas.masked, axis=1)
            number = jnp.maximum(first_mask - canvas.prompt, 0) // self.block_length
        else:
            number = jnp.full(batch, canvas.step // self.steps_per_block)
        number = jnp.minimum(number, self.blocks - 1)
        if self.cache is not None and self.adaptive:  # rows share the cached block
            number = jnp.full(batch, jnp.where(canvas.masked.any(axis=1), number, self.blocks).min())
        start = canvas.prompt + number * self.block_length
        return number, start, start + self.block_length

    def decide(self, config: ModelConfig, logits: Array, window: Window, draws: noise.Draws) -> tuple[Array, Array]:
        assert config.mask_id is not None
        if self.text_only and config.text_vocab is not None:
            logits = logits.at[..., config.text_vocab :].set(-jnp.inf)
        if self.logits_eos_inf:
            logits = choose.without(logits, config.eos_ids[:1])
        added = None
        if self.temperature > 0:
            added = choose.token_noise(
                draws, window.step, window.place, window.position, logits.shape[-1], self.temperature
            )
        choice = choose.choose_token(logits, logits, config.mask_id, added)
        token = choice.token
        if self.remasking == "random":
            order = value = choose.position_draws(draws, noise.REMASK, window.step, window.place, window.position)
        else:
            unsure = ()
            if self.confidence_eos_eot_inf:
                unsure = (*config.eos_ids[:1], *(() if config.eot_id is None else (config.eot_id,)))
            order = choose.sure_of(choose.without(logits, unsure), token)
            value = choose.probability(order)
        order = choice.order(order)
        if self.threshold is not None:
            above = ~choice.waits & (value >= self.threshold)
            return token, choose.commit_above(order, window.eligible, above)
        share, rest = window.block_masks // self.steps_per_block, window.block_masks % self.steps_per_block
        return token, choose.commit_best(order, window.eligible, share + (window.block_step < rest))


@dataclass(frozen=True)
class DreamSampler:
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

    cfg_scale = 0.0
    cache = None
    stop_at_eos = False
    adaptive = False

    @property
    def length(self) -> int:
        return self.max_new_tokens

    def check(self, config: ModelConfig) -> None:
        _require(min(self.max_new_tokens, self.steps) > 0, "DreamSampler: max_new_tokens and steps must be positive.")
        known = ("origin", "maskgit_plus", "topk_margin", "entropy")
        _require(self.alg in known, f"DreamSampler: unknown alg {self.alg!r}; known are {', '.join(known)}.")
        _require(0 < self.eps < 1, f"DreamSampler: eps must lie in (0, 1), and is {self.eps}.")
        _require(self.alg_temp is None or self.alg_temp >= 0, "DreamSampler: alg_temp must not be negative.")
        _check_filters("DreamSampler", self.temperature, self.top_p, self.top_k)

    def total_steps(self, masks: int) -> int:
        return self.steps

    def window(self, config: ModelConfig) -> int:
        return self.max_new_tokens

    def block(self, config: ModelConfig, canvas: Canvas) -> tuple[Array, Array, Array]:
        batch, length = canvas.tokens.shape
        return jnp.zeros(batch, jnp.int32), jnp.full(batch, canvas.prompt), jnp.full(batch, length)

    def decide(self, config: ModelConfig, logits: Array, window: Window, draws: noise.Draws) -> tuple[Array, Array]:
        assert config.mask_id is not None
        shaped = choose.shape_logits(logits, self.temperature, self.top_p, self.top_k)
        added = None
        if self.temperature > 0:
            added = choose.token_noise(draws, window.step, window.place, window.position, logits.shape[-1], 1.0)
        choice = choose.choose_token(shaped, logits, config.mask_id, added)
        token = choice.token
        ratio = jnp.asarray(dream_ratios(self.steps, self.eps))[window.step]
        if self.alg == "origin":
            draw = choose.position_draws(draws, noise.TRANSFER, window.step, window.place, window.position)
            return token, window.eligible & (draw < ratio) & (~choice.waits | (window.step == self.steps - 1))
        confidence = self.confidence(shaped, token)
        if self.alg_temp:
            keys = noise.keys_at(draws.keys, noise.ORDER, window.step, window.place)
            value = confidence if self.alg == "entropy" else choose.probability(confidence)
            confidence = value / self.alg_temp + noise.gumbel(keys, 1)[..., 0]
        quota = jnp.floor(window.eligible.sum(axis=1).astype(jnp.float32) * ratio).astype(jnp.int32)
        return token, choose.commit_best(choice.order(confidence), window.eligible, quota)

    def confidence(self, shaped: Array, token: Array) -> Array:
        """f32[B,W]: log-odds of p or p1 - p2, or the negative entropy."""
        if self.alg == "maskgit_plus":
            return choose.sure_of(shaped, token)
        return choose.sure_by_margin(shaped) if self.alg == "topk_margin" else choose.sure_by_entropy(shaped)


@dataclass(frozen=True)
class SDARSampler:
    """SDAR's generation: blocks of the model's own length, counted from the first token of the prompt.

    A step commits every position surer than `threshold` if these are at least its quota, else its quota of the surest.
    threshold=None always commits the quota. steps_per_block defaults to the block length. The last block is always a
    whole one, so a response may exceed gen_length by less than a block. stop_at_eos: a row that has an eos in its
    response when a block is full is finished, and its rest is eos.
    """

    stop_rule = "any"

    gen_length: int = 128
    steps_per_block: int | None = None
    threshold: float | None = 0.9
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    stop_at_eos: bool = False

    cfg_scale = 0.0
    cache = None
    adaptive = True

    @property
    def length(self) -> int:
        return self.gen_length

    def check(self, config: ModelConfig) -> None:
        _require(config.block_length is not None, f"SDARSampler: a {config.family} model is not block-causal.")
        steps = self.steps_per_block
        fits = steps is None or (config.block_length is not None and 0 < steps <= config.block_length)
        _require(fits, f"SDARSampler: steps_per_block must lie between 1 and the block length, and is {steps}.")
        _require(self.gen_length > 0, "SDARSampler: gen_length must be positive.")
        _require(not self.stop_at_eos or bool(config.eos_ids), "SDARSampler: stop_at_eos needs a model with an eos id.")
        _check_threshold("SDARSampler", self.threshold)
        _check_filters("SDARSampler", self.temperature, self.top_p, self.top_k)

    def total_steps(self, masks: int) -> int:
        return masks

    def overhang(self, config: ModelConfig, prompts: np.ndarray) -> np.ndarray:
        """i64[B]: positions beyond gen_length that complete the last block, for prompts of these lengths."""
        assert config.block_length is not None
        return -(prompts + self.gen_length) % config.block_length

    def window(self, config: ModelConfig) -> int:
        assert config.block_length is not None
        return config.block_length

    def block(self, config: ModelConfig, canvas: Canvas) -> tuple[Array, Array, Array]:
        assert config.block_length is not None
        number = (jnp.argmax(canvas.masked, axis=1) - canvas.first) // config.block_length
        start = canvas.first + number * config.block_length
        return number, start, jnp.minimum(start + config.block_length, canvas.tokens.shape[1])

    def decide(self, config: ModelConfig, logits: Array, window: Window, draws: noise.Draws) -> tuple[Array, Array]:
        assert config.mask_id is not None and config.block_length is not None
        shaped = choose.shape_logits(logits, self.temperature, self.top_p, self.top_k, k_first=True)
        added = None
        if self.temperature > 0:
            added = choose.token_noise(draws, window.step, window.place, window.position, logits.shape[-1], 1.0)
        choice = choose.choose_token(shaped, logits, config.mask_id, added)
        token = choice.token
        confidence = choice.order(choose.sure_of(shaped, token))
        steps = self.steps_per_block or config.block_length
        quota = config.block_length // steps + (window.block_step < config.block_length % steps)
        best = choose.commit_best(confidence, window.eligible, quota)
        if self.threshold is None:
            return token, best
        sure = window.eligible & ~choice.waits & (choose.probability(confidence) > self.threshold)
        return token, jnp.where((sure.sum(axis=1) >= quota)[:, None], sure, best)


@dataclass(frozen=True)
class ARSampler:
    """Autoregressive generation with a key/value cache; one token per step.

    Each step records the row of the token that was just written (what the last token attends to). whole_map=True adds
    the rows up, so that `received` covers the whole causal map so far, prompt included, as the paper's figures need.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    stop_at_eos: bool = True
    whole_map: bool = False

    @property
    def length(self) -> int:
        return self.max_new_tokens

    def check(self, config: ModelConfig) -> None:
        _require(self.max_new_tokens > 0, "ARSampler: max_new_tokens must be positive.")
        _require(config.attention == "causal", f"ARSampler: a {config.family} model is not autoregressive.")
        _check_filters("ARSampler", self.temperature, self.top_p, self.top_k)

    def next_token(self, logits: Array, step: Array, prompt: int, draws: noise.Draws) -> Array:
        """i32[B] of logits f32[B,V]."""
        if self.temperature == 0:
            return jnp.argmax(logits, axis=-1)
        shaped = choose.shape_logits(logits[:, None], self.temperature, self.top_p, self.top_k, k_first=True)
        place = jnp.full((logits.shape[0], 1), step)
        added = choose.token_noise(draws, step, place, place + prompt, logits.shape[-1], 1.0)
        return choose.pick(shaped, added)[:, 0]


def mask_count(tokens: np.ndarray, config: ModelConfig) -> int:
    """The most masks that any row has."""
    return int((tokens == config.mask_id).sum(axis=1).max())
