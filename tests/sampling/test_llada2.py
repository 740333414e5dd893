"""LLaDA2's sampler: block decoding with thresholds, and 2.1's editing, in which a position is committed more than once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.reference.samplers import Slow, eyes, slow_llada2
from support.sampling import PROMPTS, model_of

import jaxsink
from jaxsink import JaxsinkError, LLaDA2Sampler
from jaxsink.sampling.record_file import RecordFile, read_record
from jaxsink.sinks.tokens import canvases

pytestmark = pytest.mark.usefixtures("quick_compilation")

EDITS = LLaDA2Sampler(9, 4, threshold=0.2, editing_threshold=0.1, max_post_steps=3)
SETTINGS = {
    "threshold": LLaDA2Sampler(9, 4, 4, threshold=0.15),
    "quota": LLaDA2Sampler(9, 4, 3, threshold=None),
    "few tokens, many steps": LLaDA2Sampler(3, 4, 32, threshold=0.99),
    "other blocks than the model's": LLaDA2Sampler(9, 6, 6, threshold=0.15),
    "early stop": LLaDA2Sampler(9, 4, 4, threshold=0.15, eos_early_stop=True),
    "editing": EDITS,
    "editing, two at a time": replace(EDITS, num_to_transfer=2, threshold=0.99),
    "editing, one more look": replace(EDITS, max_post_steps=1),
    "editing, no more look": replace(EDITS, max_post_steps=0),
    "editing that never happens": replace(EDITS, editing_threshold=1.0),
    "editing, eos": replace(EDITS, eos_early_stop=True),
}


def slowly(model: jaxsink.Model, prompt: list[int], sampler: LLaDA2Sampler) -> Slow:
    seen_as = model.with_config(model.config.replace(block_length=sampler.block_length))
    return slow_llada2(eyes(seen_as), model.config, prompt, sampler)


LEAN = "llada2, one kv head, one expert"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "name"), [*(("llada2", name) for name in SETTINGS), (LEAN, "quota"), (LEAN, "editing")]
)
def test_step_by_step(family: str, name: str) -> None:
    """Sequences of different lengths, padded on the left; what the model saw at every step is known too."""
    model, sampler = model_of(family), SETTINGS[name]
    prompts = [PROMPTS[0][:3].tolist(), PROMPTS[1].tolist()]
    out = jaxsink.generate(model, prompts, sampler)
    assert (out.commits is not None) == sampler.edits
    edited = 0
    for row, prompt in enumerate(prompts):
        expected, real = slowly(model, prompt, sampler), np.asarray(out.mask)[row]
        assert np.asarray(out.tokens)[row, real].tolist() == expected.tokens
        assert np.asarray(out.committed_at)[row, real].tolist() == expected.at
        assert out.steps[row] == len(expected.seen)
        for step, canvas in enumerate(expected.seen):
            assert out.canvas(step, 80)[row, real].tolist() == canvas, step
        times = np.asarray([*expected.seen, expected.tokens])
        changes = (np.diff(times, axis=0) != 0).sum(axis=0)
        assert out.times_committed()[row, real].tolist() == changes.tolist()
        edited += int((changes > 1).sum())
    assert (edited > 0) == (sampler.edits and sampler.editing_threshold != 1.0)
    assert not (np.asarray(out.tokens)[np.asarray(out.mask)] == 80).any()


def test_every_commit_is_kept() -> None:
    out = jaxsink.generate(model_of("llada2"), PROMPTS, EDITS, record=jaxsink.record.received(), every=2)
    commits, tokens, at = (np.asarray(x) for x in (out.commits, out.tokens, out.committed_at))
    assert commits.shape == (EDITS.total_steps(10), 2, 16) and commits.dtype == np.int32
    written = commits >= 0
    assert not written[:, :, :6].any()
    assert (written.argmax(axis=0)[:, 6:] == at[:, 6:]).all()
    last = len(commits) - 1 - written[::-1].argmax(axis=0)
    assert (np.take_along_axis(commits, last[None], axis=0)[0][:, 6:] == tokens[:, 6:]).all()
    assert not written[np.asarray(out.steps).max() :].any()
    seen = canvases(tokens, at, out.recorded_steps, 80, commits)
    for canvas, step in zip(np.asarray(seen), np.asarray(out.recorded_steps), strict=True):
        np.testing.assert_array_equal(canvas, out.canvas(int(step), 80))


def test_streamed_and_stored_commits_are_the_same(tmp_path: Any) -> None:
    model, recorder = model_of("llada2"), {"received": jaxsink.record.received()}
    whole = jaxsink.generate(model, PROMPTS, EDITS, record=recorder)
    parts = jaxsink.generate(model, PROMPTS, EDITS, record=recorder, stream=3)
    np.testing.assert_array_equal(parts.commits, whole.commits)
    file = RecordFile(tmp_path / "record.npz", {}, 1, 0, 0)
    file.write(whole.on_host(), {}, None)
    back, _, _ = read_record(file.path)
    np.testing.assert_array_equal(back.commits, whole.commits)
    assert set(back.record) == {"received"}
    assert back.appending == whole.appending


def love_mask(step: Any, logits: Any, position: Any) -> Any:
    return logits.at[..., 80].add(100.0)


@pytest.mark.parametrize("sampler", [SETTINGS["threshold"], EDITS])
def test_a_model_that_predicts_the_mask_still_ends(sampler: LLaDA2Sampler) -> None:
    """The original of 2.1 goes on for ever; here positions are filled from left to right, and nothing is edited."""
    out = jaxsink.generate(model_of("llada2"), PROMPTS, sampler, edit_logits=love_mask)
    at = np.asarray(out.committed_at)[:, 6:]
    assert not (np.asarray(out.tokens) == 80).any() and (np.diff(at, axis=1) > 0).all()
    assert (out.times_committed()[:, 6:] == 1).all()


def test_masks_in_the_prompt() -> None:
    prompts = PROMPTS.copy()
    prompts[0, [1, 4]] = 80
    out = jaxsink.generate(model_of("llada2"), prompts, SETTINGS["threshold"])
    assert not (np.asarray(out.tokens) == 80).any()
    with pytest.raises(JaxsinkError, match="LLaDA2Sampler cannot fill them with these settings"):
        jaxsink.generate(model_of("llada2"), prompts, EDITS)


@pytest.mark.parametrize(
    ("family", "sampler", "words"),
    [
        ("llada", LLaDA2Sampler(8), "block-causal"),
        ("llada2", LLaDA2Sampler(0), "must be a whole number from 1"),
        ("llada2", LLaDA2Sampler(8, 4, num_to_transfer=5), "num_to_transfer"),
        ("llada2", LLaDA2Sampler(8, 4, max_post_steps=-1), "max_post_steps"),
        ("llada2", LLaDA2Sampler(8, 4, threshold=1.5), "threshold"),
        ("llada2", LLaDA2Sampler(8, 4, editing_threshold=-0.5), "editing_threshold"),
    ],
)
def test_bad_settings_are_named(family: str, sampler: LLaDA2Sampler, words: str) -> None:
    with pytest.raises(JaxsinkError, match=words):
        jaxsink.generate(model_of(family), PROMPTS, sampler)
