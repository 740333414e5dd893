"""The experiments on the inside where the answer is known: by hand, against slow versions, with what was planted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxsink_experiments import inside_agreement, inside_next, inside_outlier, pruning
from jaxsink_experiments.conduct import choose_experiments
from jaxsink_experiments.inside_next import Step
from scipy.special import log_softmax
from support.configs import FAMILIES
from support.made_gallery import LITTLE, SINK, made_gallery
from support.miniatures import random_subject, written_by
from support.models import lively, sequences
from support.sampling import model_of

import jaxsink
from jaxsink.recording import recorders as record
from jaxsink.recording.among_masks import among_masks
from jaxsink.study import Study, Subject
from jaxsink.study.finding import judge
from jaxsink.study.run import conduct
from jaxsink.study.verdicts import decide

pytestmark = pytest.mark.usefixtures("quick_compilation")
ANY: Any = SimpleNamespace()
NOTHING = float("nan")


def made_steps(*generations: list[tuple[list[float], list[int]]]) -> tuple[tuple[Step, ...], ...]:
    """Of each generation its steps: (scores, places that are filled in)."""
    return tuple(
        tuple(Step({"change": np.array(scores)}, np.isin(np.arange(len(scores)), filled)) for scores, filled in one)
        for one in generations
    )


def test_wins_are_over_masks_that_stay_ties_counting_half(monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_steps(
        [([5, 1, 2, 3], [0]), ([1, 1, 2], [0])],  # all three; half of one and none of the other
        [([4, 1, 3, 2], [0, 1])],  # over the two that stay: both, and neither
        [],
    )
    monkeypatch.setattr(inside_next, "steps", lambda subject, gallery: made)
    np.testing.assert_allclose(inside_next.of_change(ANY, ANY), [(1 + 0.25) / 2, 0.5, NOTHING])


def test_neighbours_are_the_nearest_masks_that_stay_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_steps(
        [([9, 1, 5, 3, 4], [2])],  # of 1 and 3 it beats both; 9 is no neighbour
        [([9, 5, 7, 1, 0], [1, 2])],  # both are between 9 and 1
        [([1, 9, 9], [0])],  # nothing on the left
    )
    monkeypatch.setattr(inside_next, "steps", lambda subject, gallery: made)
    np.testing.assert_allclose(inside_next.of_change_beside(ANY, ANY), [1, 0.5, NOTHING])


def test_masks_that_must_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_steps([([10 - n for n in range(10)], [place]) for place in (0,) * 8 + (4, 9)])
    monkeypatch.setattr(inside_next, "steps", lambda subject, gallery: made)
    assert inside_next.must_be_kept(ANY, ANY, "change") == pytest.approx(0.5)  # nine of ten steps: five of ten masks


@pytest.mark.parametrize("name", ["mini-llada", "mini-dream"])
def test_steps_against_one_canvas_at_a_time(name: str) -> None:
    """LLaDA's block of four masks at a time; the whole response of Dream."""
    subject = random_subject(name)
    gallery = written_by(subject)
    found = inside_next.steps(subject, gallery)
    block = 4 if name == "mini-llada" else 8
    for row, there in enumerate(gallery.mask):
        expected = []
        for step in np.linspace(0, 7, inside_next.COUNT).astype(int):
            canvas = gallery.canvas[step, row]
            masked = np.flatnonzero(there & (canvas == subject.mask_id))
            begin = 5 + (masked[0] - 5) // block * block if len(masked) else 0
            masked = masked[masked < begin + block]
            filled = gallery.committed_at[row, masked] == step
            if not filled.any() or filled.all():
                continue
            out = jaxsink.forward(
                subject.model, canvas[None], there[None], record=among_masks(begin, begin + block - 1)
            )
            one, two = np.asarray(out.record)[:2, 0].sum(axis=1)[:, masked]
            expected.append(({"change": two - one, "first": one, "second": two, "left": -masked}, filled))
        assert len(found[row]) == len(expected) > 3
        for made, (scores, filled) in zip(found[row], expected, strict=True):
            np.testing.assert_array_equal(made.filled, filled)
            for score in inside_next.SCORES:
                np.testing.assert_allclose(made.scores[score], scores[score], atol=1e-4)
    values = inside_next.of_change(subject, gallery)
    assert ((values >= 0) & (values <= 1)).all()


def layers_of(*places: list[list[int]], length: int = 12) -> np.ndarray:
    """f32[1,L,B,1,S]: for each sequence and layer the keys that are sinks."""
    scores = np.full((1, len(places[0]), len(places), 1, length), LITTLE, np.float32)
    for row, of_layers in enumerate(places):
        for layer, keys in enumerate(of_layers):
            scores[0, layer, row, 0, keys] = SINK + np.arange(len(keys))
    return scores


def test_agreement_of_layers_by_hand() -> None:
    places = ([[1, 2, 3], [1, 2, 3], [1, 2, 3]], [[1, 2, 3], [1, 2, 9], [7, 8, 9]], [[0, 1, 2], [3, 4, 5], [6, 7, 8]])
    gallery = made_gallery(layers_of(*places))
    np.testing.assert_allclose(inside_agreement.all_pairs(ANY, gallery), [1, (2 / 3 + 0 + 1 / 3) / 3, 0], rtol=1e-6)
    four = made_gallery(np.concatenate([layers_of(*places), layers_of(*places)[:, 1:2]], axis=1))
    np.testing.assert_allclose(  # the second of four layers: of the third and of the fourth, its copy
        inside_agreement.from_one_layer(ANY, four), [1, (1 / 3 + 1) / 2, 0.5], rtol=1e-6
    )
    np.testing.assert_allclose(inside_agreement.by_pair(gallery)[0, 1], [1, 2 / 3, 0], rtol=1e-6)
    another = inside_agreement.of_another_text(gallery)
    assert another[1] == pytest.approx(
        (1 + 2 / 3 + 0) / 3
    )  # of its layers in those of the text before, all of them 1, 2, 3


def test_layers_that_are_moved_round_keep_their_scores_and_their_texts() -> None:
    draw = np.random.default_rng(0)
    scores = draw.random((2, 3, 4, 2, 9)).astype(np.float32)
    mask = np.arange(9) >= np.array([0, 2, 3, 0])[:, None]
    scores *= mask[None, None, :, None]
    gallery = made_gallery(scores, mask=mask, real=np.broadcast_to(mask, (2, 4, 9)))
    moved = inside_agreement.moved_round(gallery, draw)
    assert (moved.scores[:, :, ~mask[:, None].repeat(2, 1)] == 0).all() and (moved.scores != scores).any()
    for step, layer, row, head in np.ndindex(scores.shape[:4]):
        before, after = (x[step, layer, row, head][mask[row]] for x in (scores, moved.scores))
        distance = next(n for n in range(len(before)) if np.array_equal(np.roll(before, -n), after))
        same = scores[0, layer, row, 0][mask[row]], moved.scores[0, layer, row, 0][mask[row]]
        np.testing.assert_array_equal(np.roll(same[0], -distance), same[1])
    chance = [inside_agreement.all_pairs(ANY, inside_agreement.moved_round(gallery, draw)) for _ in range(60)]
    assert np.mean(chance, axis=0)[0] == pytest.approx(3 / 9, abs=0.07)


@pytest.mark.parametrize(("family", "unrolled"), [("llada2", False), ("gpt2", True), ("gidd", False), ("dream", True)])
def test_a_channel_that_is_taken_out_is_zero_everywhere_and_the_others_are_written_as_before(
    family: str, unrolled: bool
) -> None:
    """Experts and biases, learned positions, factors that depend on the noise."""
    config = FAMILIES[family]
    tokens, mask = sequences(config)
    model = lively(config).unrolled() if unrolled else lively(config)
    out = pruning.without_channels(model, (7, 11))
    seen = jaxsink.forward(out, tokens, mask, record={"in": record.hidden(), "out": record.residual()}).record
    for stream in seen.values():
        assert (np.asarray(stream)[..., [7, 11]] == 0).all() and (np.asarray(stream)[..., 8][:, mask] != 0).all()
    for before, after in zip(jax.tree.leaves(model), jax.tree.leaves(out), strict=True):
        changed = np.argwhere(np.asarray(before) != np.asarray(after))
        assert not len(changed) or any(set(axis.tolist()) <= {7, 11} for axis in changed.T)


def with_large_channel(subject: Subject, channel: int, size: float) -> Subject:
    """The embedding of every token is large in one channel."""
    model = jax.tree.map(lambda x: x, subject.model)
    model.embedding[...] = jnp.asarray(model.embedding[...]).at[:, channel].set(size)
    return replace(subject, model=model)


def test_a_planted_channel_is_found_and_ordinary_ones_are_not() -> None:
    plain = random_subject("mini-llada")
    gallery = written_by(plain)
    planted = with_large_channel(plain, 5, 200.0)
    assert pruning.largest(planted, gallery) == 5
    assert (inside_outlier.times_the_median(planted, gallery) > inside_outlier.TEN).all()
    assert (inside_outlier.largest_of_tokens(planted, gallery) > 0.95).all()
    assert (inside_outlier.times_the_median(plain, gallery) < 0.6).all()
    assert (inside_outlier.largest_of_tokens(plain, gallery) < 0.5).all()


def test_random_channels_are_together_as_large() -> None:
    subject = with_large_channel(random_subject("mini-llada"), 5, 6.0)
    gallery = written_by(subject)
    mean, first = pruning.sizes(subject, gallery)[0].mean(axis=0), pruning.largest(subject, gallery)
    for number in range(5):
        some = list(pruning.as_large(subject, gallery, number))
        assert first not in some and len(set(some)) == len(some) <= 16
        assert mean[some].sum() >= mean[first] > mean[some].sum() - mean[some].max()
        (one,) = pruning.one_other(subject, gallery, number)
        assert one != first
    huge = with_large_channel(subject, 5, 1e4)
    assert len(pruning.as_large(huge, gallery, 0)) == 16  # half of all, however large it is


@pytest.mark.parametrize("name", ["mini-dream", "mini-llama"])
def test_nats_against_one_canvas_at_a_time(name: str) -> None:
    subject = random_subject(name)
    gallery = written_by(subject)
    model = pruning.without_channels(subject.model, (3,))
    steps = (
        np.linspace(0, len(gallery.scores) - 1, 4).astype(int) if subject.is_diffusion else [len(gallery.scores) - 1]
    )
    for row, there in enumerate(gallery.mask):
        found = []
        for step in steps:
            canvas = gallery.canvas[step, row]
            exists = there & (canvas >= 0)
            out: Any = jaxsink.forward(model, np.maximum(canvas, 0)[None], exists[None])
            logits = log_softmax(np.asarray(out.logits[0], np.float64), axis=-1)  # both predict the token to the right
            asked = np.flatnonzero(gallery.committed_at[row] >= (step if subject.is_diffusion else 0))
            found.append(-logits[asked - 1, gallery.tokens[row, asked]].mean())
        assert pruning.nats(subject, gallery, (3,))[row] == pytest.approx(np.mean(found), rel=1e-4)


def answers(right: list[bool], repeated: list[float]) -> list[dict[str, Any]]:
    return [{"correct": a, "repeated": b} for a, b in zip(right, repeated, strict=True)]


def test_loops_and_lost_problems_are_held_against_both_controls() -> None:
    one: Any = SimpleNamespace(subject=SimpleNamespace(name="made"))
    clusters, count = [f"problem {n}" for n in range(30)], 30
    whole = answers([True] * count, [0.01 * (n % 2) for n in range(count)])
    broken = answers([n % 10 == 0 for n in range(count)], [0.8 + 0.01 * (n % 3) for n in range(count)])
    made = {"nothing": whole, inside_outlier.OUT: broken, inside_outlier.RANDOM: whole, inside_outlier.ONE: whole}
    loops, lost = inside_outlier.tests_of(one, made, clusters)
    assert (loops.value, lost.value) == (pytest.approx(0.81), pytest.approx(0.9)) and len(loops.comparisons) == 2
    assert [test.verdict for test in decide([loops, lost])] == ["supported"] * 2
    as_bad = inside_outlier.tests_of(one, {**made, inside_outlier.RANDOM: broken}, clusters)
    assert [test.verdict for test in decide(as_bad)] == ["undecided"] * 2
    weak = inside_outlier.tests_of(one, {**made, "nothing": broken}, clusters)
    assert all("none to lose" in test.why for test in weak)
    assert all("not graded" in test.why for test in inside_outlier.tests_of(one, {}, clusters))


@pytest.mark.slow
def test_a_study_of_random_weights_supports_nothing(tmp_path: Path) -> None:
    study = Study([random_subject("mini-llada")], tmp_path, problems=6, generations=6, untrained=4)
    found = conduct(study, choose_experiments(["next", "agreement", "outlier"]))
    tests = [test for finding in judge(found) for test in finding.tests]
    assert len(tests) == 10 and not any(test.verdict == "supported" for test in tests)
    assert len([test for test in tests if test.comparisons]) >= 7  # they were tested
    assert [len(finding.tables) for finding in found] == [1, 1, 2]


@pytest.mark.parametrize(
    ("family", "sampler", "begins", "size"),
    [
        ("llada", jaxsink.LLaDASampler(8, 8, 4), [9, 5], 4),
        ("a2d", jaxsink.MDLMSampler(8, 8, block_size=4), [9, 5], 4),
        ("a2d", jaxsink.BD3LMSampler(8, 8, block_size=4), [9, 5], 4),
        ("sdar", jaxsink.SDARSampler(8), [8, 4], 4),
        ("dream", jaxsink.DreamSampler(8, 8), [5, 5], 8),
    ],
    ids=["llada", "mdlm", "bd3lm", "sdar", "dream"],
)
def test_windows_are_the_blocks_of_the_sampler(family: str, sampler: Any, begins: list[int], size: int) -> None:
    """Masks from 10 and from 6 on, of prompts of five tokens; SDAR counts its blocks from the first real token."""
    gallery = made_gallery(np.zeros((1, 1, 2, 1, 13), np.float32), prompt_length=5)
    masked = np.arange(13) >= np.array([[10], [6]])
    config = model_of(family).config
    subject: Any = SimpleNamespace(model=SimpleNamespace(config=config), sampler=sampler)
    begin, length = inside_next.windows(subject, gallery, masked)
    assert begin.tolist() == begins and length == size
