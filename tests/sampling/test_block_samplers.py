"""Nemotron's and dllm's samplers against slow ones that write out who sees whom, and the rules that always hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively
from support.reference.block_samplers import quotas, slow_dllm, slow_nemotron, slow_speculation
from support.reference.samplers import eyes, slow_fast_dllm, slow_llada2, slow_sdar
from support.sampling import PROMPTS, model_of

import jaxsink
from jaxsink import (
    AncestralSampler,
    ARSampler,
    BD3LMSampler,
    FastDLLMv2Sampler,
    JaxsinkError,
    LLaDA2Sampler,
    MDLMSampler,
    NemotronSampler,
    SDARSampler,
    SpeculativeSampler,
    record,
    sinks,
)
from jaxsink.sampling.options import with_options
from jaxsink.sampling.schedules import linear_quotas
from jaxsink.zoo.recommend import model_sampler

pytestmark = pytest.mark.usefixtures("quick_compilation")

RAGGED = 4  # tokens of the shorter prompt
ENDING = lively(FAMILIES["nemotron"].replace(eos_ids=tuple(range(10, 16))), seed=3)
NEMOTRON = {
    "quota": (model_of("nemotron"), NemotronSampler(12, 4)),
    "threshold": (model_of("nemotron"), NemotronSampler(12, 6, 0.1)),
    "both ways": (model_of("nemotron"), NemotronSampler(12, 4, causal_context=False)),
    "both ways, threshold": (model_of("nemotron"), NemotronSampler(12, 6, 0.25, causal_context=False)),
    "seeds alone": (model_of("nemotron"), NemotronSampler(6, 1)),
    "one kv head": (model_of("nemotron, one kv head"), NemotronSampler(6, 3, 0.08)),
    "eos": (ENDING, NemotronSampler(16, 4)),
    "eos, threshold": (ENDING, NemotronSampler(16, 8, 0.25)),
}
SPECULATION = {
    "one pass": (model_of("nemotron"), SpeculativeSampler(10, 4)),
    "threshold": (model_of("nemotron"), SpeculativeSampler(10, 5, 0.25)),
    "no draft": (model_of("nemotron"), SpeculativeSampler(6, 1)),
    "one kv head": (model_of("nemotron, one kv head"), SpeculativeSampler(5, 3)),
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
EDITS = LLaDA2Sampler(8, 4, threshold=0.2, editing_threshold=0.1, max_post_steps=3)
SMALL_BLOCKS = FastDLLMv2Sampler(8, 4, 2, 0.2)
# family, sampler, and what is there in the first step of a prompt of six: it, and a block or none without a seed
GROWING: dict[str, tuple[str, Any, int]] = {
    "nemotron": ("nemotron", NemotronSampler(8, 4), 6),
    "speculation": ("nemotron", SpeculativeSampler(8, 4), 6),
    "bd3lm": ("a2d", BD3LMSampler(8, 8, 4), 10),
    "bd3lm, first hitting": ("bd3lm", AncestralSampler(8), 8),
    "sdar": ("sdar", SDARSampler(8, threshold=0.15), 8),
    "llada2": ("llada2", LLaDA2Sampler(8, 4, threshold=0.15), 8),
    "llada2, blocks of three": ("llada2", LLaDA2Sampler(8, 3, threshold=0.15), 9),
    "llada2, editing": ("llada2", EDITS, 8),
    "fast_dllm": ("fast_dllm", SMALL_BLOCKS, 8),
    "fast_dllm, blocks of six": ("fast_dllm", FastDLLMv2Sampler(8, 6, 2, 0.2), 6),
}
CACHED = ("fast_dllm", replace(SMALL_BLOCKS, use_block_cache=True), 8)
SLOW: dict[str, tuple[str, Any, Any]] = {
    "sdar": ("sdar", SDARSampler(9, threshold=0.15), slow_sdar),
    "llada2": ("llada2", LLaDA2Sampler(9, 6, 6, threshold=0.15), slow_llada2),
    "llada2, early stop": ("llada2", LLaDA2Sampler(9, 4, 4, threshold=0.15, eos_early_stop=True), slow_llada2),
    "llada2, editing": ("llada2", EDITS, slow_llada2),
    "llada2, editing, one more look": ("llada2", replace(EDITS, max_post_steps=1), slow_llada2),
    "fast_dllm": ("fast_dllm", SMALL_BLOCKS, slow_fast_dllm),
    "fast_dllm, one by one": ("fast_dllm", FastDLLMv2Sampler(9, 6, 3, 1.0, stop_at_eos=False), slow_fast_dllm),
}


def agree(model: jaxsink.Model, slow: Any, sampler: Any) -> jaxsink.Generation:
    """The first sequence is padded on the left."""
    prompts = [PROMPTS[0][:RAGGED].tolist(), PROMPTS[1].tolist()]
    out = jaxsink.generate(model, prompts, sampler)
    for row, prompt in enumerate(prompts):
        expected, real = slow(model, prompt, sampler), np.asarray(out.mask)[row]
        assert np.asarray(out.tokens)[row, real].tolist() == expected.tokens
        assert np.asarray(out.committed_at)[row, real].tolist() == expected.at
    return out


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "name"), [*(("a2d", name) for name in DLLM), ("a2d, biases", "append"), ("a2d, biases", "guidance")]
)
def test_dllm_step_by_step(family: str, name: str) -> None:
    agree(model_of(family), slow_dllm, DLLM[name])


def test_schedule() -> None:
    """All masks are committed, in steps that commit some."""
    for steps in (1, 3, 4, 7, 16):
        table = linear_quotas(24, steps)
        assert (table.sum(axis=1) == np.arange(25)).all()
        for masks in range(25):
            row = table[masks][table[masks] > 0]
            assert (table[masks][len(row) :] == 0).all()
            assert row.tolist() == quotas(masks, steps)


@pytest.mark.parametrize("name", GROWING)
def test_only_what_exists_is_recorded(name: str) -> None:
    """Later blocks are not there yet: they receive nothing, and no query of theirs counts."""
    family, sampler, there = GROWING[name]
    out = jaxsink.generate(model_of(family), PROMPTS, sampler, record=record.received())
    received = np.asarray(out.record)  # [T,L,B,H,S]
    total = received.sum(axis=-1)
    np.testing.assert_allclose(total[0], there, rtol=1e-5)
    assert (received[0, ..., there:] == 0).all()
    assert (received[: int(out.steps.min()), ..., 0] > 0).all()
    for row, steps in enumerate(np.asarray(out.steps)):  # and a generation knows what was there in each step
        real = out.real_at()[:steps, row]
        np.testing.assert_array_equal((received[:steps, :, row] > 0).all(axis=(1, 2)), real)
        np.testing.assert_allclose(
            total[:steps, :, row], np.broadcast_to(real.sum(-1)[:, None, None], total[:steps, :, row].shape), rtol=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", [*GROWING, "fast_dllm, block cache"])
@pytest.mark.parametrize(("rows", "select"), [(None, "random"), ("decoded", "random"), (None, "bottom")])
def test_hidden_keys_are_keys_that_were_there(name: str, rows: Any, select: Any) -> None:
    """An intervention chooses among the keys of the step before."""
    family, sampler, _ = GROWING.get(name, CACHED)
    model, wanted = model_of(family), {"received": record.received(), "dropped": record.dropped()}
    policy = sinks.MaskSinks(k=1, select=select, rows=rows)
    masked = jaxsink.generate(model, PROMPTS, sampler, record=wanted, intervene=policy)
    dropped, there = np.asarray(masked.record["dropped"]), masked.real_at()
    for row, steps in enumerate(np.asarray(masked.steps)):
        assert (dropped[1:steps, :, row].sum(axis=-1) == 1).all()
        assert not (dropped[1:steps, :, row] & ~there[: steps - 1, None, row, None]).any()
    if sampler.cache is not None:  # its records are of some of the queries
        return
    plain = jaxsink.generate(model, PROMPTS, sampler, record=record.received())
    before, after = np.asarray(plain.record)[1], np.asarray(masked.record["received"])[1]
    first = np.asarray(plain.record)[0] > 0
    lost = (after < before - 1e-6) & ~first
    if rows is None:
        assert ((after == 0) & first).sum() >= first.shape[0]  # one key of each head is gone
        assert not ((after == 0) & (before > 0) & ~first).any()
    assert lost.shape == before.shape


@pytest.mark.parametrize("name", SLOW)
def test_records_are_those_of_the_canvas_that_the_original_runs(name: str) -> None:
    """It ends with the block, wherever the prompts of a batch end in theirs."""
    family, sampler, slow = SLOW[name]
    model, prompts = model_of(family), [PROMPTS[0][:RAGGED].tolist(), PROMPTS[1].tolist(), PROMPTS[0][:1].tolist()]
    model = model.with_config(sampler.run_config(model.config))
    out = jaxsink.generate(model_of(family), prompts, sampler, record=record.received())
    for row, prompt in enumerate(prompts):
        expected, real = slow(eyes(model), model.config, prompt, sampler), np.asarray(out.mask)[row]
        received, there = np.asarray(out.record)[:, :, row][..., real], out.real_at()[:, row, real]
        assert len(expected.ends) == out.steps[row]
        assert len(set(expected.ends)) > 1 or len(prompt) == 1
        for step, end in enumerate(expected.ends):
            cut = out.canvas(step, 80)[row, real][None, :end]
            alone = np.asarray(jaxsink.forward(model, cut, record=record.received()).record)
            np.testing.assert_allclose(received[step, ..., :end], alone[:, 0], atol=1e-5)
            assert (received[step, ..., end:] == 0).all()
            assert there[step].tolist() == [True] * end + [False] * (real.sum() - end)


@pytest.mark.parametrize("name", ["sdar", "llada2", "fast_dllm", "bd3lm, first hitting"])
def test_a_prompt_is_there_whichever_of_its_masks_are_filled_first(name: str) -> None:
    family, sampler, _ = GROWING[name]
    prompts = PROMPTS.copy()
    prompts[0, [0, 3]] = 80
    out = jaxsink.generate(model_of(family), prompts, sampler, record=record.received())
    real, steps = out.real_at()[:, 0], out.steps[0]
    total = np.asarray(out.record)[:steps, :, 0].sum(axis=-1)
    assert real[0].tolist() == [True] * 6 + [False] * (real.shape[1] - 6)
    np.testing.assert_allclose(total, np.broadcast_to(real[:steps].sum(-1)[:, None, None], total.shape), rtol=1e-5)


REFUSED = [
    ("nemotron", NemotronSampler(10, 4), "multiple of block_length"),
    ("nemotron", NemotronSampler(8, 4, 1.5), "threshold must be a finite number from 0 to 1"),
    ("dream", NemotronSampler(8, 4), "shifted logits"),
    ("sdar", SpeculativeSampler(8, 4), "block_causal attention"),
    ("sdar", BD3LMSampler(8, 8, 4), "with_attention"),
    ("a2d", MDLMSampler(8, 8, 4, suppress_tokens=(89,)), "outside the vocabulary"),
    ("a2d", MDLMSampler(8, 8, 4, remasking="left"), "remasking must be one of"),  # pyright: ignore[reportArgumentType]
    ("a2d", MDLMSampler(0), "must be a whole number from 1"),
    ("a2d", ARSampler(8), "an a2d_qwen3 model is not autoregressive"),
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
