"""Planted sinks through the real sampler: detection, trajectories, lifetimes and masking come out as planted."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from support.planted import MASK, VOCAB, expected_received, planted_model

import jaxsink
from jaxsink.recording.attention import received
from jaxsink.sinks import MaskSinks, Threshold, detect, frequency, fresh, track
from jaxsink.sinks.tokens import KINDS
from jaxsink.sinks.track import MOVING, NONE, STATIC
from jaxsink.sinks.unmasking import blocks, distance, drift_per_block, frontier

START, WORD, A, B, C = 2, 3, 4, 5, 6
PROMPT = np.array([[START, WORD, WORD, WORD]])
STEPS, GEN = 12, 12
LENGTH = PROMPT.shape[1] + GEN
# What is written where: step -> (place in the response, token); every other step writes WORD at the leftmost mask.
SCRIPT = {2: (2, A), 5: (8, B), 8: (9, C)}
STATIC_HEAD, MOVING_HEAD, NO_HEAD, BRIEF_HEAD = (0, 0), (0, 1), (1, 0), (1, 1)
pytestmark = pytest.mark.usefixtures("quick_compilation")


def strengths() -> np.ndarray:
    strength = np.zeros((2, 2, VOCAB), np.float32)
    strength[(*STATIC_HEAD, START)] = 4.0
    strength[(*MOVING_HEAD, [A, B, C])] = 4.0, 6.5, 9.0  # the newest marker outshines the older ones
    strength[(*BRIEF_HEAD, A)] = 5.0
    strength[(*BRIEF_HEAD, B)] = -5.0
    return strength


def write(step, scores, index):
    """The sampler's logits by the script: the place to fill next is the only sure one."""
    place, token = jnp.int32(-1), jnp.int32(WORD)
    for when, (where, what) in SCRIPT.items():
        place = jnp.where(step == when, where, place)
        token = jnp.where(step == when, what, token)
    here = index - PROMPT.shape[1] == place
    favourite = jnp.where(here, token, WORD)
    sure = jnp.where(here, 20.0, 10.0 - 0.1 * (index - PROMPT.shape[1]))
    return jnp.where(jnp.arange(VOCAB) == favourite[..., None], sure[..., None], 0.0)


@pytest.fixture(scope="module")
def run() -> jaxsink.sampling.generate.Generation:
    sampler = jaxsink.LLaDASampler(GEN, STEPS, GEN)
    return jaxsink.generate(planted_model(strengths()), PROMPT, sampler, record=received(), edit_logits=write)


def canvases(out) -> np.ndarray:
    return np.stack([out.canvas(step, MASK) for step in range(STEPS)])


def test_the_script_is_played(run) -> None:
    committed = np.asarray(run.committed_at)[0, 4:]
    tokens = np.asarray(run.response)[0]
    for step, (place, token) in SCRIPT.items():
        assert committed[place] == step and tokens[place] == token
    assert sorted(committed) == list(range(STEPS))


def test_records_are_the_planted_ones(run) -> None:
    np.testing.assert_allclose(run.record, expected_received(strengths(), canvases(run)), rtol=2e-5, atol=1e-6)


def test_trajectories_lifetimes_and_kinds(run) -> None:
    tracks = track(run.record, Threshold(3.0), run.mask)

    def of(name: str, head: tuple[int, int]) -> np.ndarray:
        """The figures of one head of the only row."""
        value = np.asarray(getattr(tracks, name))
        per_step = name in ("position", "sink_count", "score", "centroid", "absorbed")
        return value[:, head[0], 0, head[1]] if per_step else value[head[0], 0, head[1]]

    at_a, at_b, at_c = (4 + SCRIPT[step][0] for step in (2, 5, 8))
    assert (of("position", STATIC_HEAD) == 0).all() and of("kind", STATIC_HEAD) == STATIC
    assert of("lifetime", STATIC_HEAD) == STEPS and of("deaths", STATIC_HEAD).sum() == 0

    journey = [-1] * 3 + [at_a] * 3 + [at_b] * 3 + [at_c] * 3  # what is written at a step is seen from the next on
    np.testing.assert_array_equal(of("position", MOVING_HEAD), journey)
    assert of("kind", MOVING_HEAD) == MOVING and of("jumps", MOVING_HEAD) == 2
    assert of("drift", MOVING_HEAD) == pytest.approx((at_c - at_a) / 8)
    np.testing.assert_array_equal(of("longest", MOVING_HEAD)[[at_a, at_b, at_c]], [3, 3, 3])
    np.testing.assert_array_equal(of("births", MOVING_HEAD)[[at_a, at_b, at_c]], [1, 1, 1])
    np.testing.assert_array_equal(of("deaths", MOVING_HEAD)[[at_a, at_b, at_c]], [1, 1, 0])

    assert of("kind", NO_HEAD) == NONE and (of("position", NO_HEAD) == -1).all() and of("lifetime", NO_HEAD) == 0
    assert (of("position", BRIEF_HEAD) == [-1] * 3 + [at_a] * 9).all() and of("kind", BRIEF_HEAD) == STATIC
    expected = expected_received(strengths(), canvases(run))[:, 0, 0, 0]
    np.testing.assert_allclose(of("score", STATIC_HEAD), expected[:, 0], rtol=2e-5)
    np.testing.assert_allclose(of("absorbed", STATIC_HEAD), expected[:, 0] / LENGTH, rtol=2e-5)


def test_distance_to_the_frontier_and_drift_per_block(run) -> None:
    tracks = track(run.record, Threshold(3.0), run.mask)
    at = frontier(run.committed_at, run.mask, run.recorded_steps)
    canvas = canvases(run)[:, 0]
    first = [np.flatnonzero(row == MASK)[0] for row in canvas]
    last = [np.flatnonzero(row == MASK)[-1] for row in canvas]
    np.testing.assert_array_equal(np.asarray(at.first)[:, 0], first)
    np.testing.assert_array_equal(np.asarray(at.last)[:, 0], last)
    filled = [np.flatnonzero(np.asarray(run.committed_at)[0] == step)[0] for step in range(STEPS)]
    np.testing.assert_array_equal(np.asarray(at.filled)[:, 0], filled)
    away = np.asarray(distance(tracks.position, at.last))[:, 0, 0, 1]
    position = np.asarray(tracks.position)[:, 0, 0, 1]
    np.testing.assert_array_equal(away, np.where(position < 0, np.nan, position - last))

    block = blocks(at, run.prompt_length, 4)
    np.testing.assert_array_equal(np.asarray(block)[:, 0], (np.array(first) - 4) // 4)
    mean, change = drift_per_block(tracks.position, block)
    of_block = [position[(np.asarray(block)[:, 0] == n) & (position >= 0)] for n in range(3)]
    np.testing.assert_allclose(np.asarray(mean)[:, 0, 0, 1], [p.mean() for p in of_block])
    np.testing.assert_allclose(np.asarray(change)[:, 0, 0, 1], np.diff([p.mean() for p in of_block]), rtol=1e-5)


def test_tokens_and_kinds_of_the_planted_sinks(run) -> None:
    kinds = np.full(VOCAB, KINDS.index("word"))
    kinds[START], kinds[MASK], kinds[[A, B, C]] = map(KINDS.index, ("bos", "mask", "newline"))
    found = frequency(
        detect(run.record, Threshold(3.0), run.mask),
        canvases(run),
        run.mask,
        VOCAB,
        kinds,
        fresh(run.committed_at, run.recorded_steps),
    )
    stays = {START: STEPS, A: 3 + 9, B: 3, C: 3}  # the brief head stays with A to the end
    np.testing.assert_array_equal(found.by_token.count, [stays.get(token, 0) for token in range(VOCAB)])
    by_kind = dict(zip(KINDS, found.by_kind.count, strict=True))
    assert (by_kind["bos"], by_kind["newline"], by_kind["mask"], by_kind["word"]) == (STEPS, 18, 0, 0)
    base = np.mean(canvases(run) == START)
    assert found.by_token.base[START] == pytest.approx(base)
    assert found.by_token.lift[START] == pytest.approx(STEPS / 30 / base)
    assert int(found.freshly_committed.count) == 4  # each marker when it is new, A in two heads
    np.testing.assert_array_equal(found.per_layer[:, KINDS.index("newline")], [9, 9])


def test_masking_hides_exactly_the_planted_sink(run) -> None:
    sampler = jaxsink.LLaDASampler(GEN, STEPS, GEN)
    model = planted_model(strengths())
    policy = MaskSinks(1, rule="top_k_above", eps=3.0)
    out = jaxsink.generate(model, PROMPT, sampler, record=received(), edit_logits=write, intervene=policy)
    scores = np.asarray(out.record)
    hidden = np.zeros(scores.shape, bool)
    for step in range(1, STEPS):  # what passed Eq. 3 in the step before, if anything, and nothing else
        above = scores[step - 1] > 1 + 3 * (LENGTH - 1) / LENGTH
        top = np.where(above, scores[step - 1], 0)
        hidden[step] = above & (top == top.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(scores, expected_received(strengths(), canvases(out), hidden), rtol=2e-5, atol=1e-6)
    assert (scores[hidden] == 0).all() and hidden.any()
    static = hidden[:, 0, 0, 0, 0]
    np.testing.assert_array_equal(static, np.arange(STEPS) % 2 == 1)  # hidden, so it receives 0, so it comes back
    tracks = track(out.record, Threshold(3.0), out.mask)
    assert float(tracks.lifetime[0, 0, 0]) == 1 and int(tracks.births[0, 0, 0, 0]) == STEPS // 2


def test_keeping_only_the_sink_and_scaling_it(run) -> None:
    sampler = jaxsink.LLaDASampler(GEN, STEPS, GEN)
    model = planted_model(strengths())
    common = {"record": received(), "edit_logits": write}
    kept = jaxsink.generate(model, PROMPT, sampler, intervene=MaskSinks(1, keep=True), **common)
    np.testing.assert_allclose(np.asarray(kept.record)[1:, 0, 0, 0, 0], LENGTH, rtol=1e-6)
    assert (np.asarray(kept.record)[1:, 0, 0, 0, 1:] == 0).all()

    halved = jaxsink.generate(model, PROMPT, sampler, intervene=MaskSinks(positions=(0,), factor=0.5), **common)
    weight = 0.5 * np.exp(4.0)
    expected = LENGTH * weight / (weight + LENGTH - 1)
    np.testing.assert_allclose(np.asarray(halved.record)[1:, 0, 0, 0, 0], expected, rtol=2e-5)
    same = jaxsink.generate(model, PROMPT, sampler, intervene=lambda seen: jnp.ones(seen.drop.shape), **common)
    np.testing.assert_array_equal(same.record, run.record)
