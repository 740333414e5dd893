"""The diffusion loop: steps that unmask the canvas, record attention, and close the intervention loop.

A step: the intervention turns what the last step recorded into dropped keys; the model runs on the canvas; the head runs
on the window that may change; the sampler decides; tokens are committed. Nothing happens on the host between steps.

A sampler of your own is a subclass of `DiffusionSampler` with a few lines: where its window is, and which tokens go where.
docs/samplers.md has one.
"""

from __future__ import annotations

import abc
from functools import partial
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int, PyTree, Shaped

from jaxsink.nn.batch import Batch
from jaxsink.nn.cache import Cache
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.pass_end import need_the_end
from jaxsink.nn.recorder import Recorder
from jaxsink.nn.transformer import empty_cache
from jaxsink.parallel.axes import axes, constrain, pytree_dataclass
from jaxsink.recording.spec import zeros_like_shapes
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.block_cache import Hiding, PassOutput, cached_pass, empty_block_cache, head_queries
from jaxsink.sampling.canvas import Block, Canvas, Commit, Looking, Part, Sight, Window
from jaxsink.sampling.context_cache import keeps_context, kept_pass, with_prompt
from jaxsink.sampling.interventions import HIDDEN_FROM_SOME, check_edit, ranks_on_clean, rows_of
from jaxsink.sampling.rng import Draws
from jaxsink.sampling.run import Carry, Decoding, RunInputs, before_intervening, checked, edited, intervened
from jaxsink.sampling.whole_sums import unreduced


@pytree_dataclass
class DiffusionCarry(Carry):
    """The carry of a diffusion sampler. The block number is -1 before the first step."""

    block: Int[Array, " B"] = axes()
    block_step: Int[Array, " B"] = axes()
    block_masks: Int[Array, " B"] = axes()
    cache: Cache | None = axes(batch=-4, heads=-3)
    sums: tuple[PyTree, ...] | None = axes(1, 2, default=None)  # of queries that will not run again (context_cache.py)
    # of samplers that edit what they wrote:
    stays: Bool[Array, " B"] | None = axes(default=None)
    full_steps: Int[Array, " B"] | None = axes(default=None)
    commits: Int[Array, "B T S"] | None = axes(default=None)  # what each step wrote, -1 elsewhere

    def caches(self) -> tuple[Cache | None, ...]:
        return (self.cache,)


class DiffusionSampler(Sampler[DiffusionCarry]):
    """A sampler that fills masks; subclasses say where (`block`, `window`) and with what (`decide`).

    `block` and `window` default to one block that is the whole response.

    Examples:
        >>> isinstance(sampler, jaxsink.DiffusionSampler), isinstance(jaxsink.ARSampler(), jaxsink.DiffusionSampler)
        (True, False)
        >>> sampler.total_steps(16)  # for 16 masks
        8
        >>> sampler.adaptive, sampler.edits
        (False, False)
    """

    cfg_scale: float = 0.0  # guidance
    stop_at_eos: bool = False  # a sequence ends, and its rest is eos, when a block is full and …
    stop_rule: ClassVar[Literal["last", "any", "first"]] = "last"
    """… its last token, or any token of the response, is eos; "first": when an eos has no mask before it, full or not."""

    @property
    def adaptive(self) -> bool:
        """Sequences finish when they are full, and not after a fixed number of steps."""
        return False

    @property
    def edits(self) -> bool:
        """What was written may be written again."""
        return False

    @property
    def passes(self) -> int:
        return 1 + (self.cfg_scale > 0)

    def window(self, config: ModelConfig) -> int:
        return self.response_length

    def block(self, config: ModelConfig, canvas: Canvas) -> Block:
        """Where each sequence's block is; the window starts with it."""
        batch, length = canvas.tokens.shape
        return Block(
            number=jnp.zeros(batch, jnp.int32),
            begin=jnp.full(batch, canvas.prompt_length),
            end=jnp.full(batch, length),
        )

    def sight(self, config: ModelConfig, canvas: Canvas, block: Block, window: Window) -> Sight | None:
        """What exists in this step, and how far each query sees; None = the whole canvas, by the model's own pattern."""
        return None

    def part(self, config: ModelConfig, canvas: Canvas, block: Block) -> Part:
        """The tokens that run, where a sampler `keeps` the keys and values of what is finished."""
        return Part(block.begin)

    def readers(self, config: ModelConfig, canvas: Canvas, window: Window) -> Int[Array, "B W"]:
        """The queries that predict the window's positions."""
        return head_queries(config, window.position, canvas.first[:, None], canvas.tokens.shape[1])

    def time(self, config: ModelConfig, window: Window) -> Float[Array, " B"] | None:
        """What a model is told of the noise level in this step; None = that of the share of masks."""
        return None

    @abc.abstractmethod
    def decide(self, config: ModelConfig, logits: Float[Array, "B W V"], window: Window, draws: Draws) -> Commit:
        """Which tokens to write where; `logits` are those of the window's positions."""

    def blank_id(self, config: ModelConfig) -> int:
        assert config.mask_id is not None
        return config.mask_id

    def init(self, run: Decoding, tokens: Int[Array, "B S"]) -> DiffusionCarry:
        batch, length = tokens.shape
        if run.spec.edit_tokens is not None:
            tokens = check_edit("edit_tokens", tokens, run.spec.edit_tokens(jnp.int32(-1), tokens))
        zero = jnp.zeros(batch, jnp.int32)
        carry = DiffusionCarry(
            step=jnp.int32(0),
            tokens=tokens,
            committed_at=jnp.full_like(tokens, -1),
            done=zero > 0,
            steps=zero,
            needed_record=None,
            drop=None,
            targets=None,
            block=zero - 1,
            block_step=zero,
            block_masks=zero,
            cache=None if self.cache is None else empty_block_cache(run, self, batch, length),
            stays=zero > 0 if self.edits else None,
            full_steps=zero if self.edits else None,
            commits=jnp.full((batch, run.spec.total_steps, length), -1, jnp.int32) if self.edits else None,
        )

        if run.spec.edit_tokens is not None:
            carry = edited(carry, tokens, run.config.vocab)

        def zeros(recorders: tuple[Recorder, ...]) -> tuple[PyTree, ...]:
            look = partial(run_canvas, run, outputs=zero[:, None], recorders=recorders)
            return zeros_like_shapes(jax.eval_shape(lambda c: look(c, c.tokens)[1], carry))

        if run.spec.intervene is not None:
            carry = before_intervening(run, carry.replace(needed_record=zeros(run.spec.record.needs)))
        if keeps_context(self, run.config, run.spec):
            sums = zeros(unreduced(run.spec.record.recorders))
            carry = carry.replace(cache=empty_cache(run.model, batch, length), sums=sums)
        return constrain(carry, run.spec.mesh)

    def prefill(self, run: Decoding, carry: DiffusionCarry) -> DiffusionCarry:
        """Keys and values of the prompt, unless the first step runs all of it."""
        if carry.sums is None:
            return carry
        canvas = see_canvas(run, carry)
        block = self.block(run.config, canvas)
        window = see_window(run, self, carry, canvas, block)
        sight = self.sight(run.config, canvas, block, window)
        assert sight is not None
        return with_prompt(run, carry, sight, self.part(run.config, canvas, block))

    def step(self, run: Decoding, carry: DiffusionCarry, *, record: bool) -> tuple[DiffusionCarry, tuple[PyTree, ...]]:
        canvas = see_canvas(run, carry)
        block = self.block(run.config, canvas)
        window = see_window(run, self, carry, canvas, block)
        sight = self.sight(run.config, canvas, block, window)
        carry = intervened(run, carry, run.inputs.mask if sight is None else sight.before & run.inputs.mask)
        wanted = run.spec.record.recorders if record else ()
        part = None if carry.sums is None else self.part(run.config, canvas, block)
        at = Looking(window, self.readers(run.config, canvas, window), sight, part)
        carry, scores, records = self._look(run, carry, at, wanted)
        if run.spec.edit_logits is not None:
            scores = check_edit("edit_logits", scores, run.spec.edit_logits(carry.step, scores, window.position))
        carry = checked(carry, scores, window.read)
        commit = self.decide(run.config, scores, window, run.inputs.draws)
        carry = write(run, self, carry, commit, window, block)
        carry = carry.replace(
            block=block.number,
            block_step=window.block_step + 1,
            block_masks=window.block_masks,
            full_steps=window.full_steps,
        )
        return carry, records

    def cached_pass(
        self, run: Decoding, carry: DiffusionCarry, window: Window, hiding: Hiding, recorders: tuple[Recorder, ...]
    ) -> PassOutput:
        """With `cache`: a pass over some of the tokens, on the keys and values of the others."""
        return cached_pass(run, self, carry, window, hiding, recorders)

    def commits(self, carry: DiffusionCarry) -> Int[Array, "T B S"] | None:
        return None if carry.commits is None else jnp.moveaxis(carry.commits, 1, 0)

    def _look(
        self,
        run: Decoding,
        carry: DiffusionCarry,
        at: Looking,
        recorders: tuple[Recorder, ...],
    ) -> tuple[DiffusionCarry, Float[Array, "B W V"], tuple[PyTree, ...]]:
        """Run the model: (the carry with what the intervention reads and the cache, logits of the window, records)."""
        if at.part is not None:
            return kept_pass(run, carry, at, recorders)
        config, intervene, needs, drop = run.config, run.spec.intervene, run.spec.record.needs, carry.drop
        window, outputs = at.window, at.readers
        some = queries_that_lose_keys(run, carry, window, outputs)
        time = self.time(config, window) if config.time_conditioning else None
        ahead = at.ahead(carry.tokens.shape[1]) if need_the_end(recorders) else None
        on_canvas = partial(
            run_canvas, run, carry, outputs=outputs, hidden_from=some, sight=at.sight, time=time, ahead=ahead
        )
        cache = None
        if self.cache is not None:
            there = run if at.sight is None else run.with_mask(run.inputs.mask & at.sight.mask)
            scores, values, cache = self.cached_pass(there, carry, window, Hiding(drop, some), recorders + needs)
        else:
            scores, values = on_canvas(carry.tokens, drop=drop, recorders=recorders + needs)
            if self.cfg_scale > 0:
                assert config.mask_id is not None
                without_prompt = jnp.where(run.inputs.prompt & run.inputs.mask, config.mask_id, carry.tokens)
                unguided, _ = on_canvas(without_prompt, drop=drop, recorded=False)
                scores = unguided + (self.cfg_scale + 1) * (scores - unguided)
        needed_record = values[len(recorders) :]
        if intervene is not None and ranks_on_clean(intervene):
            needed_record = on_canvas(carry.tokens, recorders=needs)[1]
        carry = carry.replace(needed_record=None if intervene is None else needed_record, cache=cache)
        return carry, scores, values[: len(recorders)]


def see_canvas(run: Decoding, carry: DiffusionCarry) -> Canvas:
    return Canvas(
        tokens=carry.tokens,
        masked=fillable(run.inputs) & (carry.tokens == run.config.mask_id),
        first=jnp.argmax(run.inputs.mask, axis=1),
        step=carry.step,
        prompt_length=run.spec.prompt_length,
        block=carry.block,
        stays=carry.stays,
    )


def fillable(inputs: RunInputs) -> Bool[Array, "B S"]:
    """Positions that the run may fill."""
    return inputs.mask & ~inputs.prompt


def see_window(run: Decoding, sampler: DiffusionSampler, carry: DiffusionCarry, canvas: Canvas, block: Block) -> Window:
    batch, length = canvas.tokens.shape
    if run.spec.infill:
        position = jnp.broadcast_to(jnp.arange(length), (batch, length))
    else:
        position = block.begin[:, None] + jnp.arange(sampler.window(run.config))
    inside = position < block.end[:, None]
    place = jnp.minimum(position, length - 1)
    eligible = jnp.take_along_axis(canvas.masked, place, axis=1) & inside
    is_new = block.number != carry.block
    more = {}
    if carry.full_steps is not None:
        more["token"] = jnp.take_along_axis(canvas.tokens, place, axis=1)
        more["written"] = jnp.take_along_axis(fillable(run.inputs), place, axis=1) & inside & ~eligible
        more["full_steps"] = jnp.where(is_new, 0, carry.full_steps) + ~eligible.any(axis=1)
    return Window(
        position=position,
        eligible=eligible,
        block_step=jnp.where(is_new, 0, carry.block_step),
        block_masks=jnp.where(is_new, eligible.sum(axis=1), carry.block_masks),
        step=canvas.step,
        offset=position - run.spec.prompt_length,
        **more,
    )


def queries_that_lose_keys(
    run: Decoding, carry: DiffusionCarry, window: Window, outputs: Int[Array, "B W"]
) -> Bool[Array, "B S"] | None:
    """Those from which masks of the window are read (rows="decoded"), or all whose token is still a mask (rows="masked").

    None: every query. outputs: the queries that predict the window's positions.
    """
    rows = rows_of(run.spec.intervene)
    if rows not in HIDDEN_FROM_SOME:
        return None
    masked = see_canvas(run, carry).masked
    if rows == "masked":
        return masked
    batch, length = masked.shape
    query = jnp.where(window.read, outputs, length)  # out of range: not set
    return jnp.zeros_like(masked).at[jnp.arange(batch)[:, None], query].set(True, mode="drop")


def run_canvas(
    run: Decoding,
    carry: DiffusionCarry,
    tokens: Int[Array, "B S"],
    *,
    outputs: Int[Array, "B W"],
    hidden_from: Bool[Array, "B S"] | None = None,
    time: Float[Array, " B"] | None = None,
    ahead: Int[Array, " B"] | None = None,
    drop: Shaped[Array, "L B H S"] | None = None,
    recorders: tuple[Recorder, ...] = (),
    sight: Sight | None = None,
    recorded: bool = True,
) -> tuple[Float[Array, "B W V"], tuple[PyTree, ...]]:
    """(logits, records): the whole sequence through the layers, and the head where it can matter.

    recorded: False for the pass of guidance without the prompt, where what another run had at a position has no place.
    """
    mask = run.inputs.mask if sight is None else run.inputs.mask & sight.mask
    limit = None if sight is None else sight.limit
    batch = Batch.make(run.config, tokens, mask, prompt=run.inputs.prompt, done=carry.done)
    batch = batch._replace(outputs=outputs, hidden_from=hidden_from, limit=limit, time=time, ahead=ahead)
    out = run.model(
        run.looked_into(batch, carry.step, recorded=recorded),
        drop=drop,
        recorders=recorders,
        execution=run.spec.execution,
    )
    assert out.logits is not None
    return out.logits, out.record


def write(
    run: Decoding,
    sampler: DiffusionSampler,
    carry: DiffusionCarry,
    commit: Commit,
    window: Window,
    block: Block,
) -> DiffusionCarry:
    """Write the committed tokens; finish sequences that are full or that stop at eos."""
    config, may_fill = run.config, fillable(run.inputs)
    sequences = jnp.arange(carry.tokens.shape[0])[:, None]
    where = commit.where & ~carry.done[:, None]
    index = jnp.where(where, window.position, carry.tokens.shape[1])  # out of range: not written
    tokens = carry.tokens.at[sequences, index].set(commit.token.astype(jnp.int32), mode="drop")
    if carry.commits is not None:  # the first time counts
        taken = jnp.take_along_axis(carry.committed_at, jnp.minimum(window.position, carry.tokens.shape[1] - 1), axis=1)
        index = jnp.where(taken < 0, index, carry.tokens.shape[1])
    committed_at = carry.committed_at.at[sequences, index].set(carry.step, mode="drop")
    if run.spec.edit_tokens is not None:
        changed = check_edit("edit_tokens", tokens, run.spec.edit_tokens(carry.step, tokens))
        carry = edited(carry, changed, config.vocab)
        tokens = jnp.where(carry.done[:, None], tokens, changed)  # what is finished would never be filled again
        filled = may_fill & (carry.tokens == config.mask_id) & (tokens != config.mask_id)
        committed_at = jnp.where(filled, carry.step, jnp.where(tokens == config.mask_id, -1, committed_at))
    left = may_fill & (tokens == config.mask_id)
    done, stays = carry.done, jnp.zeros_like(carry.done) if commit.stays is None else commit.stays
    if sampler.stop_at_eos and config.eos_ids:
        stops = ends_in_eos(run, sampler, tokens, left, block) & ~done & ~stays
        rest = left & stops[:, None]
        tokens = jnp.where(rest, config.eos_ids[0], tokens)
        committed_at = jnp.where(rest, carry.step, committed_at)
        left, done = left & ~rest, done | stops
    if sampler.adaptive:
        done = done | ~(left.any(axis=1) | stays)
    if carry.commits is not None:
        written = jnp.where(tokens == carry.tokens, -1, tokens)
        commits = lax.dynamic_update_index_in_dim(carry.commits, written, carry.step, axis=1)
        carry = carry.replace(stays=stays, commits=commits)
    return carry.replace(
        step=carry.step + 1, tokens=tokens, committed_at=committed_at, done=done, steps=carry.steps + ~carry.done
    )


def ends_in_eos(
    run: Decoding,
    sampler: DiffusionSampler,
    tokens: Int[Array, "B S"],
    left: Bool[Array, "B S"],
    block: Block,
) -> Bool[Array, " B"]:
    """Sequences whose block is full and has eos where the sampler's stop rule looks for it."""
    if sampler.stop_rule == "first":
        is_end = fillable(run.inputs) & jnp.isin(tokens, jnp.array(run.config.eos_ids))
        return (is_end & (left.cumsum(axis=1) == 0)).any(axis=1)
    position = jnp.arange(tokens.shape[1])
    inside = position < block.end[:, None]
    where = inside & fillable(run.inputs) if sampler.stop_rule == "any" else position == block.end[:, None] - 1
    ends = (where & jnp.isin(tokens, jnp.array(run.config.eos_ids))).any(axis=1)
    return ends & ~(left & inside).any(axis=1)
