"""The experiment "modes" where the answer is known: patterns by hand, flat weights, losses against a slow version."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jaxsink_experiments import beyond_modes as modes
from jaxsink_experiments.conduct import choose_experiments
from scipy.special import log_softmax
from support.made_gallery import made_gallery
from support.miniatures import random_subject

import jaxsink
from jaxsink.study import Study
from jaxsink.study.run import conduct

pytestmark = pytest.mark.usefixtures("quick_compilation")


def a2d_subject() -> Any:
    """A causal model that was adapted to fill masks in both directions, each at its own position, as dllm does it."""
    mask = random_subject("mini-llada").mask_id
    arm = random_subject("mini-llama", attention="bidirectional", mask_id=mask)
    return replace(arm, sampler=jaxsink.MDLMSampler(8, 8, 8))


def subject_of(name: str) -> Any:
    return a2d_subject() if name == "a2d" else random_subject(name)


def gallery_of(subject: Any, texts: int = 3, prompt: int = 5, response: int = 7) -> Any:
    """Texts of prompt and response, the first of them padded on the left."""
    length = prompt + response
    mask = np.ones((texts, length), bool)
    mask[0, :2] = False
    return made_gallery(
        np.ones((2, 1, texts, 1, length), np.float32),
        tokens=np.random.default_rng(0).integers(5, subject.model.config.vocab - 5, (texts, length)),
        mask=mask,
        committed_at=np.where(np.arange(length) >= prompt, 0, -1) * np.ones((texts, 1), int),
    )


def test_uniform_attention_by_hand() -> None:
    there = np.array([[False, True, True, True]])
    np.testing.assert_allclose(modes.uniform("bidirectional", there, 2), [[0, 1, 1, 1]])
    np.testing.assert_allclose(modes.uniform("causal", there, 2), [[0, 1 + 1 / 2 + 1 / 3, 1 / 2 + 1 / 3, 1 / 3]])
    np.testing.assert_allclose(modes.uniform("block_causal", there, 2), [[0, 1 / 2 + 1 / 2 + 1 / 3, 4 / 3, 1 / 3]])


@pytest.mark.parametrize("mode", modes.MODES)
def test_flat_weights_have_fair_scores_of_one(mode: Any) -> None:
    """Without attention to anything in particular, every real key has its fair share, under every pattern."""
    subject = random_subject("mini-llada")
    flat = replace(subject, model=jax.tree.map(lambda x: 0 * x, subject.model))
    gallery = gallery_of(flat)
    seen = modes.look(flat, gallery, mode)
    np.testing.assert_allclose(seen.fair, np.broadcast_to(gallery.mask[None, :, None], seen.fair.shape), atol=1e-5)
    assert not seen.sinks.any()


def test_moved_counts_heads_with_a_sink() -> None:
    def seen(top: list[int], has_sink: list[bool]) -> Any:
        return modes.Look(np.zeros(0), np.zeros(0), np.array(top)[None, None], np.array(has_sink)[None, None])

    before = seen([1, 2, 3, 4], [True, True, True, False])
    assert modes.moved(before, seen([1, 5, 0, 9], [False] * 4)) == pytest.approx([2 / 3])
    assert np.isnan(modes.moved(seen([1], [False]), seen([2], [True]))).all()


def test_asked_tokens_are_of_the_response_up_to_its_end() -> None:
    subject = random_subject("mini-llada")
    gallery = gallery_of(subject)
    gallery.tokens[1, 8] = 3
    wanted = modes.asked(gallery, (3,))
    assert not wanted[:, :5].any() and not wanted[1, 9:].any() and wanted.any(axis=1).all()
    assert 0.2 < wanted[[0, 2], 5:].mean() < 0.8
    np.testing.assert_array_equal(wanted, modes.asked(gallery, (3,)))


@pytest.mark.parametrize("name", ["mini-llada", "mini-llama", "a2d"])
@pytest.mark.parametrize("mode", modes.MODES)
def test_losses_against_one_text_at_a_time(name: str, mode: Any) -> None:
    subject = subject_of(name)
    gallery = gallery_of(subject)
    found = modes.losses(subject, gallery, mode)
    wanted = modes.asked(gallery, subject.model.config.eos_ids)
    mask_id = subject.model.config.mask_id
    mask_id = subject.model.config.pad_id if mask_id is None else mask_id
    block = modes.BLOCK if mode == "block_causal" else None
    slow: dict[str, list[float]] = {}
    for row, there in enumerate(gallery.mask):
        text, asked = gallery.tokens[row][there], wanted[row][there]
        for way in (modes.NEXT, modes.OWN, modes.LEFT):
            canvas = text if way == modes.NEXT else np.where(asked, mask_id, text)
            out: Any = jaxsink.forward(subject.model, canvas[None], attention=mode, block_length=block)
            logits = log_softmax(np.asarray(out.logits[0], np.float64), axis=-1)
            at = np.flatnonzero(asked)
            slow.setdefault(way, []).append(-logits[at if way == modes.OWN else at - 1, text[at]].mean())
    if mode != "causal":
        del slow[modes.NEXT]  # the answer would be seen
    best = min(slow, key=lambda way: float(np.mean(slow[way])))
    assert found.reading == best
    np.testing.assert_allclose(found.plain, slow[best], atol=1e-4)
    assert set(found.hidden) == set(modes.HIDDEN) and all(np.isfinite(x).all() for x in found.hidden.values())
    assert (found.hidden["the top key"] != found.hidden["a random key"]).any()


def test_a_mode_that_predicts_nothing_has_nothing_to_lose() -> None:
    subject = random_subject("mini-llada")
    gallery = gallery_of(subject)
    assert np.isnan(modes.lost(modes.own, "the top key")(subject, gallery)).all()
    assert np.isnan(modes.harm("causal")(subject, gallery)).all()


def test_modes_of_a_subject() -> None:
    arm, dlm = random_subject("mini-llama"), random_subject("mini-dream")
    assert (modes.own(arm), modes.opposite(arm)) == ("causal", "bidirectional")
    assert (modes.own(dlm), modes.opposite(dlm)) == ("bidirectional", "causal")
    a2d, named = a2d_subject(), random_subject("mini-llada", usual_block=5)
    assert (modes.own(a2d), modes.opposite(a2d), a2d.is_diffusion) == ("bidirectional", "causal", True)
    for subject, length in ((dlm, modes.BLOCK), (a2d, modes.BLOCK), (named, 5)):
        config = modes.in_mode(subject, "block_causal").model.config
        assert (config.attention, config.block_length) == ("block_causal", length)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mini-llada", "a2d"])
def test_a_study_of_random_weights_supports_nothing(name: str, tmp_path: Path) -> None:
    study = Study([subject_of(name)], tmp_path, problems=4, generations=6, untrained=4)
    (finding,) = conduct(study, choose_experiments(["modes"]))
    assert len(finding.tests) == 6 and not any(test.verdict == "supported" for test in finding.tests)
    (table,) = finding.tables
    assert [row[1] for row in table.rows] == ["causal", "bidirectional (its own)", "block_causal"]
