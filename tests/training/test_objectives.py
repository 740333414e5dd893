"""What a step shows and what counts: objectives against slow NumPy, noise, the opening mask, blocks."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.training import TINY

import jaxsink
from jaxsink.tasks.batches import Batch, training_batch
from jaxsink.tasks.word_tasks import SUMS
from jaxsink.training import examples
from jaxsink.training.settings import Settings
from jaxsink.training.step import LEAST, Lesson

LENGTH, PROMPT = SUMS.length, SUMS.prompt

pytestmark = pytest.mark.usefixtures("quick_compilation")


@cache
def example(name: str):
    """A model with lively weights, and a batch."""
    model = jax.tree.map(lambda x: 5 * x if x.ndim > 1 else x, jaxsink.init(TINY[name].config, seed=1))
    return model, training_batch(0, 3, seed=2)


def log_probs(model, tokens, real) -> np.ndarray:
    """f64[B,S,V] by the whole model and NumPy."""
    logits = np.asarray(jaxsink.forward(model, tokens, real).logits, np.float64)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


WHOLE, ANSWERS, MIXED = (0, 0, 0), (PROMPT,) * 3, (0, PROMPT, PROMPT)


@pytest.mark.parametrize("starts", [WHOLE, ANSWERS, MIXED])
def test_the_causal_loss_is_the_mean_over_tokens_up_to_eos(starts):
    model, batch = example("mini-llama")
    table, values = log_probs(model, *batch), []
    for row, (tokens, real) in enumerate(zip(*batch, strict=True)):
        ended = False
        for place in range(LENGTH):
            if place >= max(starts[row], 1) and real[place] and real[place - 1] and not ended:
                values.append(-table[row, place - 1, tokens[place]])
            ended = ended or tokens[place] in model.config.eos_ids
    shown = examples.causal_example(model.config, *map(jnp.asarray, batch), starts)
    found = jax.jit(examples.weighted_loss)(model, shown)
    assert float(found) == pytest.approx(np.mean(values), rel=1e-5)


@pytest.mark.parametrize(
    ("starts", "noise"), [(WHOLE, "count"), (ANSWERS, "count"), (MIXED, "count"), (ANSWERS, "bernoulli")]
)
@pytest.mark.parametrize("name", ["mini-llada", "mini-dream"])
def test_the_diffusion_loss_weights_masked_tokens_by_one_over_t(name, starts, noise):
    model, (tokens, real) = example(name)
    shift, mask_id, key = int(model.config.shift_logits), model.config.mask_id, jax.random.key(5)
    maskable = real & (np.arange(LENGTH) >= np.array(starts)[:, None])
    if shift:
        maskable[np.arange(len(tokens)), np.argmax(real, axis=1)] = False
    noised = jax.jit(examples.add_noise, static_argnums=(3, 4))(key, tokens, maskable, mask_id, noise)
    canvas, masked, level = map(np.asarray, noised)
    np.testing.assert_array_equal(canvas, np.where(masked, mask_id, tokens))
    assert not (masked & ~maskable).any() and masked.any()
    table, total = log_probs(model, canvas, real), 0.0
    for row in range(len(tokens)):
        places = np.flatnonzero(masked[row])
        inner = sum(-table[row, place - shift, tokens[row, place]] / level[row] for place in places)
        total += inner / maskable[row].sum()
    shown = examples.diffusion_example(model.config, key, jnp.asarray(tokens), jnp.asarray(real), starts, noise)
    found = jax.jit(examples.weighted_loss)(model, shown)
    assert float(found) == pytest.approx(total / len(tokens), rel=1e-4)


@pytest.mark.parametrize("kind", ["count", "bernoulli"])
def test_both_kinds_of_noise_weigh_every_set_of_masks_as_the_integral_says(kind):
    """E[1(masked = A) / t] = 1 / (k C(n,k)) for every set A of k of n tokens."""
    n, rows = 4, 400_000
    tokens, maskable = np.zeros((rows, n + 2), np.int32), np.zeros((rows, n + 2), bool)
    maskable[:, 1:-1] = True
    noised = jax.jit(examples.add_noise, static_argnums=(3, 4))(jax.random.key(0), tokens, maskable, 9, kind)
    masked, level = np.asarray(noised.masked), np.asarray(noised.level, np.float64)
    assert not masked[:, [0, -1]].any()
    weight = np.bincount(masked[:, 1:-1] @ 2 ** np.arange(n), 1 / level, minlength=2**n) / rows
    for k in range(1, n + 1):
        for chosen in combinations(range(n), k):
            assert weight[sum(2**i for i in chosen)] == pytest.approx(1 / (k * math.comb(n, k)), rel=0.03)


def test_noise_levels_are_uniform_and_evenly_spread():
    levels = np.asarray(jax.vmap(lambda n: examples.noise_levels(jax.random.key(n), 16))(jnp.arange(300)))
    assert ((levels > 0) & (levels <= 1)).all()
    np.testing.assert_allclose(np.diff(np.sort(levels, axis=1), axis=1), 1 / 16, atol=1e-5)
    np.testing.assert_allclose(levels.mean(axis=0), 0.5, atol=0.06)
    noised = examples.add_noise(jax.random.key(0), jnp.zeros((64, 8), int), jnp.ones((64, 8), bool), 9, "count")
    assert noised.masked.any(axis=1).all()


def test_the_mask_begins_causal_and_ends_open():
    key = jax.random.key(0)
    np.testing.assert_array_equal(examples.opened_mask(key, 9, 0.0), np.tril(np.ones((9, 9), bool)))
    assert examples.opened_mask(key, 9, 1.0).all()
    half = np.asarray(examples.opened_mask(key, 200, 0.5))
    assert np.tril(half).sum() == 200 * 201 / 2 and 0.47 < half[np.triu_indices(200, 1)].mean() < 0.53
    known = Settings("adaptation", steps=100, opening=0.2, init="x")
    assert known.opening_steps == 20 and replace(known, objective="diffusion").opening_steps == 0


def test_packed_texts_go_on_after_their_end():
    """In a window of packed texts the tokens after an eos count; in a single answer they do not."""
    config = TINY["mini-llama"].config
    eos = config.eos_ids[0]
    tokens, real = jnp.array([[5, 6, eos, 7, 8, eos]]), jnp.ones((1, 6), bool)
    alone, packed = (examples.causal_example(config, tokens, real, (0,), one_text) for one_text in (True, False))
    np.testing.assert_allclose(alone.weight, [[0.5, 0.5, 0, 0, 0]])
    np.testing.assert_allclose(packed.weight, [[0.2] * 5])


BLOCK = TINY["mini-llada"].config.replace(
    family="sdar", attention="block_causal", block_length=4, skip_gaps=True, rope_theta=100.0
)


@pytest.mark.parametrize("shifted", [False, True])
def test_block_diffusion_scores_each_block_given_the_true_ones_before_it(shifted: bool):
    """One pass over both halves equals one pass per block of the model itself, whose mask is block-causal."""
    config = BLOCK.replace(shift_logits=shifted)
    model = jax.tree.map(lambda x: 5 * x if x.ndim > 1 else x, jaxsink.init(config, seed=3))
    draw = np.random.default_rng(0)
    tokens, real = draw.integers(5, BLOCK.vocab, (3, 12)), np.ones((3, 12), bool)
    real[1, :3] = real[2, :5] = False  # padded on the left
    key, starts = jax.random.key(7), (0, 0, 6)
    shown = examples.block_example(config, key, jnp.asarray(tokens), jnp.asarray(real), starts, "count")
    visible = examples.block_visibility(12, 4)
    scores = np.asarray(jax.jit(examples.predictions)(model, shown, visible), np.float64)
    noised, weight = np.asarray(shown.tokens)[:, :12], np.asarray(shown.weight)
    total = 0.0
    for row, padding in enumerate((0, 3, 5)):
        text = np.roll(tokens[row], -padding)[: 12 - padding]
        wanted = np.arange(12 - padding) + padding >= starts[row]
        wanted[0] &= not shifted  # nothing predicts it
        for begin in range(0, len(text), 4):
            inside = slice(begin, min(begin + 4, len(text)))
            canvas = np.concatenate([text[:begin], noised[row, inside]])
            logits = np.asarray(jaxsink.forward(model, canvas[None]).logits, np.float64)[0]
            logits = np.concatenate([logits[:1], logits[:-1]])[inside] if shifted else logits[inside]
            np.testing.assert_allclose(scores[row, inside], logits, atol=1e-4)
            masked = canvas[inside] == BLOCK.mask_id
            assert not (masked & ~wanted[inside]).any()
            level = masked.sum() / max(wanted[inside].sum(), 1)
            expected = masked / level if level else np.zeros(len(masked))
            counted = 25 if shifted else 27  # of 11 + 8 + 6 or 12 + 9 + 6 tokens
            np.testing.assert_allclose(weight[row, inside] * counted, expected, rtol=1e-5)
            total += expected.sum()
    assert (weight[1, 9:] == 0).all() and (weight[2, 7:] == 0).all() and total > 0


def test_noise_grows_along_a_ramp():
    lesson = Lesson(TINY["mini-llada"].config, Settings("diffusion", steps=100, ramp=0.5))
    limits = [float(lesson.noise_limit(jnp.asarray(n))) for n in (0, 25, 50, 99)]
    assert limits == pytest.approx([LEAST, 0.6, 1.0, 1.0])
    flat = replace(lesson, settings=replace(lesson.settings, ramp=0.0))
    assert flat.noise_limit(jnp.asarray(0)) == 1.0
    tokens, maskable = jnp.zeros((64, 50), int), jnp.ones((64, 50), bool)
    assert examples.add_noise(jax.random.key(0), tokens, maskable, 9, "count", 0.2).level.max() == pytest.approx(0.2)


def test_where_sequences_begin():
    known = Lesson(TINY["mini-llada"].config, Settings("diffusion", steps=10), PROMPT)
    others = [replace(known, settings=replace(known.settings, predict=predict)) for predict in ("all", "mixed")]
    assert known.starts(3) == ANSWERS and others[0].starts(3) == WHOLE
    assert others[1].starts(6) == (0, PROMPT, PROMPT, PROMPT, 0, PROMPT)
    assert replace(known, prompt=0).starts(3) == WHOLE


def test_everything_random_follows_from_seed_and_step():
    lesson = Lesson(TINY["mini-llada"].config, Settings("diffusion", steps=10), PROMPT)
    batch = Batch(*map(jnp.asarray, training_batch(0, 4, 0)))
    shown = [np.asarray(lesson.example(batch, jnp.int32(step)).tokens) for step in (3, 3, 4)]
    assert (shown[0] == shown[1]).all() and (shown[0] != shown[2]).any()
