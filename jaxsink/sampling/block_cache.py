"""Fast-dLLM's caches: a full pass when a block begins; from then on only the block runs ("dual"), or the block and all that
follows ("prefix"), on the keys and values that the full pass left behind. Where logits are shifted (Dream), the token before
the block runs along, because it predicts the block's first one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int, PyTree, Shaped

from jaxsink.errors import JaxsinkError
from jaxsink.nn.batch import Batch
from jaxsink.nn.cache import Cache
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.recorder import Recorder
from jaxsink.nn.transformer import empty_cache
from jaxsink.sampling.canvas import Window
from jaxsink.sampling.run import Decoding

if TYPE_CHECKING:
    from jaxsink.sampling.diffusion import DiffusionCarry, DiffusionSampler


PassOutput = tuple[Float[Array, "B W V"], tuple[PyTree, ...], Cache]  # logits of the window, records, the cache
Pass = Callable[[], PassOutput]


class Hiding(NamedTuple):
    """What an intervention hides in a step."""

    drop: Shaped[Array, "L B H S"] | None
    hidden_from: Bool[Array, "B S"] | None  # the queries that lose it; None = all


def partial_queries(config: ModelConfig, sampler: DiffusionSampler) -> int:
    """How many tokens run while a block is decoded."""
    return config.shift_logits + (sampler.window(config) if sampler.cache == "dual" else sampler.response_length)


def empty_block_cache(run: Decoding, sampler: DiffusionSampler, batch: int, length: int) -> Cache:
    """With room for the queries of the last block, which run over the end of the sequence where all that follows runs."""
    room = sampler.response_length - sampler.window(run.config) if sampler.cache == "prefix" else 0
    return empty_cache(run.model, batch, length + room)


def cached_pass(
    run: Decoding,
    sampler: DiffusionSampler,
    carry: DiffusionCarry,
    window: Window,
    hiding: Hiding,
    recorders: tuple[Recorder, ...],
) -> PassOutput:
    """(logits of the window, records, the cache with what ran)."""
    assert carry.cache is not None
    check_last_query(run, sampler, recorders)
    length = carry.tokens.shape[1]
    room = carry.cache.length - length
    batch = Batch.make(run.config, carry.tokens, run.inputs.mask, prompt=run.inputs.prompt, done=carry.done)
    drop, batch, shown = hiding.drop, batch._replace(hidden_from=hiding.hidden_from), recorders
    if room:
        widen = lambda x: jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, room)])  # noqa: E731
        wide = ("tokens", "mask", "kind", "counted", *(() if batch.hidden_from is None else ("hidden_from",)))
        batch = batch._replace(**{name: widen(getattr(batch, name)) for name in wide})
        drop = None if drop is None else widen(drop)
        shown = tuple(recorder.of_first_keys(length) for recorder in recorders)

    def over(start: Int[Array, ""] | int, queries: int) -> PassOutput:
        outputs = head_queries(run.config, window.position - start, 0, queries)
        part = run.looked_into(batch._replace(outputs=outputs, start=start, queries=queries), carry.step)
        out = run.model(part, cache=carry.cache, drop=drop, recorders=shown, execution=run.spec.execution)
        assert out.logits is not None and out.cache is not None
        return out.logits, out.record, out.cache

    begin = window.position[0, 0] - run.config.shift_logits
    whole, block_only = partial(over, 0, length), partial(over, begin, partial_queries(run.config, sampler))
    return whole_or_part(window.block_step[0] == 0, whole, block_only, recorders)


def whole_or_part(is_whole: Bool[Array, ""], whole: Pass, part: Pass, recorders: tuple[Recorder, ...]) -> PassOutput:
    """One of two passes, whose records must have the same shape."""
    shapes = (jax.eval_shape(one)[1] for one in (whole, part))
    for recorder, of_whole, of_part in zip(recorders, *shapes, strict=True):
        if of_whole == of_part:
            continue
        if recorder.ending is not None:
            raise JaxsinkError(
                f"with a cache only some of the tokens run, so {recorder.name} cannot read all positions; give it positions="
                "'window' (--record-what lens_window), the queries from which the step reads."
            )
        raise JaxsinkError(
            "with a cache only some of the tokens run, so only records summed over queries can be kept, and "
            f"{recorder.name} is none; record received(), or a reduction of it."
        )
    return lax.cond(is_whole, whole, part)


def check_last_query(run: Decoding, sampler: DiffusionSampler, recorders: tuple[Recorder, ...]) -> None:
    """Does every step run the queries that the recorders read?"""
    is_left_out = sampler.cache != "prefix" and sampler.window(run.config) < sampler.response_length
    if is_left_out and any(recorder.of_last_query for recorder in recorders):
        raise JaxsinkError(
            f"with cache={sampler.cache!r} most steps run one block, without the last query, so records of that query, such "
            "as last_row(), cannot be kept; record received(), or choose cache='prefix'."
        )


def head_queries(
    config: ModelConfig, position: Int[Array, "B W"], first: Int[Array, "B 1"] | int, count: int
) -> Int[Array, "B W"]:
    """The queries that predict these positions. Dream's logits for a position stand one to its left."""
    if config.shift_logits:
        position = jnp.maximum(position - 1, first)
    return jnp.clip(position, 0, count - 1)
