"""The recorders of nulls: each against maps that are moved round or split in plain loops, with the same draws."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively, sequences
from support.planted import VOCAB, planted_model

import jaxsink
from jaxsink.recording import recorders as record
from jaxsink.recording.rerouted import takeover
from jaxsink.recording.shuffled import SEED, received_random_split, received_shuffled

pytestmark = pytest.mark.usefixtures("quick_compilation")
NULLS = {"shuffled": received_shuffled(), "random": received_random_split()}
WANTED = {**NULLS, "maps": record.maps(), "received": record.received(), "kinds": record.received_by_query()}


def drawn(seed: int, layer: int, position: int, count: int) -> np.ndarray:
    """Uniform numbers of a token position in a layer."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), layer), position)
    return np.asarray(jax.random.uniform(key, (count,)))


def visible(config: jaxsink.ModelConfig, layer: int, mask: np.ndarray, query: int) -> np.ndarray:
    """The keys that a query of one sequence sees, in order, by the rules of the families that are tested here."""
    there = np.flatnonzero(mask)
    if config.is_diffusion:
        return there
    near = config.window is not None and (config.window_layers is None or config.window_layers[layer])
    return np.array([key for key in there if key <= query and not (near and query - key >= config.window)])


def slow_shuffled(config: jaxsink.ModelConfig, maps: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """f64[L,B,H,S] from maps [L,B,H,S,S], a row at a time."""
    layers, batch, heads, length, _ = maps.shape
    received = np.zeros((layers, batch, heads, length))
    for layer, row in np.ndindex(layers, batch):
        for number, query in enumerate(np.flatnonzero(mask[row])):
            keys, chance = visible(config, layer, mask[row], query), drawn(SEED, layer, number, heads)
            for head in range(heads):
                moved = np.roll(maps[layer, row, head, query, keys], -int(chance[head] * len(keys)))
                assert moved.sum() == pytest.approx(1, abs=1e-5)
                received[layer, row, head, keys] += moved
    return received


def tokens_of(config: jaxsink.ModelConfig) -> tuple[np.ndarray, np.ndarray]:
    tokens, mask = sequences(config)
    if config.mask_id is not None:
        tokens[:, [4, 7, 8]] = config.mask_id
    return tokens, mask


@pytest.mark.parametrize("family", ["dream", "llama3.1", "qwen2_window"])
def test_shuffled_moves_each_row_round_among_the_keys_that_it_sees(family: str) -> None:
    config = FAMILIES[family]
    tokens, mask = tokens_of(config)
    out = jaxsink.forward(lively(config), tokens, mask, record=WANTED).record
    maps, found = np.asarray(out["maps"], np.float64), np.asarray(out["shuffled"])
    np.testing.assert_allclose(found, slow_shuffled(config, maps, mask), atol=1e-5)
    np.testing.assert_allclose(found.sum(-1), np.broadcast_to(mask.sum(1)[:, None], found.shape[:-1]), rtol=1e-5)
    assert (found[:, ~mask.astype(bool)[:, None].repeat(found.shape[2], 1)] == 0).all()
    assert not np.allclose(found, out["received"], atol=0.1)
    if not config.is_diffusion:  # a key gets at most 1 from each query that sees it: what is causal stays so
        seen_by = mask.sum(1, keepdims=True) - np.cumsum(mask, 1) + 1
        assert (found <= np.where(mask, seen_by, 0)[None, :, None] + 1e-5).all()


def test_heads_and_layers_move_by_distances_of_their_own() -> None:
    distances = {
        (layer, head): [drawn(SEED, layer, n, 6)[head] for n in range(5)] for layer in (0, 1) for head in (0, 1)
    }
    assert len({tuple(map(float, values)) for values in distances.values()}) == 4


def test_a_random_split_has_as_many_queries_as_are_masked() -> None:
    config = FAMILIES["dream"]
    tokens, mask = tokens_of(config)
    tokens[2, 9] = config.mask_id  # another number in each sequence
    out = jaxsink.forward(lively(config), tokens, mask, record=WANTED).record
    maps, found = np.asarray(out["maps"], np.float64), np.asarray(out["random"])
    layers, batch = maps.shape[:2]
    masked = (tokens == config.mask_id) & mask
    assert len(set(masked.sum(1))) > 1
    for layer, row in np.ndindex(layers, batch):
        there = np.flatnonzero(mask[row])
        chance = [drawn(SEED + 1, layer, number, 1)[0] for number in range(len(there))]
        chosen = there[np.argsort(chance)[: masked[row].sum()]]
        np.testing.assert_allclose(found[layer, row], maps[layer, row][:, chosen].sum(1), atol=1e-5)
    np.testing.assert_allclose(found.sum(-1), np.broadcast_to(masked.sum(1)[:, None], found.shape[:-1]), rtol=1e-5)
    np.testing.assert_allclose(found.sum(-1), np.asarray(out["kinds"]["masked"]).sum(-1), rtol=1e-5)
    assert not np.allclose(found, out["kinds"]["masked"], atol=0.1)


@pytest.mark.parametrize("family", ["dream", "llama3.1"])
def test_neither_batch_nor_padding_nor_backend_changes_them(family: str) -> None:
    config = FAMILIES[family]
    model = lively(config)
    tokens, mask = sequences(config, length=150)  # more than one block of queries
    mask[1, 9:] = True
    if config.mask_id is not None:
        tokens[:, 100:120] = config.mask_id
    plain = jaxsink.forward(model, tokens, mask, record=NULLS, backend="naive").record
    blocked = jaxsink.forward(model, tokens, mask, record=NULLS, backend="blocked").record
    alone = jaxsink.forward(model, tokens[:1, 3:], record=NULLS).record  # without its padding, and by itself
    for name, values in plain.items():
        np.testing.assert_allclose(blocked[name], values, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(alone[name][:, 0], values[:, 0, :, 3:], rtol=2e-4, atol=2e-4)


def test_whole_maps_of_an_autoregressive_run_are_those_of_a_pass() -> None:
    model = lively(FAMILIES["llama3.1"])
    sampler = jaxsink.ARSampler(4, stop_at_eos=False, whole_map=True)
    out = jaxsink.generate(model, [[5, 6, 7, 8, 9], [10, 11, 12]], sampler, record={"shuffled": received_shuffled()})
    tokens, there = np.asarray(out.tokens), out.real_at()
    for step in range(4):
        whole = jaxsink.forward(model, tokens, there[step], record=received_shuffled()).record
        np.testing.assert_allclose(out.record["shuffled"][step], whole, rtol=2e-4, atol=1e-5)


def test_what_many_queries_share_is_gone_and_what_one_query_prefers_is_not() -> None:
    """Every query of a planted model looks at one key: moved round, each key gets its part by chance."""
    strength = np.zeros((1, 1, VOCAB), np.float32)
    strength[..., 2] = 12.0  # all but certain
    tokens = np.full((1, 60), 3)
    tokens[0, 30] = 2
    out = jaxsink.forward(planted_model(strength), tokens, record={**NULLS, "received": record.received()}).record
    assert float(out["received"][0, 0, 0, 30]) > 59
    counts = np.round(np.asarray(out["shuffled"])[0, 0, 0])
    assert counts.sum() == 60 and counts.max() < 8 and (counts > 0).sum() > 25


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_on_a_cache_they_are_of_the_queries_that_run(cache: str) -> None:
    """The last passes on a prefix cache are padded beyond the sequence."""
    sampler = jaxsink.LLaDASampler(12, 6, 4, cache=cache)
    wanted = {**WANTED, "diagonal": record.diagonal(), "takeover": takeover()}
    del wanted["maps"]
    out = jaxsink.generate(lively(FAMILIES["llada"]), [[5, 6, 7, 8, 9], [10, 11, 12]], sampler, record=wanted).record
    assert out["shuffled"].shape == out["random"].shape == out["received"].shape
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(out))
    assert (out["diagonal"] > 0).all() and (out["diagonal"] < 1).all()
    np.testing.assert_allclose(out["shuffled"].sum(-1), out["received"].sum(-1), rtol=1e-4)
    assert not np.allclose(out["shuffled"], out["received"], atol=0.1)
