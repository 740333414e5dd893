"""The diffusion loop: one compiled program that unmasks the canvas, records attention, and closes the intervention loop.

A step: the intervention turns what the last step recorded into dropped keys; the model runs on the canvas; the head runs
on the window that may change; the sampler decides; tokens are committed. Nothing happens on the host between steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsink.attention import Sequence
from jaxsink.errors import JaxsinkError
from jaxsink.model import Cache, Model, Pass, empty_cache, logits, token_kinds, transform
from jaxsink.record import Recorder
from jaxsink.sampling import noise
from jaxsink.sampling.intervene import Previous, ranks_on_clean
from jaxsink.sampling.records import Plan, zeros_like_shapes
from jaxsink.sampling.samplers import Canvas, Window


class Carry(NamedTuple):
    """Everything that changes from step to step."""

    step: Array  # i32[]
    tokens: Array  # i32[B,S]
    committed_at: Array  # i32[B,S], -1 = given or not yet
    done: Array  # bool[B]
    steps: Array  # i32[B], steps each row has taken
    block: Array  # i32[B]
    block_step: Array  # i32[B]
    block_masks: Array  # i32[B]
    seen: Any  # what the intervention needs, of the last step
    drop: Array | None  # bool[L,B,H,S], hidden in the last step
    cache: Cache | None


class Given(NamedTuple):
    """What stays the same in all steps."""

    mask: Array  # bool[B,S]
    prompt: Array  # bool[B,S], True = given by the caller, and not a mask to fill
    draws: noise.Draws


class Settings(NamedTuple):
    """Static: a change here compiles another program."""

    sampler: Any
    plan: Plan
    intervene: Any
    prompt: int  # P
    infill: bool  # masks stand in the prompt, so the window is the whole canvas
    backend: str
    total: int  # T
    edit_logits: Any = None
    edit_tokens: Any = None


def start(model: Model, tokens: Array, given: Given, settings: Settings) -> Carry:
    batch, length = tokens.shape
    config = model.config
    if settings.edit_tokens is not None:
        tokens = settings.edit_tokens(jnp.int32(-1), tokens)
    zero = jnp.zeros(batch, jnp.int32)
    seen = drop = cache = None
    if settings.intervene is not None:
        drop = jnp.zeros((config.layers, batch, config.heads, length), bool)
        run = partial(_transform, model, given=given, settings=settings, drop=None, recorders=settings.plan.needs)
        seen = zeros_like_shapes(jax.eval_shape(lambda t: run(tokens=t, done=zero > 0)[1], tokens))
    if settings.sampler.cache is not None:
        cache = empty_cache(model, batch, length + partial_queries(settings.sampler) - settings.sampler.block_length)
    return Carry(
        jnp.int32(0), tokens, jnp.full_like(tokens, -1), zero > 0, zero, zero - 1, zero, zero, seen, drop, cache
    )


@partial(jax.jit, static_argnames=("settings", "chunk", "begin"), donate_argnames=("carry",))
def advance(model: Model, carry: Carry, given: Given, settings: Settings, chunk: int, begin: bool) -> tuple[Carry, Any]:
    """Up to `chunk` more steps: (carry, records with a leading axis of ceil(chunk / every))."""
    return loop_steps(partial(_step, model, given=given, settings=settings), carry, settings, chunk)


def loop_steps(step: Callable[..., Any], carry: Any, settings: Settings, chunk: int) -> tuple[Any, Any]:
    """Run `step(carry, record_now=...) -> (carry, values)` until the chunk, the run or every row is finished."""
    plan = settings.plan
    shapes = jax.eval_shape(lambda c: step(c, record_now=True)[1], carry)
    buffers = zeros_like_shapes(shapes, lead=plan.rows(chunk))
    first = carry.step

    def unfinished(state: tuple[Any, Any]) -> Array:
        carry = state[0]
        return (carry.step < jnp.minimum(first + chunk, settings.total)) & ~carry.done.all()

    def recorded(carry: Any, buffers: Any) -> tuple[Any, Any]:
        row = (carry.step - first) // plan.every
        carry, values = step(carry, record_now=True)
        return carry, jax.tree.map(lambda b, v: lax.dynamic_update_index_in_dim(b, v, row, 0), buffers, values)

    def unrecorded(carry: Any, buffers: Any) -> tuple[Any, Any]:
        return step(carry, record_now=False)[0], buffers

    def body(state: tuple[Any, Any]) -> tuple[Any, Any]:
        carry, buffers = state
        if plan.every == 1 or not plan.recorders:
            return recorded(carry, buffers)
        return lax.cond(carry.step % plan.every == 0, recorded, unrecorded, carry, buffers)

    return lax.while_loop(unfinished, body, (carry, buffers))


def _step(
    model: Model, carry: Carry, given: Given, settings: Settings, record_now: bool
) -> tuple[Carry, tuple[Any, ...]]:
    sampler, config = settings.sampler, model.config
    assert config.mask_id is not None
    fillable = given.mask & ~given.prompt
    masked = fillable & (carry.tokens == config.mask_id)
    canvas = Canvas(carry.tokens, masked, jnp.argmax(given.mask, axis=1), carry.step, settings.prompt)
    block, begin, end = sampler.block(config, canvas)
    window = _window(carry, canvas, block, begin, end, settings, config)

    drop = next_drop(carry, given.mask, given, settings)
    wanted = settings.plan.recorders if record_now else ()
    recorders = wanted + (() if settings.intervene is None else settings.plan.needs)
    run = partial(_transform, model, carry.tokens, given, settings, carry.done)
    if sampler.cache is None:
        hidden, values, cache = *run(drop, recorders), None
        scores = _window_logits(model, hidden, window.position, canvas.first)
        if sampler.cfg_scale > 0:
            without_prompt = jnp.where(given.prompt & given.mask, config.mask_id, carry.tokens)
            plain, _ = _transform(model, without_prompt, given, settings, carry.done, drop, ())
            unguided = _window_logits(model, plain, window.position, canvas.first)
            scores = unguided + (sampler.cfg_scale + 1) * (scores - unguided)
    else:
        scores, values, cache = _cached_logits(model, carry, given, settings, window, drop, recorders)

    seen = values[len(wanted) :]
    if settings.intervene is not None and ranks_on_clean(settings.intervene):
        seen = run(None, settings.plan.needs)[1]
    if settings.edit_logits is not None:
        scores = settings.edit_logits(carry.step, scores, window.position)
    token, commit = sampler.decide(config, scores, window, given.draws)
    carry = _commit(carry, window, token, commit & ~carry.done[:, None], fillable, end, settings, config)
    return (
        carry._replace(
            block=block, block_step=window.block_step + 1, block_masks=window.block_masks, drop=drop, cache=cache,
            seen=None if settings.intervene is None else seen,
        ),
        values[: len(wanted)],
    )  # fmt: skip


def _window(
    carry: Carry, canvas: Canvas, block: Array, begin: Array, end: Array, settings: Settings, config: Any
) -> Window:
    batch, length = canvas.tokens.shape
    if settings.infill:
        index = jnp.broadcast_to(jnp.arange(length), (batch, length))
    else:
        index = begin[:, None] + jnp.arange(settings.sampler.window(config))
    below = index < end[:, None]
    eligible = jnp.take_along_axis(canvas.masked, jnp.minimum(index, length - 1), axis=1) & below
    new = block != carry.block
    return Window(
        position=index,
        eligible=eligible,
        block_step=jnp.where(new, 0, carry.block_step),
        block_masks=jnp.where(new, eligible.sum(axis=1), carry.block_masks),
        step=canvas.step,
        place=index - settings.prompt,
    )


def next_drop(carry: Any, mask: Array, given: Given, settings: Settings) -> Array | None:
    """What the intervention hides in this step; `mask` bool[B,S] are the tokens that were there in the step before."""
    if settings.intervene is None:
        return None
    keys = jax.vmap(lambda key: jax.random.fold_in(jax.random.fold_in(key, noise.INTERVENE), carry.step))(
        given.draws.keys
    )
    seen = jax.tree.unflatten(settings.plan.needs_treedef, carry.seen)
    previous = Previous(seen, carry.step, carry.tokens, mask, given.prompt, keys, carry.drop)
    return jnp.where(carry.step == 0, False, settings.intervene(previous)) & mask[None, :, None, :]


def _transform(
    model: Model,
    tokens: Array,
    given: Given,
    settings: Settings,
    done: Array,
    drop: Any,
    recorders: tuple[Recorder, ...],
) -> tuple[Array, tuple[Any, ...]]:
    sequence = Sequence(tokens, token_kinds(model.config, tokens, given.prompt), given.mask & ~done[:, None])
    hidden, values, _ = transform(model, Pass(sequence, given.mask, drop=drop), recorders, settings.backend)
    return hidden, values


def _cached_logits(
    model: Model,
    carry: Carry,
    given: Given,
    settings: Settings,
    window: Window,
    drop: Any,
    recorders: tuple[Recorder, ...],
) -> tuple[Array, tuple[Any, ...], Cache]:
    """Fast-dLLM: a full pass when a block begins; from then on only the block runs ("dual"), or the block and all that
    follows ("prefix"), on the keys and values that the full pass left behind."""
    assert carry.cache is not None
    config, length = model.config, carry.tokens.shape[1]
    begin = window.position[0, 0]
    first = jnp.zeros(carry.tokens.shape[0], jnp.int32)
    queries = partial_queries(settings.sampler)
    kinds = token_kinds(config, carry.tokens, given.prompt)
    sequence = Sequence(carry.tokens, kinds, given.mask & ~carry.done[:, None])
    room = carry.cache.k.shape[2] - length  # so that the queries of a late block do not run over the end
    if room:
        sequence = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, room))), sequence)
        drop = None if drop is None else jnp.pad(drop, ((0, 0), (0, 0), (0, 0), (0, room)))
        recorders = tuple(showing(length, recorder) for recorder in recorders)
    mask = jnp.pad(given.mask, ((0, 0), (0, room)))

    def run(start: Any, queries: int) -> tuple[Array, tuple[Any, ...], Cache]:
        one = Pass(sequence, mask, drop=drop, cache=carry.cache, start=start, queries=queries)
        hidden, values, cache = transform(model, one, recorders, settings.backend)
        assert cache is not None
        return _window_logits(model, hidden, window.position - start, first), values, cache

    whole, part = partial(run, 0, length), partial(run, begin, queries)
    if jax.eval_shape(whole)[1] != jax.eval_shape(part)[1]:
        raise JaxsinkError(
            "with a cache only some of the tokens run, so only records summed over queries can be kept: received(), "
            "or a reduction of it, but not maps()."
        )
    return lax.cond(window.block_step[0] == 0, whole, part)


def partial_queries(sampler: Any) -> int:
    """How many tokens run while a block is decoded with a cache."""
    return sampler.block_length if sampler.cache == "dual" else sampler.gen_length


@dataclass(frozen=True)
class _Showing:
    """A recorder's function, or reduction, that sees the first `length` keys only."""

    length: int
    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        *value, tap = arguments

        def cut(x: Array | None, axis: int = 1) -> Array | None:
            return None if x is None else lax.slice_in_dim(x, 0, self.length, axis=axis)

        tap = tap._replace(
            probs=cut(tap.probs, 3), k=cut(tap.k), v=cut(tap.v), mask=cut(tap.mask), tokens=cut(tap.tokens),
            key_kind=cut(tap.key_kind),
        )  # fmt: skip
        return self.function(*value, tap)


def showing(length: int, recorder: Recorder) -> Recorder:
    reductions = tuple(_Showing(length, reduction) for reduction in recorder.reductions)
    return replace(recorder, read=_Showing(length, recorder.read), reductions=reductions)


def _window_logits(model: Model, hidden: Array, index: Array, first: Array) -> Array:
    """f32[B,W,V]: the head where it can matter. Dream's logits for a position stand one place to its left."""
    if model.config.shift_logits:
        index = jnp.maximum(index - 1, first[:, None])
    index = jnp.clip(index, 0, hidden.shape[1] - 1)
    return logits(model, jnp.take_along_axis(hidden, index[..., None], axis=1))


def _commit(
    carry: Carry,
    window: Window,
    token: Array,
    commit: Array,
    fillable: Array,
    end: Array,
    settings: Settings,
    config: Any,
) -> Carry:
    """Write the committed tokens; finish rows that are full or that stop at eos."""
    rows = jnp.arange(carry.tokens.shape[0])[:, None]
    index = jnp.where(commit, window.position, carry.tokens.shape[1])  # out of range: dropped
    tokens = carry.tokens.at[rows, index].set(token.astype(jnp.int32), mode="drop")
    committed_at = carry.committed_at.at[rows, index].set(carry.step, mode="drop")
    if settings.edit_tokens is not None:
        tokens = settings.edit_tokens(carry.step, tokens)
        filled = fillable & (carry.tokens == config.mask_id) & (tokens != config.mask_id)
        committed_at = jnp.where(filled, carry.step, jnp.where(tokens == config.mask_id, -1, committed_at))
    left = fillable & (tokens == config.mask_id)
    done = carry.done
    if settings.sampler.stop_at_eos:
        index = jnp.arange(tokens.shape[1])
        inside = index < end[:, None]
        where = inside & fillable if settings.sampler.stop_rule == "any" else index == end[:, None] - 1
        ends = (where & jnp.isin(tokens, jnp.array(config.eos_ids))).any(axis=1)
        stops = ends & ~(left & inside).any(axis=1) & ~done
        rest = left & stops[:, None]
        tokens = jnp.where(rest, config.eos_ids[0], tokens)
        committed_at = jnp.where(rest, carry.step, committed_at)
        left, done = left & ~rest, done | stops
    if settings.sampler.adaptive:
        done = done | ~left.any(axis=1)
    return carry._replace(
        step=carry.step + 1, tokens=tokens, committed_at=committed_at, done=done, steps=carry.steps + ~carry.done
    )
