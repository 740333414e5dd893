"""Sink rules and trajectories: properties, and slow loops in NumPy written from the definitions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsink import JaxsinkError, sinks
from jaxsink.sinks.rules import largest

pytestmark = pytest.mark.usefixtures("quick_compilation")

FEW = settings(max_examples=40, deadline=None)
LENGTHS = st.sampled_from([2, 3, 17, 64])  # few shapes, so that few programs are compiled


def attention_like(rng: np.random.Generator, *lead: int, length: int) -> np.ndarray:
    """Column sums of random full-attention maps: their mean is one."""
    maps = rng.dirichlet(np.full(length, 0.3), (*lead, length))
    return maps.sum(axis=-2).astype(np.float32)


def slow(rule: sinks.Rule, scores: np.ndarray, real: np.ndarray) -> list[bool]:
    """One row of scores, token by token."""
    places = [j for j in range(len(scores)) if real[j]]
    found = [False] * len(scores)
    for j in places:
        others = [float(scores[i]) for i in places if i != j]
        values = [float(scores[i]) for i in places]
        if isinstance(rule, sinks.Threshold):
            scale = 1.0 if rule.scale == "sum" else 1.0 / len(places)
            found[j] = bool(others) and scores[j] * scale > sum(others) * scale / len(others) + rule.eps
        elif isinstance(rule, sinks.Importance):
            seen_by = len([i for i in places if i >= j]) if rule.causal else len(places)
            found[j] = scores[j] / seen_by > rule.eps
        elif isinstance(rule, sinks.Outlier):
            mean = sum(values) / len(values)
            spread = (sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5
            found[j] = scores[j] > mean + rule.sigmas * spread
        elif isinstance(rule, sinks.TopK):
            better = [i for i in places if scores[i] > scores[j] or (scores[i] == scores[j] and i < j)]
            found[j] = len(better) < rule.k
    return found


@pytest.mark.parametrize(
    "rule",
    [
        sinks.Threshold(1.0),
        sinks.Threshold(0.05, "mean"),
        sinks.Importance(0.1),
        sinks.Importance(0.2, causal=True),
        sinks.Outlier(1.5),
        sinks.TopK(3),
        sinks.TopK(50),
    ],
)
def test_rules_against_slow_loops(rule: sinks.Rule) -> None:
    rng = np.random.default_rng(0)
    scores = attention_like(rng, 2, 3, 4, 5, length=12)  # [T,L,B,H,S]
    scores[0, 0, 0, 0, :] = 1.0  # all equal
    mask = np.ones((4, 12), bool)
    mask[1, :4], mask[2, 9:], mask[3, [0, 5, 11]] = False, False, False
    found = np.asarray(sinks.detect(scores, rule, mask))
    assert found.shape == scores.shape
    for index in np.ndindex(2, 3, 4, 5):
        assert found[index].tolist() == slow(rule, scores[index], mask[index[2]]), index
    assert found.any()


@FEW
@given(LENGTHS, st.sampled_from([0.0, 0.3, 3.0, 10.0]))
def test_uniform_attention_has_no_sink(length: int, eps: float) -> None:
    assert not sinks.detect(np.ones((3, length)), sinks.Threshold(eps)).any()
    assert not sinks.detect(np.ones((3, length)), sinks.Outlier(3.0)).any()


@FEW
@given(LENGTHS, st.sampled_from([0.1, 1.0, 3.0, 7.7]), st.integers(0, 63), st.sampled_from([-1, 1]))
def test_planted_sinks_are_found_exactly_at_the_analytic_threshold(length: int, eps: float, at: int, side: int) -> None:
    """In a full-attention map, a token is a sink iff its column sum exceeds 1 + eps (S - 1) / S."""
    edge = 1 + eps * (length - 1) / length
    strength = edge * (1 + side * 1e-3)
    if strength >= length:
        return
    scores = np.full(length, (length - strength) / (length - 1))
    scores[at % length] = strength
    found = np.asarray(sinks.detect(scores, sinks.Threshold(eps)))
    assert found[at % length] == (side > 0)
    assert found.sum() == (side > 0)


@FEW
@given(st.integers(0, 2**32 - 1), LENGTHS)
def test_the_printed_formula_never_fires_at_three(seed: int, length: int) -> None:
    scores = attention_like(np.random.default_rng(seed), 4, length=length)
    assert not sinks.detect(scores, sinks.Threshold(3.0, scale="mean")).any()
    everything_on_one = np.zeros((1, length), np.float32)
    everything_on_one[0, 0] = length
    assert not sinks.detect(everything_on_one, sinks.Threshold(3.0, scale="mean")).any()


@FEW
@given(st.integers(0, 2**32 - 1))
def test_permuting_tokens_permutes_sinks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, order = attention_like(rng, 3, length=20), rng.permutation(20)
    for rule in (sinks.Threshold(0.5), sinks.Importance(0.1), sinks.Outlier(2.0), sinks.TopK(4)):
        found = np.asarray(sinks.detect(scores, rule))
        np.testing.assert_array_equal(np.asarray(sinks.detect(scores[:, order], rule)), found[:, order])


def test_rules_combine() -> None:
    scores = attention_like(np.random.default_rng(1), 6, length=30)
    above, best = sinks.detect(scores, sinks.Threshold(1.0)), sinks.detect(scores, sinks.TopK(2))
    np.testing.assert_array_equal(sinks.detect(scores, sinks.Threshold(1.0) & sinks.TopK(2)), above & best)
    np.testing.assert_array_equal(sinks.detect(scores, sinks.Threshold(1.0) | sinks.TopK(2)), above | best)


def test_sweep_is_the_share_of_tokens_that_are_no_sinks() -> None:
    scores = attention_like(np.random.default_rng(2), 2, 3, 4, length=16)
    mask = np.ones((3, 16), bool)
    mask[0, 10:] = False
    grid = [0.0, 0.5, 1.0, 3.0, 10.0]
    shares = np.asarray(sinks.sweep(scores, grid, mask))
    for number, eps in enumerate(grid):
        found = np.asarray(sinks.detect(scores, sinks.Threshold(eps), mask)).sum(-1)
        np.testing.assert_allclose(shares[..., number], 1 - found / mask.sum(-1)[None, :, None], rtol=1e-6)


def test_a_lonely_token_is_no_sink() -> None:
    mask = np.zeros((1, 5), bool)
    mask[0, 2] = True
    assert not sinks.detect(np.full((1, 5), 1.0), sinks.Threshold(0.5), mask).any()


def test_bad_masks_and_settings_are_named() -> None:
    with pytest.raises(JaxsinkError, match="does not fit"):
        sinks.detect(np.ones((2, 3, 8)), sinks.TopK(1), np.ones((2, 7), bool))
    with pytest.raises(JaxsinkError, match="scale"):
        sinks.Threshold(scale="median")  # type: ignore[arg-type]
    for change in ({"select": "best"}, {"rank_on": "dirty"}, {"rule": "top"}, {"k": -1}, {"per": "row"}):
        with pytest.raises(JaxsinkError, match="MaskSinks"):
            sinks.MaskSinks(**change)


def test_tracks_of_a_planted_story() -> None:
    """Head 0: a sink that stays; head 1: one that moves by two; head 2: one that jumps every step; head 3: none."""
    steps, length = 12, 40
    received = np.full((steps, 1, 1, 4, length), 0.5, np.float32)
    for t in range(steps):
        received[t, 0, 0, 0, 7] = 20.0
        received[t, 0, 0, 1, [2 * (t // 3) + 5, 30]] = [15.0, 9.0]
        received[t, 0, 0, 2, (11 * t) % length] = 12.0
    tracks = sinks.track(received, sinks.Threshold(3.0))
    position = np.asarray(tracks.position)[:, 0, 0]
    assert position[:, 0].tolist() == [7] * steps
    assert position[:, 1].tolist() == [2 * (t // 3) + 5 for t in range(steps)]
    assert position[:, 3].tolist() == [-1] * steps
    assert np.asarray(tracks.kind)[0, 0].tolist() == [1, 2, 3, 0]
    assert np.asarray(tracks.sink_count)[0, 0, 0].tolist() == [1, 2, 1, 0]
    assert np.asarray(tracks.jumps)[0, 0].tolist() == [0, 3, 11, 0]
    np.testing.assert_allclose(np.asarray(tracks.drift)[0, 0, :2], [0.0, 6 / 11], rtol=1e-6)
    assert tracks.births[0, 0, 0, 7] == 1 and tracks.steps_as_sink[0, 0, 0, 7] == steps
    assert tracks.longest[0, 0, 1, 5] == 3 and tracks.longest[0, 0, 1, 30] == steps
    np.testing.assert_allclose(np.asarray(tracks.lifetime)[0, 0], [12, 24 / 5, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(tracks.centroid[0, 0, 0, 1], (15 * 5 + 9 * 30) / 24, rtol=1e-6)
    assert np.isnan(tracks.centroid[0, 0, 0, 3])
    assert tracks.temporal_variance[0, 0, 0] == 0 and tracks.temporal_variance[0, 0, 2] > 10
    mean = received.mean(axis=0)[0, 0]
    np.testing.assert_allclose(tracks.spatial_variance[0, 0], mean.var(axis=-1), rtol=1e-4, atol=1e-9)


def test_steps_after_a_row_has_stopped_do_not_count() -> None:
    received = np.zeros((10, 1, 2, 1, 8), np.float32)
    received[:4, :, 0, :, 3] = 8.0
    received[:, :, 1, :, 3] = 8.0
    tracks = sinks.track(received, steps=np.array([4, 10]))
    assert np.asarray(tracks.kind)[0, :, 0].tolist() == [1, 1]
    without = sinks.track(received)
    assert np.asarray(without.kind)[0, :, 0].tolist() == [0, 1]


VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-38, 2.5, 2.5000002, -3e38, 3e38, 0.1])


@settings(max_examples=200, deadline=None)
@given(st.lists(VALUES, min_size=9, max_size=9), st.integers(0, 2**9 - 1), st.integers(0, 10))
def test_largest_against_sorting(values, pads, count) -> None:
    real = np.array([not pads >> place & 1 for place in range(len(values))])
    order = sorted(np.flatnonzero(real), key=lambda place: (-np.float32(values[place]), place))
    expected = np.isin(np.arange(len(values)), order[:count])
    scores = jnp.array([values], jnp.float32)
    np.testing.assert_array_equal(jax.jit(largest)(scores, jnp.array(real), jnp.array([[count]]))[0], expected)
    alone = jax.jit(largest, static_argnums=2)(scores, jnp.array(real), 1)  # has a shorter way
    np.testing.assert_array_equal(alone[0], np.isin(np.arange(len(values)), order[:1]))


def causal_maps(rng: np.random.Generator, *lead: int, length: int) -> np.ndarray:
    """[..., S, S], rows that sum to 1 over the keys up to the query."""
    raw = np.tril(rng.gamma(0.3, 1.0, (*lead, length, length)) + 1e-3)
    return raw / raw.sum(axis=-1, keepdims=True)


def uniform_map(length: int, block: int) -> np.ndarray:
    """Every query attends equally to its block and all before it, one query at a time."""
    rows = np.zeros((length, length))
    for query in range(length):
        seen = [key for key in range(length) if key // block <= query // block]
        rows[query, seen] = 1 / len(seen)
    return rows


@pytest.mark.slow
@FEW
@given(LENGTHS, st.integers(0, 9), st.integers(0, 9), st.sampled_from([None, 1, 4, 100]))
def test_uniform_attention_scores_one_everywhere(length: int, left: int, right: int, block: int | None) -> None:
    """Whatever sees what, and however the sequence is padded."""
    scores = np.zeros((2, left + length + right), np.float32)
    scores[:, left : left + length] = uniform_map(length, block or 1).sum(axis=0)
    mask = np.zeros(scores.shape, bool)
    mask[:, left : left + length] = True
    how = {"causal": True} if block is None else {"block_length": block}
    found = np.asarray(sinks.visibility_normalised(scores, mask, **how, by="uniform"))
    np.testing.assert_allclose(found[mask], 1, rtol=2e-6)
    assert (found[~mask] == 0).all()
    assert not sinks.detect(found, sinks.Threshold(0.01), mask).any()
    if length >= 64 and block in (None, 1):  # without it, uniform causal attention makes a sink of the first token
        assert sinks.detect(scores, sinks.Threshold(3.0), mask)[:, left].all()


def test_visibility_normalised_against_slow_loops() -> None:
    """Whole maps of a causal model while it writes: [T,L,B,H,S], tokens that exist grow with the step."""
    rng = np.random.default_rng(0)
    maps = causal_maps(rng, 2, 3, 4, length=12)  # [L,B,H,S,S]
    real = np.zeros((3, 3, 12), bool)  # [T,B,S]
    for step, row in np.ndindex(3, 3):
        real[step, row, row : 10 + step] = True
    scores = np.zeros((3, 2, 3, 4, 12), np.float32)
    expected = np.zeros(scores.shape)
    for step, layer, row, head in np.ndindex(3, 2, 3, 4):
        there = np.flatnonzero(real[step, row])
        seen = maps[layer, row, head][np.ix_(there, there)]
        seen = seen / seen.sum(axis=-1, keepdims=True)
        scores[step, layer, row, head, there] = seen.sum(axis=0)
        for number, key in enumerate(there):
            uniform = sum(1 / (query + 1) for query in range(number, len(there)))
            expected[step, layer, row, head, key] = seen[:, number].sum() / uniform
    found = sinks.visibility_normalised(scores, real, causal=True, by="uniform")
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert sinks.track(found, mask=real) is not None
    both = sinks.visibility_normalised(scores, real)  # a bidirectional map stays as it is
    np.testing.assert_array_equal(both, np.where(real[:, None, :, None], scores, 0))
    alone = sinks.visibility_normalised(scores[-1, 0, 1, 0, 1:], causal=True, by="uniform")  # without its padding
    np.testing.assert_allclose(alone, expected[-1, 0, 1, 0, 1:], rtol=1e-5)
    with pytest.raises(JaxsinkError, match="block_length must be a positive whole number or None"):
        sinks.visibility_normalised(scores, block_length=0)
    with pytest.raises(JaxsinkError, match="without causal=True"):
        sinks.visibility_normalised(scores, causal=True, block_length=4)
    with pytest.raises(JaxsinkError, match="by must be one of queries, uniform, not 'rows'"):
        sinks.visibility_normalised(scores, causal=True, by="rows")  # type: ignore[arg-type]


def block_maps(rng: np.random.Generator, length: int, block: int) -> np.ndarray:
    """[S,S], rows that sum to 1 over the keys of the query's block and all before it."""
    raw = rng.gamma(0.3, 1.0, (length, length)) * (uniform_map(length, block) > 0) + 0.0
    return raw / raw.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("block", [1, 3, 4, 100])
@pytest.mark.parametrize(("left", "right"), [(0, 0), (3, 0), (2, 5)])
def test_by_queries_is_the_mean_over_those_that_can_see_a_key_times_their_number(
    block: int, left: int, right: int
) -> None:
    rng, length = np.random.default_rng(block), 11
    seen = np.stack([block_maps(rng, length, block) for _ in range(4)])  # [H,S,S]
    scores = np.zeros((1, 4, left + length + right), np.float32)
    scores[0, :, left : left + length] = seen.sum(axis=1)
    mask = np.zeros((1, left + length + right), bool)
    mask[:, left : left + length] = True
    how = {"causal": True} if block == 1 else {"block_length": block}
    found = np.asarray(sinks.visibility_normalised(scores, mask, **how))
    for head, key in np.ndindex(4, length):
        given = [seen[head, query, key] for query in range(length) if query // block >= key // block]
        assert found[0, head, left + key] == pytest.approx(length * np.mean(given), rel=1e-5)
    assert (found[0, :, ~mask[0]] == 0).all()
    np.testing.assert_array_equal(found, sinks.visibility_normalised(scores, mask, **how, by="queries"))
    both = sinks.visibility_normalised(scores, mask)  # all see all: as it is
    np.testing.assert_array_equal(both, scores)


def test_by_queries_every_query_weighs_the_same() -> None:
    """A key that all who see it attend to alone scores S, be it early or late; by "uniform" the last would win."""
    length = 40
    for key in (0, 20, 39):
        scores = np.zeros(length, np.float32)
        scores[key] = length - key
        assert float(sinks.visibility_normalised(scores, causal=True)[key]) == pytest.approx(length)
