"""Random numbers: float32 Gumbel noise against float64, the distributions of samples, and what draws depend on."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES

from jaxsink import ARSampler, DreamSampler, LLaDASampler, SDARSampler
from jaxsink.sampling import confidence as choose
from jaxsink.sampling import rng as noise
from jaxsink.sampling.canvas import Window

pytestmark = pytest.mark.usefixtures("quick_compilation")

LOGITS = np.array([1.0, 0.2, -0.5, 2.0, -3.0, 1.7, 0.0, -9.0], np.float32)  # the last one is the mask


@partial(jax.jit, static_argnums=(0, 1, 2))
def keys_of(rows: int, places: int, purpose: int = noise.TOKEN, step: int = 0) -> jax.Array:
    place = jnp.broadcast_to(jnp.arange(places), (rows, places))
    return noise.position_keys(noise.sequence_keys(jnp.arange(rows)), purpose, step, place)


uniform, gumbel = jax.jit(noise.uniform), jax.jit(noise.gumbel, static_argnums=1)
keys_at = jax.jit(noise.position_keys, static_argnums=1)


@pytest.fixture(scope="module")
def many() -> tuple[np.ndarray, np.ndarray]:
    """A million draws, and what float64 makes of the same random bits."""
    keys = keys_of(8, 64)
    bits = jax.vmap(jax.vmap(lambda key: jax.random.bits(key, (2048,), jnp.uint32)))(keys)
    v = (np.asarray(bits, np.float64) + 0.5) / 2**32
    return np.asarray(gumbel(keys, 2048)), -np.log(-np.log1p(-v))


def test_gumbel_noise_equals_float64(many) -> None:
    """To 3e-5, and 1e-6 where it matters, but for the lowest noise (below -2, one draw in 1600), which never wins."""
    ours, exact = many
    assert ours.dtype == np.float32
    high = exact > -2
    assert np.abs(ours - exact)[high].max() < 3e-5
    assert np.abs(ours - exact)[exact > 0].max() < 1e-6 * exact.max()
    assert ours[~high].max() < -1.99
    assert np.isfinite(ours).all()


def test_gumbel_noise_is_gumbel(many) -> None:
    """Kolmogorov-Smirnov on the bulk, counts in the upper tail, where plain float32 noise thins out."""
    values = np.sort(many[0].reshape(-1).astype(np.float64))
    count = len(values)
    steps = np.arange(count + 1) / count
    expected = np.exp(-np.exp(-values))
    distance = max(np.abs(expected - steps[1:]).max(), np.abs(expected - steps[:-1]).max())
    assert distance * np.sqrt(count) < 1.63  # the 1 % point
    for level in (2.0, 5.0, 8.0, 10.0):
        wanted = -np.expm1(-np.exp(-level)) * count
        assert abs((values > level).sum() - wanted) < 4 * np.sqrt(wanted), level
    top = values[-1000:]
    assert len(np.unique(top)) == 1000  # no steps in the tail


def test_the_ends_of_the_range(monkeypatch) -> None:
    """All-zero and all-one bits: u stays inside (0, 1), and the noise between -2.9 and 22.9."""
    bits = np.concatenate([np.arange(1000), 2**32 - 1 - np.arange(300)]).astype(np.uint32)
    monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: jnp.asarray(bits))
    u = np.asarray(noise.small_uniform(jax.random.key(0), bits.shape))
    assert u.dtype == np.float32
    assert 0 < u.min() <= 2.0**-33
    assert u.max() < 1
    value = -np.log(-np.log1p(-((np.arange(1000) + 0.5) / 2.0**32)))
    ours = np.asarray(noise.gumbel(keys_of(1, 1), len(bits)))[0, 0]
    np.testing.assert_allclose(ours[:1000], value, atol=5e-6)
    assert (np.diff(ours[:1000]) < 0).all()
    assert 22.8 < ours.max() < 22.9
    assert -2.9 < ours.min() < -2.8


def test_uniform_draws_are_uniform() -> None:
    draws = np.sort(np.asarray(uniform(keys_of(64, 512, noise.REMASK))).reshape(-1))
    assert draws.min() > 0
    assert draws.max() < 1
    steps = np.arange(1, len(draws) + 1) / len(draws)
    assert np.abs(draws - steps).max() * np.sqrt(len(draws)) < 1.63


def test_draws_know_seed_purpose_step_and_place_only() -> None:
    keys = noise.sequence_keys(jnp.array([3, 4, 3]))
    place = jnp.array([[0, 1, 2, 3]] * 3)
    draws = np.asarray(gumbel(keys_at(keys, noise.TOKEN, 2, place), 5))
    np.testing.assert_array_equal(draws[0], draws[2])  # rows with the same seed
    assert (draws[0] != draws[1]).all()
    one = gumbel(keys_at(keys[1:2], noise.TOKEN, 2, place[1:2, 2:]), 5)
    np.testing.assert_array_equal(draws[1, 2:], one[0])  # a window that starts later, a batch of one
    assert (noise.sequence_keys(jnp.array([3]))[0] == keys[0]).all()
    other = [
        keys_at(keys, noise.TOKEN, 3, place),
        keys_at(keys, noise.ORDER, 2, place),
        keys_at(keys, noise.TOKEN, 2, place - 7),  # in the prompt
    ]
    assert all((draws != np.asarray(gumbel(key, 5))).all() for key in other)


def test_draws_of_neighbours_are_unrelated() -> None:
    draws = np.asarray(uniform(keys_of(128, 512, noise.REMASK)))
    for shifted in (draws[:, 1:], np.asarray(uniform(keys_of(128, 512, noise.REMASK, step=1)))[:, :-1]):
        assert abs(np.corrcoef(draws[:, :-1].reshape(-1), shifted.reshape(-1))[0, 1]) < 0.015
    assert abs(np.corrcoef(draws[:-1].reshape(-1), draws[1:].reshape(-1))[0, 1]) < 0.015


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """The counts follow the probabilities, by Pearson's test at about 1 in 1000."""
    expected = probabilities * counts.sum()
    assert (expected >= 5).all()
    value = ((counts - expected) ** 2 / expected).sum()
    freedom = len(counts) - 1
    assert value < freedom * (1 - 2 / (9 * freedom) + 3.09 * np.sqrt(2 / (9 * freedom))) ** 3
    assert counts.sum() > 10_000


def softmax(x: np.ndarray) -> np.ndarray:
    weight = np.exp(np.asarray(x, np.float64) - np.max(x))
    return weight / weight.sum()


@partial(jax.jit, static_argnums=(0, 1))
def decide(sampler: Any, config: Any, logits: Any, step: Any, draws: Any) -> Any:
    rows, size, _ = logits.shape
    place = jnp.broadcast_to(jnp.arange(size), (rows, size))
    zero = jnp.zeros(rows, jnp.int32)
    window = Window(place + 5, jnp.ones((rows, size), bool), zero, zero + size, step, place)
    return sampler.decide(config, logits, window, draws)


def decided(sampler: Any, logits: np.ndarray, rows: int, step: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, commits) of many rows, each with a seed of its own, all with logits f32[W,V]."""
    config = FAMILIES["sdar"].replace(vocab=8, mask_id=7, eos_ids=(0,))
    draws = noise.Draws(noise.sequence_keys(jnp.arange(rows)))
    tiled = jnp.broadcast_to(jnp.asarray(logits), (rows, *logits.shape))
    token, commit, *_ = decide(sampler, config, tiled, step, draws)
    return np.asarray(token), np.asarray(commit)


@pytest.mark.parametrize(
    ("sampler", "allowed"),
    [
        (LLaDASampler(temperature=1.3), [0, 1, 2, 3, 4, 5, 6]),
        (DreamSampler(8, 4, temperature=1.3, top_k=3, top_p=0.7), [0, 3, 5]),
        (SDARSampler(8, temperature=1.3, top_k=3, top_p=0.7), [3, 5]),
    ],
)
def test_tokens_follow_the_softmax_of_what_is_kept(sampler: Any, allowed: list[int]) -> None:
    """LLaDA's argmax exp(logits) / (-log u)^T is a sample of softmax(logits / T). SDAR's top-p looks at what top-k has
    left, where the two best hold 0.7, and Dream's at all tokens, where they do not. The mask is never sampled."""
    token, _ = decided(sampler, np.tile(LOGITS, (4, 1)), rows=5000)
    counts = np.bincount(token.reshape(-1), minlength=8)
    assert counts.sum() == counts[allowed].sum()
    chi_square(counts[allowed], softmax(LOGITS[allowed] / 1.3))


@pytest.mark.parametrize(
    ("sampler", "allowed"),
    [
        (ARSampler(temperature=0.8), [0, 1, 2, 3, 5, 6]),
        (ARSampler(temperature=1.3, top_k=3, top_p=0.7), [3, 5]),
    ],
)
def test_autoregressive_sampling(sampler: ARSampler, allowed: list[int]) -> None:
    rows = 20_000
    logits = jnp.broadcast_to(jnp.asarray(np.where(np.arange(8) == 4, -30, LOGITS)), (rows, 8))
    draws = noise.Draws(noise.sequence_keys(jnp.arange(rows)))
    token = jax.jit(lambda x: sampler.next_token(x, jnp.int32(3), 6, draws))(logits)
    counts = np.bincount(np.asarray(token), minlength=8)
    assert counts[allowed].sum() >= rows - 5
    chi_square(counts[allowed], softmax(LOGITS[allowed] / sampler.temperature))


def test_tokens_tied_at_the_edge_of_top_p_stay() -> None:
    """The original keeps whichever of them its sort puts first."""
    logits = jnp.log(jnp.array([0.1, 0.4, 0.1, 0.2, 0.1, 0.1]))
    assert (np.asarray(choose.keep_top_p(logits, 0.65)) > -1e30).tolist() == [True] * 6
    assert (np.asarray(choose.keep_top_p(logits, 0.5)) > -1e30).tolist() == [False, True, False, True, False, False]
    assert (np.asarray(choose.keep_top_p(logits, 0.3)) > -1e30).tolist() == [False, True, False, False, False, False]
    assert (np.asarray(choose.keep_top_k(logits, 3)) > -1e30).tolist() == [True] * 6
    assert (np.asarray(choose.keep_top_k(logits, 2)) > -1e30).tolist() == [False, True, False, True, False, False]


def test_alg_temp_draws_positions_without_replacement() -> None:
    """The first of them by softmax(confidence / alg_temp), the second likewise among the rest; as torch.multinomial."""
    logits = np.zeros((4, 8), np.float32)
    logits[:, 0] = [0.5, 1.5, 2.5, 3.5]
    sure = np.array([softmax(row)[0] for row in logits])
    share = softmax(sure / 0.3)
    sampler = DreamSampler(4, 4, "maskgit_plus", alg_temp=0.3, eps=1e-9)  # a quarter, then a third, then half of them
    _, commit = decided(sampler, logits, rows=20_000)
    assert (commit.sum(axis=1) == 1).all()
    chi_square(commit.sum(axis=0), share)
    _, commit = decided(sampler, logits, rows=20_000, step=2)
    assert (commit.sum(axis=1) == 2).all()
    pairs = list(itertools.combinations(range(4), 2))
    expected = [share[i] * share[j] * (1 / (1 - share[i]) + 1 / (1 - share[j])) for i, j in pairs]
    chi_square(np.array([(commit[:, i] & commit[:, j]).sum() for i, j in pairs]), np.array(expected))


def test_replayed_draws_keep_float64_tails() -> None:
    """Recorded float64 draws next to 0 and 1 become the noise they stand for."""
    u = np.array([1e-12, 0.5, 1 - 1e-13]).reshape(1, 1, 1, 3)
    token = np.asarray(noise.replayed({"token": u}, (1, 1, 1), 3)["token"])
    np.testing.assert_allclose(token, -np.log(-np.log(u)), rtol=1e-6)
    assert token.dtype == np.float32
