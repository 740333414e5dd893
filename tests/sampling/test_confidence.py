"""How sure a position is: the order of the probabilities in float64, kept where float32 probabilities would all be 1."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxsink
from jaxsink import parallel
from jaxsink.recording.attention import received
from jaxsink.sampling import confidence as choose
from jaxsink.tasks.batches import prompt_ids
from jaxsink.tasks.task import problems
from jaxsink.tasks.word_tasks import SUMS
from jaxsink.zoo.builtin import BUILTIN

TOKENS = 11
BATCH = 5


def float64_probs(logits: np.ndarray) -> np.ndarray:
    weight = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return weight / weight.sum(axis=-1, keepdims=True)


def rows(seed: int, gap: float) -> np.ndarray:
    """f32[40,V]: logits whose best token stands about `gap` above the others."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (40, TOKENS))
    logits[np.arange(40), rng.integers(0, TOKENS, 40)] += gap * rng.uniform(0.5, 1.5, 40)
    return logits.astype(np.float32)


def rest_of(logits: np.ndarray, token: np.ndarray) -> np.ndarray:
    """f64[N]: 1 - p(token), as a sum of the others."""
    probs = float64_probs(logits)
    np.put_along_axis(probs, token[:, None], 0, axis=-1)
    return probs.sum(axis=-1)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 6.0, 12.0, 30.0]), st.booleans())
def test_log_odds_are_those_of_float64(seed: int, gap: float, best: bool) -> None:
    logits = rows(seed, gap)
    token = logits.argmax(axis=-1) if best else np.random.default_rng(seed).integers(0, TOKENS, len(logits))
    probs = np.take_along_axis(float64_probs(logits), token[:, None], axis=-1)[:, 0]
    exact = np.log(probs) - np.log(rest_of(logits, token))
    found = np.asarray(choose.log_odds(jnp.asarray(logits), jnp.asarray(token)))
    np.testing.assert_allclose(found, np.minimum(exact, choose.CERTAIN), rtol=2e-6, atol=4e-6)
    np.testing.assert_allclose(choose.probability(jnp.asarray(found)), probs, rtol=2e-5, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 6.0, 12.0, 30.0]))
def test_margin_and_entropy_are_those_of_float64(seed: int, gap: float) -> None:
    logits = rows(seed, gap)
    probs = float64_probs(logits)
    ordered = np.sort(probs, axis=-1)
    rest = rest_of(logits, logits.argmax(axis=-1))
    margin = np.log(ordered[:, -1] - ordered[:, -2]) - np.log(rest + ordered[:, -2])
    found = np.asarray(choose.sure_by_margin(jnp.asarray(logits)))
    clear = ordered[:, -1] - ordered[:, -2] > 1e-2 * ordered[:, -1]
    np.testing.assert_allclose(found[clear], np.minimum(margin, choose.CERTAIN)[clear], rtol=2e-5, atol=2e-5)
    # the offset of 1e-10 is lost beside a probability near 1 in the original's float32 as well
    best = -np.log1p(rest / (1 - rest)) * (1 - rest)
    others = np.sort(probs, axis=-1)[:, :-1]
    entropy = -(best + (others * np.log(others + 1e-10)).sum(axis=-1))
    np.testing.assert_allclose(-np.asarray(choose.sure_by_entropy(jnp.asarray(logits))), entropy, rtol=1e-5)


def test_float32_probabilities_could_not_tell_these_apart() -> None:
    """Positions at 1 - 1e-9 … 1 - 3e-8: probabilities tie, log-odds keep the order, and from CERTAIN on positions tie."""
    gaps = np.array([16.0, 17.0, 16.5, 15.5, 40.0, 18.0], np.float32)
    logits = np.zeros((6, 2), np.float32)
    logits[:, 1] = gaps
    odds = np.asarray(choose.log_odds(jnp.asarray(logits), jnp.ones(6, int)))
    np.testing.assert_allclose(odds, np.minimum(gaps, choose.CERTAIN), rtol=1e-6)
    eligible = jnp.ones((1, 6), bool)
    np.testing.assert_array_equal(choose.rank(jnp.asarray(odds)[None], eligible)[0], [4, 2, 3, 5, 0, 1])
    assert (np.asarray(choose.probability(jnp.asarray(odds)))[[4, 5]] == 1).all()


def test_extremes() -> None:
    inf = np.inf
    logits = jnp.asarray([[1.0, -inf, -inf], [-inf, 3.0, 1.0], [2.0, 2.0, -inf], [0.0, float(choose.REMOVED), -inf]])
    odds = np.asarray(choose.log_odds(logits, jnp.asarray([0, 0, 0, 1])))
    assert odds[0] == np.float32(choose.CERTAIN) and odds[2] == 0
    assert (odds[[1, 3]] > choose.LAST).all() and (
        odds[[1, 3]] < -1e20
    ).all()  # after all others, before those that wait
    assert np.asarray(choose.sure_by_margin(logits))[2] < -1e20
    np.testing.assert_allclose(choose.sure_by_entropy(logits), [0, -0.365334, -np.log(2), 0], atol=1e-6)
    assert choose.sure_by_entropy(jnp.asarray([[0.0, -90.0], [0.0, -80.0]])).tolist() == [0, 0]


def written(name: str, ids: list[list[int]], model: jaxsink.Model, **options):
    return jaxsink.generate(model, ids, BUILTIN[name].sampler, record=received(), pad_to=SUMS.prompt, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(BUILTIN))
def test_a_trained_model_writes_the_same_in_any_company(name: str) -> None:
    """Alone, in a batch, over devices and cut into parts: tokens and order are equal though every program rounds
    differently; the confidences of a trained model crowd below 1."""
    model, ids = jaxsink.load(name, "float32"), prompt_ids(problems("test", BATCH, seed=3))
    expected = written(name, ids, model)
    mesh = parallel.make_mesh(2, 4)
    others = {
        "alone": [written(name, [row], model) for row in ids],
        "pmap": [written(name, ids, model, devices=jax.devices()[:4])],
        "mesh": [written(name, ids, parallel.shard(model, mesh))],
    }
    for way, outs in others.items():
        tokens, order, scores = (
            np.concatenate([np.asarray(part) for part in parts], axis=axis)
            for parts, axis in (
                ([out.tokens for out in outs], 0),
                ([out.committed_at for out in outs], 0),
                ([out.record for out in outs], 2),
            )
        )
        np.testing.assert_array_equal(tokens, expected.tokens, err_msg=way)
        np.testing.assert_array_equal(order, expected.committed_at, err_msg=way)
        np.testing.assert_allclose(scores, expected.record, rtol=1e-4, atol=1e-4, err_msg=way)
