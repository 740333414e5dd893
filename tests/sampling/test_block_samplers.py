"""Nemotron's and dllm's samplers against slow ones that write out who sees whom, and the rules that always hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively
from support.reference.block_samplers import quotas, slow_dllm, slow_nemotron, slow_speculation
from support.sampling import PROMPTS, model_of

import jaxsink
from jaxsink import (
    ARSampler,
    BD3LMSampler,
    JaxsinkError,
    MDLMSampler,
    NemotronSampler,
    SpeculativeSampler,
    record,
    sinks,
)
from jaxsink.sampling.options import with_options
from jaxsink.sampling.schedules import linear_quotas
from jaxsink.zoo.recommend import model_sampler

pytestmark = pytest.mark.usefixtures("quick_compilation")

ENDING = lively(FAMILIES["nemotron"].replace(eos_ids=tuple(range(10, 16))), seed=3)
NEMOTRON = {
    "quota": (model_of("nemotron"), NemotronSampler(12, 4)),
    "threshold": (model_of("nemotron"), NemotronSampler(12, 6, 0.1)),
    "both ways": (model_of("nemotron"), NemotronSampler(12, 4, causal_context=False)),
    "both ways, threshold": (model_of("nemotron"), NemotronSampler(12, 6, 0.25, causal_context=False)),
    "seeds alone": (model_of("nemotron"), NemotronSampler(6, 1)),
    "eos": (ENDING, NemotronSampler(16, 4)),
    "eos, threshold": (ENDING, NemotronSampler(16, 8, 0.25)),
}
SPECULATION = {
    "one pass": (model_of("nemotron"), SpeculativeSampler(10, 4)),
    "threshold": (model_of("nemotron"), SpeculativeSampler(10, 5, 0.25)),
    "no draft": (model_of("nemotron"), SpeculativeSampler(6, 1)),
    "eos": (ENDING, SpeculativeSampler(16, 4)),
}
DLLM = {
    "blocks, remainder": MDLMSampler(11, 7, 4),
    "guidance": MDLMSampler(8, 4, 8, 0.7),
    "shift, suppressed": MDLMSampler(8, 8, 4, right_shift_logits=True, suppress_tokens=(7, 30)),
    "append": BD3LMSampler(11, 7, 4),
    "append, guidance, shift": BD3LMSampler(8, 4, 4, 0.7, True),
    "append, suppressed": BD3LMSampler(8, 4, 8, suppress_tokens=[60, 61]),  # pyright: ignore[reportArgumentType]
}


def agree(model: jaxsink.Model, slow: Any, sampler: Any) -> jaxsink.Generation:
    out = jaxsink.generate(model, PROMPTS, sampler)
    for row, prompt in enumerate(PROMPTS):
        expected = slow(model, prompt, sampler)
        assert np.asarray(out.tokens)[row].tolist() == expected.tokens
        assert np.asarray(out.committed_at)[row].tolist() == expected.at
    return out


@pytest.mark.parametrize("name", NEMOTRON)
def test_nemotron_step_by_step(name: str) -> None:
    model, sampler = NEMOTRON[name]
    out = agree(model, slow_nemotron, sampler)
    at = np.asarray(out.committed_at)[:, 6:]
    if sampler.threshold is not None:
        counts = [np.bincount(row).max() for row in at]
        assert max(counts) > 1
    if model is ENDING:
        assert len(set(np.asarray(out.steps).tolist())) > 1


@pytest.mark.parametrize("name", SPECULATION)
def test_speculation_step_by_step(name: str) -> None:
    model, sampler = SPECULATION[name]
    agree(model, slow_speculation, sampler)


@pytest.mark.parametrize("name", SPECULATION)
def test_speculation_writes_what_the_causal_model_writes(name: str) -> None:
    """Whatever the drafts are; and a model that drafts well needs fewer steps."""
    model, sampler = SPECULATION[name]
    out = jaxsink.generate(model, PROMPTS, sampler)
    alone = jaxsink.generate(model.with_attention("causal"), PROMPTS, ARSampler(sampler.max_new_tokens))
    written = np.asarray(alone.committed_at) >= 0
    np.testing.assert_array_equal(np.asarray(out.tokens)[written], np.asarray(alone.tokens)[written])


def test_a_good_draft_is_kept_as_a_whole() -> None:
    """Logits that name one token per position, causal or not: four tokens a round, two steps each."""

    def known(step: Any, logits: Any, position: Any) -> Any:
        return 0 * logits + 50.0 * (np.arange(logits.shape[-1]) == (position[..., None] % 40 + 5))

    sampler = SpeculativeSampler(13, 4)
    out = jaxsink.generate(model_of("nemotron"), PROMPTS, sampler, edit_logits=known)
    np.testing.assert_array_equal(out.response, np.broadcast_to(np.arange(6, 19) % 40 + 5, (2, 13)))
    assert np.asarray(out.steps).tolist() == [7, 7]
    assert np.asarray(out.committed_at)[0, 6:].tolist() == [0, *[2] * 4, *[4] * 4, *[6] * 4]


@pytest.mark.parametrize("name", DLLM)
def test_dllm_step_by_step(name: str) -> None:
    agree(model_of("a2d"), slow_dllm, DLLM[name])


def test_schedule() -> None:
    """All masks are committed, in steps that commit some."""
    for steps in (1, 3, 4, 7, 16):
        table = linear_quotas(24, steps)
        assert (table.sum(axis=1) == np.arange(25)).all()
        for masks in range(25):
            row = table[masks][table[masks] > 0]
            assert (table[masks][len(row) :] == 0).all()
            assert row.tolist() == quotas(masks, steps)


@pytest.mark.parametrize("sampler", [NemotronSampler(8, 4), SpeculativeSampler(8, 4), BD3LMSampler(8, 8, 4)])
def test_only_what_exists_is_recorded(sampler: Any) -> None:
    """Later blocks are not there yet: they receive nothing, and no query of theirs counts."""
    model = model_of("a2d" if isinstance(sampler, BD3LMSampler) else "nemotron")
    out = jaxsink.generate(model, PROMPTS, sampler, record=record.received())
    received = np.asarray(out.record)  # [T,L,B,H,S]
    total = received.sum(axis=-1)
    there = 10 if isinstance(sampler, BD3LMSampler) else 6  # the first step: prompt, and a block without a seed
    np.testing.assert_allclose(total[0], there, rtol=1e-5)
    assert (received[0, ..., there:] == 0).all()
    assert (received[: int(out.steps.min()), ..., 0] > 0).all()
    for row, steps in enumerate(np.asarray(out.steps)):  # and a generation knows what was there in each step
        real = out.real_at()[:steps, row]
        np.testing.assert_array_equal((received[:steps, :, row] > 0).all(axis=(1, 2)), real)
        np.testing.assert_allclose(
            total[:steps, :, row], np.broadcast_to(real.sum(-1)[:, None, None], total[:steps, :, row].shape), rtol=1e-5
        )


@pytest.mark.parametrize("sampler", [NemotronSampler(8, 4), SpeculativeSampler(8, 4), BD3LMSampler(8, 8, 4)])
@pytest.mark.parametrize("rows", [None, "decoded"])
def test_random_keys_are_keys_that_were_there(sampler: Any, rows: Any) -> None:
    """An intervention chooses among the keys of the step before."""
    model = model_of("a2d" if isinstance(sampler, BD3LMSampler) else "nemotron")
    seen = record.received()
    plain = jaxsink.generate(model, PROMPTS, sampler, record=seen)
    policy = sinks.MaskSinks(k=1, select="random", rows=rows)
    masked = jaxsink.generate(model, PROMPTS, sampler, record=seen, intervene=policy)
    before, after = np.asarray(plain.record)[1], np.asarray(masked.record)[1]
    first = np.asarray(plain.record)[0] > 0
    lost = (after < before - 1e-6) & ~first
    if rows is None:
        assert ((after == 0) & first).sum() >= first.shape[0]  # one key of each head is gone
        assert not ((after == 0) & (before > 0) & ~first).any()
    assert lost.shape == before.shape


REFUSED = [
    ("nemotron", NemotronSampler(10, 4), "multiple of block_length"),
    ("nemotron", NemotronSampler(8, 4, 1.5), "threshold must be a finite number from 0 to 1"),
    ("dream", NemotronSampler(8, 4), "shifted logits"),
    ("sdar", SpeculativeSampler(8, 4), "block_causal attention"),
    ("sdar", BD3LMSampler(8, 8, 4), "with_attention"),
    ("a2d", MDLMSampler(8, 8, 4, suppress_tokens=(89,)), "outside the vocabulary"),
    ("a2d", MDLMSampler(8, 8, 4, remasking="left"), "remasking must be one of"),  # pyright: ignore[reportArgumentType]
    ("a2d", MDLMSampler(0), "must be a whole number from 1"),
]


@pytest.mark.parametrize(("family", "sampler", "words"), REFUSED)
def test_wrong_settings(family: str, sampler: Any, words: str) -> None:
    with pytest.raises(JaxsinkError, match=words):
        jaxsink.generate(model_of(family), PROMPTS, sampler)


@pytest.mark.parametrize("sampler", [NemotronSampler(8, 4), SpeculativeSampler(8, 4), BD3LMSampler(8, 8, 4)])
def test_masks_in_the_prompt_are_refused_by_those_that_append(sampler: Any) -> None:
    model: Any = model_of("a2d" if isinstance(sampler, BD3LMSampler) else "nemotron")
    gap = np.where(np.arange(6) == 2, model.config.mask_id, PROMPTS)
    with pytest.raises(JaxsinkError, match="masks stand in the prompt"):
        jaxsink.generate(model, gap, sampler)
    filled = jaxsink.generate(model_of("a2d"), gap, MDLMSampler(8, 8, 4))
    assert not (np.asarray(filled.tokens) == model.config.mask_id).any()


def test_edited_drafts_are_refused() -> None:
    with pytest.raises(JaxsinkError, match="edit_tokens would change drafts"):
        jaxsink.generate(model_of("nemotron"), PROMPTS, SpeculativeSampler(8, 4), edit_tokens=lambda step, x: x)


def test_options_of_the_command_line() -> None:
    nemotron, a2d = model_of("nemotron"), model_of("a2d")
    base = model_sampler(nemotron)
    assert isinstance(base, NemotronSampler)
    made = with_options(nemotron.config, base, 24, block=8, threshold=0.5, causal_context=False)
    assert made == NemotronSampler(24, 8, 0.5, causal_context=False)
    assert with_options(nemotron.config, NemotronSampler(32, 32), 20) == NemotronSampler(20, 20)
    base = model_sampler(a2d)
    assert type(base) is MDLMSampler
    made = with_options(a2d.config, base, 24, block=8, cfg=0.5, steps=12, right_shift_logits=True)
    assert made == MDLMSampler(24, 12, 8, 0.5, True)
    assert isinstance(model_sampler(nemotron.with_attention("causal")), ARSampler)
