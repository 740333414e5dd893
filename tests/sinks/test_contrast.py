"""What sets sinks apart: queries of different kinds, lengths of vectors, parts of the logit; against slow loops."""

from __future__ import annotations

import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively, sequences
from support.shape_checks import no_shape_checks

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.recording import recorders as record
from jaxsink.sinks import Threshold, at_sinks, detect, scale_to_all_queries, split_by_query

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def maps() -> np.ndarray:
    """[B,H,Q,S] rows that sum to 1."""
    raw = np.random.default_rng(0).gamma(0.2, 1.0, (2, 3, 10, 10)) + 1e-3
    return (raw / raw.sum(axis=-1, keepdims=True)).astype(np.float32)


def test_scores_of_a_kind_are_scaled_as_if_all_queries_were_of_it(maps) -> None:
    masked = np.arange(10) >= 6
    by_query = {"masked": maps[:, :, masked].sum(axis=2), "unmasked": maps[:, :, ~masked].sum(axis=2)}
    scaled = scale_to_all_queries(by_query)
    np.testing.assert_allclose(scaled["masked"], maps[:, :, masked].mean(axis=2) * 10, rtol=1e-5)
    np.testing.assert_allclose(scaled["unmasked"], maps[:, :, ~masked].mean(axis=2) * 10, rtol=1e-5)
    nobody = scale_to_all_queries(
        {"masked": np.zeros((1, 1, 4), np.float32), "unmasked": np.ones((1, 1, 4), np.float32)}
    )
    assert (np.asarray(nobody["masked"]) == 0).all()


def test_split_by_query(maps) -> None:
    kinds = np.array([2, 2, 1, 1, 1, 0, 0, 0, 0, 0])
    names = dict(zip(("masked", "unmasked", "prompt"), (0, 1, 2), strict=True))
    by_query = {name: maps[:, :, kinds == n].sum(axis=2) for name, n in names.items()}
    split = split_by_query(by_query, Threshold(0.5))
    for row, head in np.ndindex(2, 3):
        of_masked = maps[row, head, kinds == 0].mean(axis=0) * 10
        of_others = maps[row, head, kinds != 0].mean(axis=0) * 10

        def sinks(score: np.ndarray) -> list[bool]:
            return [bool(score[j] > np.delete(score, j).mean() + 0.5) for j in range(10)]

        one, other = np.array(sinks(of_masked)), np.array(sinks(of_others))
        np.testing.assert_array_equal(split.masked[row, head], one)
        np.testing.assert_array_equal(split.unmasked[row, head], other)
        assert bool(split.same_top[row, head]) == (of_masked.argmax() == of_others.argmax())
        assert float(split.overlap[row, head]) == pytest.approx((one & other).sum() / (one | other).sum())
    with no_shape_checks(), pytest.raises(JaxsinkError, match="by_query must be a mapping"):
        split_by_query(maps)


def test_figures_at_sinks_against_elsewhere() -> None:
    rng = np.random.default_rng(1)
    values, sinks = rng.random((2, 3, 2, 8)).astype(np.float32), rng.random((2, 3, 4, 8)) < 0.3  # [L,B,K,S], [L,B,H,S]
    sinks[0, 0, 0] = False
    mask = rng.random((3, 8)) < 0.8
    found = at_sinks(values, sinks, mask)
    for layer, row, head in np.ndindex(2, 3, 4):
        of_head = values[layer, row, head // 2]
        here, there = of_head[sinks[layer, row, head] & mask[row]], of_head[~sinks[layer, row, head] & mask[row]]
        expected = here.mean() if len(here) else np.nan
        np.testing.assert_allclose(found.sinks[layer, row, head], expected, rtol=1e-5)
        np.testing.assert_allclose(found.elsewhere[layer, row, head], there.mean(), rtol=1e-5)
        np.testing.assert_allclose(found.ratio[layer, row, head], expected / there.mean(), rtol=1e-5)
    with pytest.raises(JaxsinkError, match="do not fit"):
        at_sinks(values[0], sinks)


@pytest.mark.parametrize("backend", ["naive", "blocked"])
@pytest.mark.parametrize("family", ["llada", "llama3.1"])
def test_parts_of_the_logit(family: str, backend: str) -> None:
    config = FAMILIES[family]
    model, (tokens, mask) = lively(config), sequences(config)
    wanted = {"parts": record.logit_parts(), "tap": lambda tap: {"q": tap.q, "k": tap.k, "probs": tap.probs}}
    out = jaxsink.forward(model, tokens, mask, record=wanted, backend=backend)
    q, k, probs = (np.asarray(out.record["tap"][name], np.float64) for name in ("q", "k", "probs"))
    group = config.heads // config.kv_heads
    for layer, row, head, key in np.ndindex(config.layers, 3, config.heads, tokens.shape[1]):
        queries = [i for i in range(tokens.shape[1]) if probs[layer, row, head, i, key] > 0]
        vector = k[layer, row, key, head // group]
        products = np.array([q[layer, row, i, head] @ vector for i in queries])
        lengths = np.array([np.linalg.norm(q[layer, row, i, head]) for i in queries])
        found = {name: float(value[layer, row, head, key]) for name, value in out.record["parts"].items()}
        if not queries:
            assert set(found.values()) == {0.0}
            continue
        assert found["query"] == pytest.approx(lengths.mean(), rel=1e-4)
        assert found["key"] == pytest.approx(np.linalg.norm(vector), rel=1e-4)
        assert found["cosine"] == pytest.approx((products / lengths / np.linalg.norm(vector)).mean(), abs=1e-4)
        assert found["logit"] == pytest.approx(products.mean() / np.sqrt(config.head_dim), abs=1e-4)


def test_value_norms_at_the_sinks_of_a_model() -> None:
    config = FAMILIES["dream"]
    model, (tokens, mask) = lively(config), sequences(config)
    out = jaxsink.forward(model, tokens, mask, record={"r": record.received(), "v": record.value_norm()})
    sinks = detect(out.record["r"], Threshold(1.0), mask)
    found = at_sinks(out.record["v"], sinks, mask)
    assert found.ratio.shape == (config.layers, 3, config.heads) and np.isfinite(np.asarray(found.elsewhere)).all()
