"""The diffusion loop: one compiled program that unmasks the canvas, records attention, and closes the intervention loop.

A step: the intervention turns what the last step recorded into dropped keys; the model runs on the canvas; the head runs
on the window that may change; the sampler decides; tokens are committed. Nothing happens on the host between steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh

from jaxsink.errors import JaxsinkError
from jaxsink.nn.batch import Batch, Execution
from jaxsink.nn.cache import Cache
from jaxsink.nn.compilation import model_jit
from jaxsink.nn.transformer import Model, empty_cache
from jaxsink.parallel.rows import keep_rows
from jaxsink.recording.recorders import Recorder
from jaxsink.recording.spec import Plan, packed, zeros_like_shapes
from jaxsink.sampling import rng as noise
from jaxsink.sampling.interventions import Previous, check_edit, effect, no_effect, ranks_on_clean
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
    drop: Array | None  # what the intervention returned for the last step
    cache: Cache | None


class Given(NamedTuple):
    """What stays the same in all steps."""

    mask: Array  # bool[B,S]
    prompt: Array  # bool[B,S], True = given by the caller, and not a mask to fill
    draws: noise.Draws
    policy: Array | None = None  # i32[B], for interventions with several policies


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
    mesh: Mesh | None = None  # where the weights lie; rows lie along its data axis
    forced: bool = False  # tokens that stand in the response are written as they are (autoregressive)


def start(model: Model, tokens: Array, given: Given, settings: Settings) -> Carry:
    batch, length = tokens.shape
    config = model.config
    if settings.edit_tokens is not None:
        tokens = check_edit("edit_tokens", tokens, settings.edit_tokens(jnp.int32(-1), tokens))
    zero = jnp.zeros(batch, jnp.int32)
    seen = cache = None
    if settings.intervene is not None:
        run = partial(_window_logits, model, given=given, settings=settings, drop=None, recorders=settings.plan.needs)
        seen = zeros_like_shapes(
            jax.eval_shape(lambda t: run(tokens=t, done=zero > 0, outputs=zero[:, None])[1], tokens)
        )
    if settings.sampler.cache is not None:
        cache = empty_cache(model, batch, length + partial_queries(settings.sampler) - settings.sampler.block_length)
    carry = Carry(
        jnp.int32(0), tokens, jnp.full_like(tokens, -1), zero > 0, zero, zero - 1, zero, zero, seen, None, cache
    )
    return laid_out(carry._replace(drop=first_drop(carry, given, settings, config)), settings)


@model_jit(static=("settings", "chunk", "begin"), donated=("carry",))
def advance(model: Model, carry: Carry, given: Given, settings: Settings, chunk: int, begin: bool) -> tuple[Carry, Any]:
    """Up to `chunk` more steps: (carry, records with a leading axis of ceil(chunk / every))."""
    return loop_steps(partial(_step, model, given=given, settings=settings), carry, settings, chunk)


def loop_steps(step: Callable[..., Any], carry: Any, settings: Settings, chunk: int) -> tuple[Any, Any]:
    """Run `step(carry, record_now=...) -> (carry, values)` until the chunk, the run or every row is finished."""
    plan = settings.plan
    shapes = jax.eval_shape(lambda c: step(c, record_now=True)[1], carry)
    buffers = packed(keep_rows(zeros_like_shapes(shapes, lead=plan.rows(chunk)), settings.mesh, 2, 3), front=3)
    first = carry.step

    def unfinished(state: tuple[Any, Any]) -> Array:
        carry = state[0]
        return (carry.step < jnp.minimum(first + chunk, settings.total)) & ~carry.done.all()

    def recorded(carry: Any, buffers: Any) -> tuple[Any, Any]:
        row = (carry.step - first) // plan.every
        carry, values = step(carry, record_now=True)
        return carry, jax.tree.map(lambda b, v: lax.dynamic_update_index_in_dim(b, v, row, 0), buffers, packed(values))

    def unrecorded(carry: Any, buffers: Any) -> tuple[Any, Any]:
        return step(carry, record_now=False)[0], buffers

    def body(state: tuple[Any, Any]) -> tuple[Any, Any]:
        carry, buffers = state
        if plan.every == 1 or not plan.recorders:
            return recorded(carry, buffers)
        return lax.cond(carry.step % plan.every == 0, recorded, unrecorded, carry, buffers)

    carry, buffers = lax.while_loop(unfinished, body, (carry, buffers))
    records = jax.tree.map(lambda b, s: b.reshape(len(b), *s.shape), buffers, shapes)
    return laid_out(carry, settings), keep_rows(records, settings.mesh, 2, 3)


# Where parts of the carry have their rows and heads; the others have rows in front.
CARRY_AXES = {"seen": (1, 2), "drop": (1, 2), "sums": (1, 2), "cache": (-4, -3), "clean": (-4, -3)}


def laid_out(carry: Any, settings: Settings) -> Any:
    """The carry with rows and heads where the mesh has them."""
    parts = {name: keep_rows(x, settings.mesh, *CARRY_AXES.get(name, (0,))) for name, x in carry._asdict().items()}
    return carry._replace(**parts)


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
    outputs = head_rows(config, window.position, canvas.first[:, None], carry.tokens.shape[1])
    run = partial(_window_logits, model, given=given, settings=settings, done=carry.done, outputs=outputs)
    if sampler.cache is None:
        scores, values, cache = *run(carry.tokens, drop=drop, recorders=recorders), None
        if sampler.cfg_scale > 0:
            without_prompt = jnp.where(given.prompt & given.mask, config.mask_id, carry.tokens)
            unguided, _ = run(without_prompt, drop=drop, recorders=())
            scores = unguided + (sampler.cfg_scale + 1) * (scores - unguided)
    else:
        scores, values, cache = _cached_logits(model, carry, given, settings, window, drop, recorders)

    seen = values[len(wanted) :]
    if settings.intervene is not None and ranks_on_clean(settings.intervene):
        seen = run(carry.tokens, drop=None, recorders=settings.plan.needs)[1]
    if settings.edit_logits is not None:
        scores = check_edit("edit_logits", scores, settings.edit_logits(carry.step, scores, window.position))
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
    wanted = settings.intervene(previous_step(carry, mask, given, settings))
    return effect(wanted, mask[None, :, None, :] & (carry.step > 0))


def first_drop(carry: Any, given: Given, settings: Settings, config: Any) -> Array | None:
    """No effect, of the kind the intervention returns: `Carry.drop` before the first step."""
    if settings.intervene is None:
        return None
    batch, length = carry.tokens.shape
    carry = carry._replace(drop=jnp.zeros((config.layers, batch, config.heads, length), bool))
    return no_effect(settings.intervene, previous_step(carry, given.mask, given, settings))


def previous_step(carry: Any, mask: Array, given: Given, settings: Settings) -> Previous:
    keys = jax.vmap(lambda key: jax.random.fold_in(jax.random.fold_in(key, noise.INTERVENE), carry.step))(
        given.draws.keys
    )
    seen = jax.tree.unflatten(settings.plan.needs_treedef, carry.seen)
    return Previous(seen, carry.step, carry.tokens, mask, given.prompt, keys, carry.drop, given.policy)


def _window_logits(
    model: Model,
    tokens: Array,
    given: Given,
    settings: Settings,
    done: Array,
    drop: Any,
    recorders: tuple[Recorder, ...],
    outputs: Array,
) -> tuple[Array, tuple[Any, ...]]:
    """(f32[B,W,V], records): the whole sequence through the layers, and the head where it can matter."""
    batch = Batch.make(model.config, tokens, given.mask, prompt=given.prompt, done=done)._replace(outputs=outputs)
    out = model(batch, drop=drop, recorders=recorders, execution=Execution(settings.backend, settings.mesh))
    assert out.logits is not None
    return out.logits, out.record


def head_rows(config: Any, index: Array, first: Array | int, count: int) -> Array:
    """i32[B,W]: the rows that predict the positions `index`. Dream's logits for a position stand one place to its left."""
    if config.shift_logits:
        index = jnp.maximum(index - 1, first)
    return jnp.clip(index, 0, count - 1)


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
    queries = partial_queries(settings.sampler)
    batch = Batch.make(config, carry.tokens, given.mask, prompt=given.prompt, done=carry.done)
    room = carry.cache.length - length  # so that the queries of a late block do not run over the end
    if room:
        arrays = {name: getattr(batch, name) for name in ("tokens", "mask", "kind", "counted")}
        batch = batch._replace(**{name: jnp.pad(x, ((0, 0), (0, room))) for name, x in arrays.items()})
        drop = None if drop is None else jnp.pad(drop, ((0, 0), (0, 0), (0, 0), (0, room)))
        recorders = tuple(recorder.of_first_keys(length) for recorder in recorders)
    execution = Execution(settings.backend, settings.mesh)

    def run(start: Any, queries: int) -> tuple[Array, tuple[Any, ...], Cache]:
        outputs = head_rows(config, window.position - start, 0, queries)
        one = batch._replace(start=start, queries=queries, outputs=outputs)
        out = model(one, cache=carry.cache, drop=drop, recorders=recorders, execution=execution)
        assert out.cache is not None and out.logits is not None
        return out.logits, out.record, out.cache

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
        tokens = check_edit("edit_tokens", tokens, settings.edit_tokens(carry.step, tokens))
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
