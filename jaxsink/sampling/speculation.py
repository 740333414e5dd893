"""Linear speculation: a block is drafted in both directions, and as much of it is kept as the causal model would write.

One set of weights does both, so nothing but the steps differs from autoregressive decoding: the tokens are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, PyTree

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.canvas import Appending, Commit, Looking, Sight, Window
from jaxsink.sampling.confidence import choose_token, commit_above, log_odds, probability, without
from jaxsink.sampling.diffusion import DiffusionCarry, DiffusionSampler, fillable, see_canvas
from jaxsink.sampling.interventions import check_edit
from jaxsink.sampling.nemotron import check_opened
from jaxsink.sampling.rng import Draws
from jaxsink.sampling.run import Decoding, checked, intervened


class Phase(NamedTuple):
    """Where each sequence stands."""

    front: Int[Array, "B 1"]  # the first position that is not verified
    drafting: Bool[Array, "B 1"]  # or else the draft is verified


@dataclass(frozen=True)
class SpeculativeSampler(DiffusionSampler):
    """Nemotron-Labs-Diffusion's linear speculation, greedy.

    A round drafts the `block_length` - 1 tokens after the last verified one, which see each other and all before them. Then
    one causal step keeps the tokens up to the first that the causal model would not write, and that model's token there.
    committed_at is the step that verified a token; drafts that are refused become masks again. Sequences of a batch are in
    rounds of their own.

    Attributes:
        max_new_tokens: tokens of the response
        block_length: tokens of a draft, and the one before it
        threshold: 0 drafts in one step; above 0 step by step, every position at least that sure and at least one
        stop_at_eos: a sequence ends with its first verified eos, and its rest is eos

    Examples:
        >>> jaxsink.SpeculativeSampler(max_new_tokens=64, block_length=16).response_length
        64
    """

    length_field = "max_new_tokens"
    infills = False

    max_new_tokens: int = 128
    block_length: int = 32
    threshold: float = 0.0
    stop_at_eos: bool = True

    def appending(self, config: ModelConfig) -> Appending:
        return Appending(self.block_length, drafts=True)

    def check(self, config: ModelConfig) -> None:
        super().check(config)
        check_opened("SpeculativeSampler", config)

    def total_steps(self, masks: int) -> int:
        """If every draft is refused."""
        drafts = self.block_length - 1 if self.threshold > 0 else min(1, self.block_length - 1)
        return 1 + (masks - 1) * (drafts + 1)

    def window(self, config: ModelConfig) -> int:
        return self.block_length

    def init(self, run: Decoding, tokens: Int[Array, "B S"]) -> DiffusionCarry:
        if run.spec.edit_tokens is not None:
            raise JaxsinkError("SpeculativeSampler: edit_tokens would change drafts, which are verified; leave it out.")
        return super().init(run, tokens)

    def step(self, run: Decoding, carry: DiffusionCarry, *, record: bool) -> tuple[DiffusionCarry, tuple[PyTree, ...]]:
        phase = self.phase(run, carry)
        window = self.see(run, carry, phase)
        sight = self.exists(run, carry, phase)
        carry = intervened(run, carry, sight.before & run.inputs.mask)
        readers = jnp.clip(window.position - ~phase.drafting, 0, carry.tokens.shape[1] - 1)
        wanted = run.spec.record.recorders if record else ()
        carry, scores, records = self._look(run, carry, Looking(window, readers, sight), wanted)
        if run.spec.edit_logits is not None:
            scores = check_edit("edit_logits", scores, run.spec.edit_logits(carry.step, scores, window.position))
        carry = checked(carry, scores, window.eligible)
        draft = self.decide(run.config, scores, window, run.inputs.draws)
        drafted = put(carry.tokens, window, draft.token, draft.where & phase.drafting & ~carry.done[:, None])
        carry = verified(run, self, carry.replace(tokens=drafted), scores, window, phase)
        return carry.replace(block=phase.front[:, 0]), records

    def phase(self, run: Decoding, carry: DiffusionCarry) -> Phase:
        """The first step only verifies, which gives the token after the prompt."""
        front = run.spec.prompt_length + (carry.committed_at >= 0).sum(axis=1, keepdims=True)
        position = jnp.arange(carry.tokens.shape[1])
        ahead = see_canvas(run, carry).masked & (position >= front) & (position < front + self.block_length - 1)
        return Phase(front, ahead.any(axis=1, keepdims=True) & (front > run.spec.prompt_length))

    def see(self, run: Decoding, carry: DiffusionCarry, phase: Phase) -> Window:
        """The positions of a round, and one more, which the causal model writes if the whole draft is kept."""
        canvas, position = see_canvas(run, carry), phase.front + jnp.arange(self.block_length)
        masked = jnp.take_along_axis(canvas.masked, jnp.minimum(position, canvas.tokens.shape[1] - 1), axis=1)
        in_draft = masked & (jnp.arange(self.block_length) < self.block_length - 1)
        zero = jnp.zeros_like(carry.block)
        return Window(
            position=position,
            eligible=jnp.where(phase.drafting, in_draft, True) & (position < canvas.tokens.shape[1]),
            block_step=zero,
            block_masks=zero,
            step=carry.step,
            offset=position - run.spec.prompt_length,
        )

    def exists(self, run: Decoding, carry: DiffusionCarry, phase: Phase) -> Sight:
        position, end = jnp.arange(carry.tokens.shape[1]), phase.front + self.block_length - 1
        is_first = phase.front == run.spec.prompt_length
        in_block = phase.drafting & (position >= phase.front - 1)
        return Sight(
            mask=position < jnp.where(is_first, phase.front, end),
            limit=jnp.where(in_block, end, position + 1),
            before=position < jnp.where(carry.block[:, None] == phase.front, end, phase.front - 1),
        )

    def decide(self, config: ModelConfig, logits: Float[Array, "B W V"], window: Window, draws: Draws) -> Commit:
        """The draft."""
        assert config.mask_id is not None
        choice = choose_token(logits, logits, config.mask_id, None)
        if self.threshold == 0:
            return Commit(choice.token, window.eligible)
        odds = log_odds(logits, choice.token)
        above = ~choice.waits & (probability(odds) >= self.threshold)
        return Commit(choice.token, commit_above(choice.order(odds), window.eligible, above))


def put(
    tokens: Int[Array, "B S"], window: Window, values: Int[Array, "B W"], where: Bool[Array, "B W"]
) -> Int[Array, "B S"]:
    """With these values at the window's positions."""
    index = jnp.where(where, window.position, tokens.shape[1])  # out of range: not written
    return tokens.at[jnp.arange(len(tokens))[:, None], index].set(values.astype(tokens.dtype), mode="drop")


def verified(
    run: Decoding,
    sampler: SpeculativeSampler,
    carry: DiffusionCarry,
    logits: Float[Array, "B W V"],
    window: Window,
    phase: Phase,
) -> DiffusionCarry:
    """Sequences that are not drafting keep what the causal model agrees with, and its next token."""
    config, length = run.config, carry.tokens.shape[1]
    assert config.mask_id is not None
    token = jnp.argmax(without(logits, (config.mask_id,)), axis=-1)
    draft = jnp.take_along_axis(carry.tokens, jnp.minimum(window.position, length - 1), axis=1)
    agrees = jnp.cumprod(token == draft, axis=1)
    inside = window.position < length
    kept = jnp.pad(agrees[:, :-1], ((0, 0), (1, 0)), constant_values=1).astype(bool) & inside
    is_end = jnp.isin(token, jnp.array(config.eos_ids or (-1,))) & sampler.stop_at_eos & kept
    kept = kept & ((is_end.cumsum(axis=1) - is_end) == 0)
    acts = ~phase.drafting & ~carry.done[:, None]
    tokens = put(carry.tokens, window, token, kept & acts)
    tokens = put(tokens, window, jnp.full_like(token, config.mask_id), ~kept & inside & acts)
    committed_at = put(carry.committed_at, window, jnp.full_like(token, carry.step), kept & acts)
    ends = (is_end & kept & acts).any(axis=1)
    rest = fillable(run.inputs) & (committed_at < 0) & ends[:, None]
    tokens = jnp.where(rest, (config.eos_ids or (0,))[0], tokens)
    committed_at = jnp.where(rest, carry.step, committed_at)
    full = ((committed_at >= 0) | ~fillable(run.inputs)).all(axis=1)
    return carry.replace(
        step=carry.step + 1,
        tokens=tokens,
        committed_at=committed_at,
        done=carry.done | full,
        steps=carry.steps + ~carry.done,
    )
