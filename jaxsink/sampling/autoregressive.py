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

from jaxsink.attention import Sequence
from jaxsink.model import Cache, Model, Pass, empty_cache, logits, token_kinds, transform
from jaxsink.record import Recorder, Tap
from jaxsink.sampling.diffusion import Given, Settings, loop_steps, next_drop
from jaxsink.sampling.intervene import ranks_on_clean
from jaxsink.sampling.records import zeros_like_shapes


class Carry(NamedTuple):
    """Everything that changes from step to step."""

    step: Array  # i32[]
    tokens: Array  # i32[B,S]
    committed_at: Array  # i32[B,S]
    done: Array  # bool[B]
    steps: Array  # i32[B]
    sums: tuple[Any, ...]  # whole_map: the map's column sums so far, one per recorder
    seen: Any  # what the intervention needs, of the last step
    drop: Array | None  # bool[L,B,H,S], hidden in the last step
    cache: Cache
    clean: Cache | None  # for rank_on="clean": the same tokens, without any key ever hidden


def start(model: Model, tokens: Array, given: Given, settings: Settings) -> Carry:
    """Before the first step; the prompt runs inside the first chunk (`advance(..., begin=True)`)."""
    batch, length = tokens.shape
    config, intervene = model.config, settings.intervene
    cache = empty_cache(model, batch, length)
    zero = jnp.zeros(batch, jnp.int32)
    carry = Carry(
        step=jnp.int32(0),
        tokens=tokens,
        committed_at=jnp.full_like(tokens, -1),
        done=zero > 0,
        steps=zero,
        sums=(),
        seen=None,
        drop=None if intervene is None else jnp.zeros((config.layers, batch, config.heads, length), bool),
        cache=cache,
        clean=empty_cache(model, batch, length) if intervene is not None and ranks_on_clean(intervene) else None,
    )
    if intervene is not None:
        run = partial(_run_last, model, given=given, settings=settings, drop=None, recorders=settings.plan.needs)
        carry = carry._replace(seen=zeros_like_shapes(jax.eval_shape(lambda c: run(c, cache=c.cache)[1], carry)))
    if settings.sampler.whole_map:
        raw = summed(settings.plan.recorders)
        run = partial(_run_last, model, given=given, settings=settings, drop=None, recorders=raw)
        carry = carry._replace(sums=zeros_like_shapes(jax.eval_shape(lambda c: run(c, cache=c.cache)[1], carry)))
    return carry


@partial(jax.jit, static_argnames=("settings", "chunk", "begin"), donate_argnames=("carry",))
def advance(model: Model, carry: Carry, given: Given, settings: Settings, chunk: int, begin: bool) -> tuple[Carry, Any]:
    """Up to `chunk` more steps; the first chunk runs the prompt before them."""
    if begin and settings.prompt > 1:
        carry = _prefill(model, carry, given, settings)
    return loop_steps(partial(_step, model, given=given, settings=settings), carry, settings, chunk)


def _prefill(model: Model, carry: Carry, given: Given, settings: Settings) -> Carry:
    """Fill the caches with the prompt, but for its last token, which step 0 runs."""
    count = settings.prompt - 1
    mask = given.mask & (jnp.arange(given.mask.shape[1]) < count)
    sequence = Sequence(carry.tokens, token_kinds(model.config, carry.tokens, given.prompt), mask)
    recorders = summed(settings.plan.recorders) if settings.sampler.whole_map else ()
    run = Pass(sequence, mask, cache=carry.cache, start=0, queries=count)
    _, sums, cache = transform(model, run, recorders, settings.backend)
    assert cache is not None
    return carry._replace(cache=cache, sums=sums, clean=None if carry.clean is None else jax.tree.map(jnp.copy, cache))


def _step(
    model: Model, carry: Carry, given: Given, settings: Settings, record_now: bool
) -> tuple[Carry, tuple[Any, ...]]:
    config, sampler, plan = model.config, settings.sampler, settings.plan
    drop = next_drop(carry, given, settings)
    wanted = summed(plan.recorders) if sampler.whole_map else plan.recorders if record_now else ()
    needs = () if settings.intervene is None else plan.needs
    hidden, values, cache = _run_last(model, carry, given, settings, drop, wanted + needs, carry.cache)
    seen, clean = values[len(wanted) :], None
    if carry.clean is not None:
        _, seen, clean = _run_last(model, carry, given, settings, None, needs, carry.clean)

    values, sums = values[: len(wanted)], ()
    if sampler.whole_map:
        sums = tuple(
            jax.tree.map(jnp.add, total, value) if recorder.join == "sum" else value
            for recorder, total, value in zip(plan.recorders, carry.sums, values, strict=True)
        )
        values = _reduced(plan.recorders, sums, carry, given, settings, config) if record_now else ()

    scores = logits(model, hidden[:, 0])
    token = sampler.next_token(scores, carry.step, settings.prompt, given.draws)
    at = settings.prompt + carry.step
    filler = config.pad_id if config.pad_id is not None else (config.eos_ids or (0,))[0]
    tokens = carry.tokens.at[:, at].set(jnp.where(carry.done, filler, token).astype(jnp.int32))
    committed_at = carry.committed_at.at[:, at].set(jnp.where(carry.done, -1, carry.step))
    done = carry.done
    if sampler.stop_at_eos and config.eos_ids:
        done = done | jnp.isin(token, jnp.array(config.eos_ids))
    carry = Carry(
        carry.step + 1, tokens, committed_at, done, carry.steps + ~carry.done, sums,
        seen if settings.intervene is not None else None, drop, cache, clean,
    )  # fmt: skip
    return carry, values


def _now(carry: Carry, given: Given, settings: Settings, config: Any) -> tuple[Array, Array, Sequence]:
    """(index of the token that runs, mask of the tokens so far, the sequence as statistics see it)."""
    at = settings.prompt - 1 + carry.step
    mask = given.mask & (jnp.arange(given.mask.shape[1]) <= at)
    kinds = token_kinds(config, carry.tokens, given.prompt)
    return at, mask, Sequence(carry.tokens, kinds, mask & ~carry.done[:, None])


def _run_last(
    model: Model,
    carry: Carry,
    given: Given,
    settings: Settings,
    drop: Any,
    recorders: tuple[Recorder, ...],
    cache: Cache,
) -> tuple[Array, tuple[Any, ...], Cache]:
    at, mask, sequence = _now(carry, given, settings, model.config)
    run = Pass(sequence, mask, drop=drop, cache=cache, start=at, queries=1)
    hidden, values, cache_ = transform(model, run, recorders, settings.backend)
    assert cache_ is not None
    return hidden, values, cache_


def summed(recorders: tuple[Recorder, ...]) -> tuple[Recorder, ...]:
    """The recorders without their reductions, which have to wait until the sum over rows is complete."""
    return tuple(replace(r, reductions=()) if r.join == "sum" else r for r in recorders)


def _reduced(
    recorders: tuple[Recorder, ...], sums: Any, carry: Carry, given: Given, settings: Settings, config: Any
) -> tuple[Any, ...]:
    """Apply the reductions, layer by layer, to the column sums so far."""
    _, _, sequence = _now(carry, given, settings, config)
    nothing: Any = None
    tap = Tap(
        layer=nothing, probs=None, rows=nothing, row_index=nothing, row_kind=nothing, q=nothing, k=nothing, v=nothing,
        hidden=nothing, mask=sequence.counted, tokens=sequence.tokens, key_kind=sequence.kind,
    )  # fmt: skip
    return tuple(
        jax.vmap(lambda value, r=recorder: r.finish(value, tap))(total) if recorder.join == "sum" else total
        for recorder, total in zip(recorders, sums, strict=True)
    )
