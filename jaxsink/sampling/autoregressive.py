"""The autoregressive loop: the prompt fills a key/value cache, then every step runs one token through it.

Step t runs the token at index P - 1 + t, and writes the next one. So step 0 runs the prompt's last token, and every step
records one row of attention: what the last token looks at while the next one is chosen.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxsink.nn.batch import Batch, Execution
from jaxsink.nn.cache import Cache
from jaxsink.nn.compilation import model_jit
from jaxsink.nn.transformer import Model, empty_cache
from jaxsink.recording.recorders import Recorder, last_row
from jaxsink.recording.spec import zeros_like_shapes
from jaxsink.sampling.diffusion import Given, Settings, first_drop, laid_out, loop_steps, next_drop
from jaxsink.sampling.interventions import ranks_on_clean


class Carry(NamedTuple):
    """Everything that changes from step to step."""

    step: Array  # i32[]
    tokens: Array  # i32[B,S]
    committed_at: Array  # i32[B,S]
    done: Array  # bool[B]
    steps: Array  # i32[B]
    log_prob: Array  # f32[B,S], of the tokens that were written
    sums: tuple[Any, ...]  # whole_map: sums over all queries so far, one per recorder that adds up
    seen: Any  # what the intervention needs, of the last step
    drop: Array | None  # what the intervention returned for the last step
    cache: Cache
    clean: Cache | None  # for rank_on="clean": the same tokens, without any key ever hidden


def start(model: Model, tokens: Array, given: Given, settings: Settings) -> Carry:
    """Before the first step; the prompt runs inside the first chunk (`advance(..., begin=True)`)."""
    batch, length = tokens.shape
    intervene = settings.intervene
    cache = empty_cache(model, batch, length)
    zero = jnp.zeros(batch, jnp.int32)
    carry = Carry(
        step=jnp.int32(0),
        tokens=tokens,
        committed_at=jnp.full_like(tokens, -1),
        done=zero > 0,
        steps=zero,
        log_prob=jnp.zeros(tokens.shape, jnp.float32),
        sums=(),
        seen=None,
        drop=None,
        cache=cache,
        clean=empty_cache(model, batch, length) if intervene is not None and ranks_on_clean(intervene) else None,
    )
    if intervene is not None:
        run = partial(_run_last, model, given=given, settings=settings, drop=None, recorders=settings.plan.needs)
        carry = carry._replace(seen=zeros_like_shapes(jax.eval_shape(lambda c: run(c, cache=c.cache)[1], carry)))
        carry = carry._replace(drop=first_drop(carry, given, settings, model.config))
    if settings.sampler.whole_map:
        run = partial(_run_last, model, given=given, settings=settings, drop=None, recorders=added_up(settings))
        carry = carry._replace(sums=zeros_like_shapes(jax.eval_shape(lambda c: run(c, cache=c.cache)[1], carry)))
    return laid_out(carry, settings)


@model_jit(static=("settings", "chunk", "begin"), donated=("carry",))
def advance(model: Model, carry: Carry, given: Given, settings: Settings, chunk: int, begin: bool) -> tuple[Carry, Any]:
    """Up to `chunk` more steps; the first chunk runs the prompt before them."""
    if begin and settings.prompt > 1:
        carry = _prefill(model, carry, given, settings)
    return loop_steps(partial(_step, model, given=given, settings=settings), carry, settings, chunk)


def _prefill(model: Model, carry: Carry, given: Given, settings: Settings) -> Carry:
    """Fill the caches with the prompt, but for its last token, which step 0 runs."""
    count = settings.prompt - 1
    mask = given.mask & (jnp.arange(given.mask.shape[1]) < count)
    batch = Batch.make(model.config, carry.tokens, mask, prompt=given.prompt)._replace(queries=count)
    execution = Execution(settings.backend, settings.mesh)
    out = model(batch, cache=carry.cache, recorders=added_up(settings), execution=execution, head=False)
    assert out.cache is not None
    clean = None if carry.clean is None else jax.tree.map(jnp.copy, out.cache)
    return carry._replace(cache=out.cache, sums=out.record, clean=clean)


def _step(
    model: Model, carry: Carry, given: Given, settings: Settings, record_now: bool
) -> tuple[Carry, tuple[Any, ...]]:
    config, sampler, plan = model.config, settings.sampler, settings.plan
    there_before = given.mask & (jnp.arange(given.mask.shape[1]) < settings.prompt - 1 + carry.step)
    drop = next_drop(carry, there_before, given, settings)
    wanted = tuple(r for r in plan.recorders if record_now and not (sampler.whole_map and adds_up(r)))
    adding, needs = added_up(settings), () if settings.intervene is None else plan.needs
    hidden, values, cache = _run_last(model, carry, given, settings, drop, wanted + adding + needs, carry.cache)
    values, added, seen = _split(values, len(wanted), len(adding))
    clean = None
    if carry.clean is not None:
        _, seen, clean = _run_last(model, carry, given, settings, None, needs, carry.clean)
    sums = jax.tree.map(jnp.add, carry.sums, added)
    if adding and record_now:
        values = _with_sums(values, sums, carry, given, settings, config)

    scores = model.logits(hidden[:, 0])
    token = sampler.next_token(scores, carry.step, settings.prompt, given.draws)
    at = settings.prompt + carry.step
    if settings.forced:
        token = jnp.where(carry.tokens[:, at] >= 0, carry.tokens[:, at], token)
    log_prob = jnp.take_along_axis(jax.nn.log_softmax(scores), token[:, None], axis=-1)[:, 0]
    tokens = carry.tokens.at[:, at].set(jnp.where(carry.done, carry.tokens[:, at], token).astype(jnp.int32))
    committed_at = carry.committed_at.at[:, at].set(jnp.where(carry.done, -1, carry.step))
    done = carry.done
    if sampler.stop_at_eos and config.eos_ids:
        done = done | jnp.isin(token, jnp.array(config.eos_ids))
    log_prob = carry.log_prob.at[:, at].set(jnp.where(carry.done, 0.0, log_prob))
    carry = Carry(
        carry.step + 1, tokens, committed_at, done, carry.steps + ~carry.done, log_prob, sums,
        seen if settings.intervene is not None else None, drop, cache, clean,
    )  # fmt: skip
    return carry, values


def _now(carry: Carry, given: Given, settings: Settings, config: Any) -> Batch:
    """The tokens so far, of which the last one runs."""
    at = settings.prompt - 1 + carry.step
    mask = given.mask & (jnp.arange(given.mask.shape[1]) <= at)
    batch = Batch.make(config, carry.tokens, mask, prompt=given.prompt, done=carry.done)
    return batch._replace(start=at, queries=1)


def _run_last(
    model: Model,
    carry: Carry,
    given: Given,
    settings: Settings,
    drop: Any,
    recorders: tuple[Recorder, ...],
    cache: Cache,
) -> tuple[Array, tuple[Any, ...], Cache]:
    batch, execution = _now(carry, given, settings, model.config), Execution(settings.backend, settings.mesh)
    out = model(batch, cache=cache, drop=drop, recorders=recorders, execution=execution, head=False)
    assert out.cache is not None
    return out.hidden, out.record, out.cache


def adds_up(recorder: Recorder) -> bool:
    """True = its values for different queries add up to the value of the whole map."""
    return recorder.join == "sum" and recorder.read is not last_row().read


def added_up(settings: Settings) -> tuple[Recorder, ...]:
    """With whole_map, the recorders that add up; without their reductions, which wait until the sum is complete."""
    recorders = settings.plan.recorders if settings.sampler.whole_map else ()
    return tuple(replace(r, reductions=()) for r in recorders if adds_up(r))


def _split(values: tuple[Any, ...], *counts: int) -> tuple[tuple[Any, ...], ...]:
    parts = []
    for count in counts:
        parts.append(values[:count])
        values = values[count:]
    return *parts, values


def _with_sums(
    values: tuple[Any, ...], sums: tuple[Any, ...], carry: Carry, given: Given, settings: Settings, config: Any
) -> tuple[Any, ...]:
    """All recorders' values in order: sums over the queries so far, reduced layer by layer, among those of this step."""
    keys = _now(carry, given, settings, config).keys

    def unless_done(total: Array) -> Array:
        """[L,B,...]: rows that have finished have no statistics."""
        if total.shape[1:2] != carry.done.shape:
            return total
        return jnp.where(carry.done.reshape(1, -1, *[1] * (total.ndim - 2)), 0, total)

    def reduced(recorder: Recorder, total: Any) -> Any:
        return jax.vmap(lambda value: recorder.finish(value, keys))(jax.tree.map(unless_done, total))

    of_step, of_all = iter(values), iter(sums)
    return tuple(reduced(r, next(of_all)) if adds_up(r) else next(of_step) for r in settings.plan.recorders)
