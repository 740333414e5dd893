"""Where attention goes without a key, and where it comes from: both from whole maps, query by query, in plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively, sequences

import jaxsink
from jaxsink.recording import recorders as record
from jaxsink.recording.rerouted import takeover, without_top

pytestmark = pytest.mark.usefixtures("quick_compilation")


def slow_strongest(probs: np.ndarray, mask: np.ndarray, causal: bool) -> int:
    """Of one head [Q,S]: the key with the largest mean over the queries that see it."""
    queries = np.flatnonzero(mask)
    means = {key: np.mean([probs[q, key] for q in queries if not causal or q >= key]) for key in queries}
    return max(means, key=lambda key: (means[key], -key))


@pytest.mark.parametrize("family", ["dream", "llama3.1"])
def test_without_its_top_key_a_map_is_shared_in_proportion(family: str) -> None:
    config = FAMILIES[family]
    tokens, mask = sequences(config)
    out = jaxsink.forward(lively(config), tokens, mask, record={"top": without_top(), "maps": record.maps()}).record
    maps, found = np.asarray(out["maps"], np.float64), {name: np.asarray(x) for name, x in out["top"].items()}
    for layer, row, head in np.ndindex(maps.shape[:3]):
        probs = maps[layer, row, head]
        key = slow_strongest(probs, mask[row], not config.is_diffusion)
        assert found["key"][layer, row, head] == key
        received, own = np.zeros(len(probs)), 0.0
        for query in np.flatnonzero(mask[row]):
            left = np.delete(probs[query], key)
            sees_more = left.sum() > 0
            shared = np.insert(left / left.sum(), key, 0.0) if sees_more else probs[query]
            received += shared
            own += shared[query]
        np.testing.assert_allclose(found["paid"][layer, row, head], probs[:, key], atol=1e-6)
        np.testing.assert_allclose(found["received"][layer, row, head], received, atol=1e-5)
        assert found["own"][layer, row, head] == pytest.approx(own, abs=1e-5)


@pytest.mark.parametrize("family", ["dream", "llama3.1"])
def test_in_the_first_layer_a_hidden_key_is_shared_in_proportion_and_later_not(family: str) -> None:
    config = FAMILIES[family]
    model, (tokens, mask) = lively(config), sequences(config)
    clean = jaxsink.forward(model, tokens, mask, record=without_top()).record
    drop = np.arange(tokens.shape[1]) == np.asarray(clean["key"])[..., None]
    wanted = {"received": record.received(), "own": record.diagonal()}
    after = jaxsink.forward(model, tokens, mask, drop=drop, record=wanted).record
    np.testing.assert_allclose(after["received"][0], clean["received"][0], atol=1e-5)
    np.testing.assert_allclose(after["own"][0] * mask.sum(axis=1)[:, None], clean["own"][0], atol=1e-5)
    assert not np.allclose(after["received"][-1], clean["received"][-1], atol=1e-2)


def test_neither_batch_nor_padding_nor_backend_changes_it() -> None:
    config = FAMILIES["dream"]
    model, (tokens, mask) = lively(config), sequences(config)
    plain = jaxsink.forward(model, tokens, mask, record=without_top(), backend="naive").record
    blocked = jaxsink.forward(model, tokens, mask, record=without_top(), backend="blocked").record
    alone = jaxsink.forward(model, tokens[:1, 3:], record=without_top()).record
    np.testing.assert_array_equal(np.asarray(alone["key"])[:, 0], np.asarray(plain["key"])[:, 0] - 3)
    for name in ("paid", "received", "own"):
        np.testing.assert_allclose(blocked[name], plain[name], atol=1e-5)
        whole = np.asarray(plain[name])[:, 0]
        np.testing.assert_allclose(np.asarray(alone[name])[:, 0], whole if name == "own" else whole[..., 3:], atol=1e-5)


def test_a_takeover_is_counted_over_the_queries_that_turn() -> None:
    config = FAMILIES["dream"]
    tokens, mask = sequences(config)
    later = tokens.copy()
    later[:, [5, 7]] = 3
    both, there = np.concatenate([tokens, later]), np.tile(mask, (2, 1))
    out = jaxsink.forward(lively(config), both, there, record={"turn": takeover(), "maps": record.maps()}).record
    maps, found = np.asarray(out["maps"], np.float64), {name: np.asarray(x) for name, x in out["turn"].items()}
    turned = 0
    for layer, row, head in np.ndindex(*found["gain"].shape):
        before, after = maps[layer, row, head], maps[layer, row + len(tokens), head]
        key = slow_strongest(after, mask[row], causal=False)
        sums = np.zeros(3)
        for query in np.flatnonzero(mask[row]):
            gain = after[query, key] - before[query, key]
            if gain > 0 and query != key:
                own = before[query, query]
                share = own / (1 - before[query, key])  # of what the query pays to other keys
                sums += gain, own - after[query, query], share * gain
                turned += 1
        values = [found[name][layer, row, head] for name in ("gain", "from_self", "in_proportion")]
        np.testing.assert_allclose(values, sums, atol=1e-5)
        real = mask[row]
        for name, probs in (("before", before), ("after", after)):
            assert found[name][layer, row, head] == pytest.approx(np.diag(probs)[real].mean(), abs=1e-6)
    assert turned > 20
