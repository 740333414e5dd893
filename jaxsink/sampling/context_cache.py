"""Keys and values of finished blocks, kept where nothing that comes later changes them: a step then runs one block.

Samplers that append their blocks say which tokens run (`DiffusionSampler.part`); texts, steps and statistics are those of
passes over all that exists. What recorders add up over queries is kept as well (whole_sums.py). Whatever could change the
past is run without this cache: interventions, edits, edited tokens, and records that need all queries at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int, PyTree

from jaxsink.nn.batch import Batch, Keys
from jaxsink.nn.cache import Cache
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.recorder import Recorder
from jaxsink.nn.transformer import Output
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.canvas import Looking, Part, Sight
from jaxsink.sampling.run import Decoding, RunSpec
from jaxsink.sampling.whole_sums import adds_up, reduced, unreduced

if TYPE_CHECKING:
    from jaxsink.sampling.diffusion import DiffusionCarry

Kept = tuple[Cache, tuple[PyTree, ...]]  # the cache, and the sums of queries that will not run again


def keeps_context(sampler: Sampler, config: ModelConfig, spec: RunSpec) -> bool:
    """Does a step of this run need its own block alone?"""
    plain = spec.intervene is None and spec.edit_tokens is None and not (spec.infill or spec.edits)
    return plain and sampler.keeps(config) and all(map(can_wait, spec.record.recorders))


def can_wait(recorder: Recorder) -> bool:
    """Values that add up and stay, and reductions that do not ask for more than the keys; of a caller's own nobody knows."""
    ours = all(getattr(one, "__module__", "").startswith("jaxsink.") for one in recorder.reductions)
    return adds_up(recorder) and recorder.settles and recorder.ending is None and ours


def with_prompt(run: Decoding, carry: DiffusionCarry, sight: Sight, part: Part) -> DiffusionCarry:
    """After a pass over the prompt. Of its tokens those before the part will not run again."""
    assert carry.cache is not None and carry.sums is not None
    batch = existing(run, carry, sight)
    before = jnp.arange(carry.tokens.shape[1]) < part.begin[:, None]
    batch = batch._replace(counted=batch.counted & before, queries=run.spec.prompt_length)
    out = passed(run, carry, batch, head=False)
    return carry.replace(cache=out.cache, sums=out.record)


def kept_pass(
    run: Decoding, carry: DiffusionCarry, at: Looking, recorders: tuple[Recorder, ...]
) -> tuple[DiffusionCarry, Float[Array, "B W V"], tuple[PyTree, ...]]:
    """(the carry with what ran, logits of the window, records)."""
    assert at.part is not None and at.sight is not None and carry.sums is not None
    part, size = at.part, at.window.position.shape[1]
    if part.is_final is None:
        carry = with_finished_block(run, carry, at, size)
    batch = stretch(run, carry, at.sight, part.begin, jnp.ones_like(carry.done), size)
    outputs = jnp.clip(at.readers - jnp.reshape(batch.start, (-1, 1)), 0, size - 1)
    out = passed(run, carry, batch._replace(outputs=outputs))
    assert out.logits is not None
    total = jax.tree.map(jnp.add, carry.sums, out.record)
    records = tuple(finished(r, value, batch.keys, carry) for r, value in zip(recorders, total, strict=False))
    sums = carry.sums if part.is_final is None else jax.tree.map(partial(where, part.is_final), total, carry.sums)
    return carry.replace(cache=out.cache, sums=sums), out.logits, records


def with_finished_block(run: Decoding, carry: DiffusionCarry, at: Looking, size: int) -> DiffusionCarry:
    """A block that begins needs the one before it as it became: where it has just been filled, it runs once more."""
    assert at.part is not None and at.sight is not None
    is_new = (at.window.block_step == 0) & (carry.block >= 0) & ~carry.done
    batch = stretch(run, carry, at.sight, at.part.begin - size, is_new, size)

    def again() -> Kept:
        out = passed(run, carry, batch, head=False)
        assert out.cache is not None and carry.sums is not None
        return out.cache, jax.tree.map(jnp.add, carry.sums, out.record)

    def as_it_is() -> Kept:
        assert carry.cache is not None and carry.sums is not None
        return carry.cache, carry.sums

    cache, sums = lax.cond(is_new.any(), again, as_it_is)
    return carry.replace(cache=cache, sums=sums)


def existing(run: Decoding, carry: DiffusionCarry, sight: Sight) -> Batch:
    """All tokens that exist, as a pass without a cache has them."""
    mask = run.inputs.mask & sight.mask
    batch = Batch.make(run.config, carry.tokens, mask, prompt=run.inputs.prompt, done=carry.done)
    return batch._replace(limit=sight.limit)


def stretch(
    run: Decoding, carry: DiffusionCarry, sight: Sight, begin: Int[Array, " B"], runs: Bool[Array, " B"], size: int
) -> Batch:
    """`size` tokens from `begin` on, of those sequences that run; of the others they only fill the number up."""
    length = carry.tokens.shape[1]
    position, first = jnp.arange(length), begin[:, None]
    inside = (position >= first) & (position < first + size) & runs[:, None]
    start = jnp.clip(begin, 0, length - size)
    return existing(run, carry, sight)._replace(runs=inside, start=start, queries=size)


def passed(run: Decoding, carry: DiffusionCarry, batch: Batch, head: bool = True) -> Output:
    """Through the model, on the cache; recorders add up."""
    adding = unreduced(run.spec.record.recorders)
    return run.model(batch, cache=carry.cache, recorders=adding, execution=run.spec.execution, head=head)


def finished(recorder: Recorder, total: PyTree, keys: Keys, carry: DiffusionCarry) -> PyTree:
    return reduced(recorder, total, keys, carry.done)


def where(chosen: Bool[Array, " B"], one: Array, other: Array) -> Array:
    """[L, B, …]: of these sequences the one, of the others the other."""
    return jnp.where(chosen.reshape(1, -1, *[1] * (one.ndim - 2)), one, other)
