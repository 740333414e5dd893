"""Fast-dLLM v2's sampler against a slow one: seeds, small blocks, prompts that end anywhere in a block, ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.reference.samplers import BlockCache, eyes, slow_fast_dllm
from support.sampling import model_of

import jaxsink
from jaxsink import DropPositions, FastDLLMv2Sampler, JaxsinkError
from jaxsink.recording import recorders as record

pytestmark = pytest.mark.usefixtures("quick_compilation")

LENGTHS = (1, 3, 4, 6, 8)  # less than a block of four, exactly one or two, and in between
PROMPTS = [np.random.default_rng(n).integers(4, 60, n).tolist() for n in LENGTHS]
FREE = FastDLLMv2Sampler(9, 4, 2, threshold=0.2, stop_at_eos=False)


def seeing(block: int, family: str = "fast_dllm") -> jaxsink.Model:
    """The model, trained with blocks of four, under blocks of another size."""
    model = model_of(family)
    config = model.config.replace(block_length=block)
    return jax.tree.unflatten(jax.tree.structure(jaxsink.abstract(config)), jax.tree.leaves(model))


def agree(sampler: FastDLLMv2Sampler, family: str = "fast_dllm", **more: Any) -> jaxsink.Generation:
    """Prompts of all lengths in one batch, each as the slow sampler writes it alone."""
    out = jaxsink.generate(model_of(family), PROMPTS, sampler, **more)
    see = eyes(seeing(sampler.block_size, family))
    for row, prompt in enumerate(PROMPTS):
        expected = slow_fast_dllm(see, model_of(family).config, prompt, sampler)
        real = np.asarray(out.mask)[row]
        assert np.asarray(out.tokens)[row, real].tolist() == expected.tokens
        assert np.asarray(out.committed_at)[row, real].tolist() == expected.at
    return out


SETTINGS = {
    "small blocks": FREE,
    "whole blocks, one by one": replace(FREE, small_block_size=4, threshold=1.0),
    "everything at once": replace(FREE, threshold=0.0),
    "blocks of another size than the model's": replace(FREE, block_size=6, small_block_size=3, threshold=0.12),
    "the whole response in a block": replace(FREE, block_size=32, small_block_size=8, threshold=0.12),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_step_by_step(name: str) -> None:
    sampler = SETTINGS[name]
    out = agree(sampler)
    size, written = sampler.block_size, np.asarray(out.mask)[:, 8:].sum(axis=1)
    assert ((written >= 9) & (written < 9 + size)).all()
    assert ((np.array(LENGTHS) + written) % size == 1 % size).all()  # whole blocks, and the seed after the last
    at = np.asarray(out.committed_at)
    together = [np.bincount(row[row >= 0]).max() for row in at]
    assert (max(together) > 1) == (sampler.threshold < 1)
    assert max(together) <= sampler.small_block_size
    if sampler.threshold < 0.3:
        assert min(np.asarray(out.steps)) < max(written)


def test_one_kv_head_step_by_step() -> None:
    agree(SETTINGS["small blocks"], "fast_dllm, one kv head")


def test_a_prompt_of_one_block_is_shown_to_the_model() -> None:
    """The original skips it, so that every such prompt gets the same answer."""
    model = model_of("fast_dllm")
    answers = [
        jaxsink.generate(model, [np.random.default_rng(n).integers(4, 60, 4).tolist()], FREE).response for n in (1, 2)
    ]
    assert (np.asarray(answers[0]) != np.asarray(answers[1])).any()


def test_padding_to_a_common_length_changes_nothing() -> None:
    plain, padded = agree(FREE), agree(FREE, pad_to=8)
    assert padded.tokens.shape[1] == 8 + 9 + 3 and plain.tokens.shape[1] < 8 + 9 + 4


def likes_eos(step: Any, logits: Any, position: Any) -> Any:
    """Surest of eos at the second token of the third block."""
    return logits.at[..., 57].add(jnp.where(position == 9, 100.0, -100.0))


def test_the_end_waits_for_the_tokens_before_it_and_for_nothing_else() -> None:
    """Committed first of its small block; what comes before it is filled, what comes after it is eos at once."""
    model = model_of("fast_dllm")
    sampler = FastDLLMv2Sampler(12, 4, 4, threshold=0.999)
    prompts = np.array([PROMPTS[3], PROMPTS[3][::-1]])
    out = jaxsink.generate(model, prompts, sampler, edit_logits=likes_eos)
    free = jaxsink.generate(model, prompts, replace(sampler, stop_at_eos=False), edit_logits=likes_eos)
    tokens, at = np.asarray(out.tokens), np.asarray(out.committed_at)
    np.testing.assert_array_equal(tokens[:, :10], np.asarray(free.tokens)[:, :10])
    assert (tokens[:, 9:] == 57).all() and (tokens[:, 6:9] != 57).all()
    assert (at[:, 9] == at[:, 8] + 1).all() and (at[:, 10:] == at[:, 9:10]).all()  # the seed, the end, nothing more
    assert (np.asarray(out.steps) == at[:, 9] + 1).all() and (np.asarray(free.steps) > np.asarray(out.steps)).all()


def test_ends_step_by_step() -> None:
    out, free = agree(replace(FREE, stop_at_eos=True)), agree(FREE)
    ended = np.asarray(out.steps) < np.asarray(free.steps)
    assert ended.any() and not ended.all()


@pytest.mark.parametrize("threshold", [0.0, 0.9])
def test_the_mask_is_never_committed(threshold: float) -> None:
    """The original never ends here."""
    model, sampler = model_of("fast_dllm"), replace(FREE, small_block_size=4, threshold=threshold)
    out = jaxsink.generate(model, PROMPTS, sampler, edit_logits=lambda step, logits, at: logits.at[..., 80].add(100.0))
    assert not (np.asarray(out.tokens) == 80).any()
    for row, length in enumerate(LENGTHS):
        at = np.asarray(out.committed_at)[row, np.asarray(out.mask)[row]]
        assert at.tolist() == [-1] * length + list(range(len(at) - length))  # all wait: from left to right


@pytest.mark.parametrize(
    ("family", "sampler", "words"),
    [
        ("dream", FREE, "not block-causal"),
        ("sdar", FREE, "shifted"),
        ("fast_dllm", replace(FREE, small_block_size=3), "multiple of small_block_size 3"),
        ("fast_dllm", replace(FREE, max_new_tokens=0), "must be a whole number from 1"),
        ("fast_dllm", replace(FREE, threshold=1.5), "threshold"),
    ],
)
def test_bad_settings_are_named(family: str, sampler: FastDLLMv2Sampler, words: str) -> None:
    with pytest.raises(JaxsinkError, match=words):
        jaxsink.generate(model_of(family), PROMPTS, sampler)


CACHED = {
    "small blocks": replace(FREE, max_new_tokens=14, block_size=8, small_block_size=4, threshold=0.12),
    "one token at a time": replace(FREE, block_size=6, small_block_size=3, threshold=1.0),
    "ends": replace(FREE, max_new_tokens=14, block_size=8, small_block_size=4, threshold=0.12, stop_at_eos=True),
}


@pytest.mark.parametrize("unrolled", [False, True])
@pytest.mark.parametrize("name", CACHED)
def test_the_block_cache_is_that_of_fast_dllm(name: str, unrolled: bool) -> None:
    """Tokens, steps and statistics of prompts that stand at different places of their blocks, each as it is alone."""
    sampler = replace(CACHED[name], use_block_cache=True)
    model, seen = model_of("fast_dllm"), seeing(sampler.block_size)
    out = jaxsink.generate(model.unrolled() if unrolled else model, PROMPTS, sampler, record=record.received())
    assert out.approximate == "block"
    sizes = set()
    for row, prompt in enumerate(PROMPTS):
        real = np.asarray(out.mask)[row]
        cache = BlockCache(seen, prompt, sampler, int(real.sum()))
        expected = slow_fast_dllm(eyes(seen), model.config, prompt, sampler, cache.look)
        assert np.asarray(out.tokens)[row, real].tolist() == expected.tokens
        assert np.asarray(out.committed_at)[row, real].tolist() == expected.at
        steps = len(cache.received)
        received = np.asarray(out.record)[:, :, row]
        np.testing.assert_allclose(received[:steps, ..., real], np.stack(cache.received), atol=2e-5)
        assert (received[steps:] == 0).all() and (received[..., ~real] == 0).all()
        sizes |= set(received[:steps, 0, 0].sum(axis=-1).round().astype(int).tolist())
    assert sizes == {sampler.block_size, sampler.small_block_size}


def test_the_block_cache_is_approximate_and_with_whole_blocks_exact() -> None:
    sampler = replace(FREE, max_new_tokens=20, block_size=8, small_block_size=8, threshold=0.12)
    exact, cached = (
        jaxsink.generate(model_of("fast_dllm"), PROMPTS, replace(sampler, use_block_cache=cache))
        for cache in (False, True)
    )
    np.testing.assert_array_equal(exact.tokens, cached.tokens)
    np.testing.assert_array_equal(exact.committed_at, cached.committed_at)
    parts = replace(sampler, small_block_size=4)
    exact, cached = (
        jaxsink.generate(model_of("fast_dllm"), PROMPTS, replace(parts, use_block_cache=cache))
        for cache in (False, True)
    )
    assert (np.asarray(exact.tokens) != np.asarray(cached.tokens)).any()


def test_hidden_keys_receive_nothing_with_the_block_cache() -> None:
    sampler = replace(CACHED["small blocks"], use_block_cache=True)
    model, hide = model_of("fast_dllm"), DropPositions((0,))
    out = jaxsink.generate(model, PROMPTS[2:], sampler, record=record.received(), intervene=hide)
    for row, first in enumerate(np.asarray(out.mask).argmax(axis=1)):
        assert (np.asarray(out.record)[1:, :, row, :, first] == 0).all()


@pytest.mark.parametrize(
    ("wanted", "words"), [(record.maps(), "summed over queries"), (record.last_row(), "last query")]
)
def test_records_that_need_all_queries_are_refused(wanted: Any, words: str) -> None:
    with pytest.raises(JaxsinkError, match=words):
        jaxsink.generate(model_of("fast_dllm"), PROMPTS, replace(FREE, use_block_cache=True), record=wanted)
    with pytest.raises(JaxsinkError, match="cannot be filled with a cache"):
        jaxsink.generate(model_of("fast_dllm"), [[5, 80, 6]], replace(FREE, use_block_cache=True))
