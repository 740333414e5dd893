"""What keys add to the residual stream, and attention on the diagonal: by NumPy in float64, from the definitions."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively, sequences
from support.reference.transformer import _float64, _layer

import jaxsink
from jaxsink.parallel import make_mesh, shard
from jaxsink.recording import recorders as record

pytestmark = pytest.mark.usefixtures("quick_compilation")
WANTED = {"added": record.contribution(), "own": record.diagonal()}
SEEN = {"tap": lambda tap: {"probs": tap.probs, "v": tap.v}}
# grouped queries with biases, biases of the output too, a mixed stack with windows, blocks, many kv heads
CASES = ("dream", "gpt2", "mixed", "sdar", "llada")


def slow(model: jaxsink.Model, probs: np.ndarray, v: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(contribution [L,B,H,S], diagonal [L,B,H]) of attention [L,B,H,S,S] and values [L,B,S,K,D]."""
    config = model.config
    params, size, group = _float64(model.params), config.head_dim, config.heads // config.kv_heads
    layers, batch, heads, length = probs.shape[:4]
    added, own = np.zeros((layers, batch, heads, length)), np.zeros((layers, batch, heads))
    for layer, row, head in np.ndindex(layers, batch, heads):
        output = _layer(config, params["layers"], layer)["attention"]["o"]["weight"][:, head * size : (head + 1) * size]
        real = np.flatnonzero(mask[row])
        for key in real:
            written = output @ v[layer, row, key, head // group]
            added[layer, row, head, key] = sum(
                probs[layer, row, head, query, key] * np.sqrt((written**2).sum()) for query in real
            )
        own[layer, row, head] = np.mean([probs[layer, row, head, query, query] for query in real])
    return added, own


def whole_map(model: jaxsink.Model, tokens: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    seen = jaxsink.forward(model, tokens, mask, record=SEEN).record["tap"]
    return slow(model, np.asarray(seen["probs"], np.float64), np.asarray(seen["v"], np.float64), mask)


@pytest.mark.parametrize("family", CASES)
def test_against_loops(family: str) -> None:
    config = FAMILIES[family]
    model, (tokens, mask) = lively(config), sequences(config)
    out = jaxsink.forward(model, tokens, mask, record=WANTED).record
    added, own = whole_map(model, tokens, mask)
    np.testing.assert_allclose(out["added"], added, rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(out["own"], own, rtol=1e-5, atol=1e-6)
    assert (np.asarray(out["added"])[:, ~mask[:, None, :].repeat(config.heads, 1)] == 0).all()
    assert out["added"].shape == (config.layers, 3, config.heads, 13) and out["own"].shape == out["added"].shape[:3]
    assert np.asarray(out["added"]).max() > 0.1


@pytest.mark.parametrize("family", ["dream", "mixed"])
def test_neither_blocks_nor_padding_nor_devices_nor_layout_change_them(family: str) -> None:
    model = lively(FAMILIES[family])
    tokens, mask = sequences(FAMILIES[family], length=150)  # more than one block of queries
    plain = jaxsink.forward(model, tokens, mask, record=WANTED, backend="naive").record
    others = [
        jaxsink.forward(model, tokens, mask, record=WANTED, backend="blocked").record,
        jaxsink.forward(model.unrolled(), tokens, mask, record=WANTED, backend="pallas").record,
        jaxsink.forward(shard(model, make_mesh(2, 2, jax.devices()[:4])), tokens[:2], mask[:2], record=WANTED).record,
    ]
    for other in others:
        count = other["own"].shape[1]
        jax.tree.map(lambda a, b, n=count: np.testing.assert_allclose(a[:, :n], b, rtol=2e-4, atol=2e-5), plain, other)
    alone = jaxsink.forward(model, tokens[:1, 3:], record=WANTED).record  # without its padding
    np.testing.assert_allclose(alone["added"][:, 0], plain["added"][:, 0, :, 3:], rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(alone["own"][:, 0], plain["own"][:, 0], rtol=2e-4)


def test_rounded_weights_count_as_what_they_stand_for() -> None:
    model = lively(FAMILIES["llama3.1"])
    tokens, mask = sequences(model.config)
    rounded = model.astype("int8")
    seen = jaxsink.forward(rounded, tokens, mask, record={**WANTED, **SEEN}).record
    exact = lively(FAMILIES["llama3.1"])  # the same weights before they were rounded
    added, _ = slow(exact, *(np.asarray(seen["tap"][name], np.float64) for name in ("probs", "v")), mask)
    np.testing.assert_allclose(seen["added"], added, rtol=0.05, atol=1e-3)


def test_an_autoregressive_run_adds_up_to_the_whole_map() -> None:
    """Every step of whole_map=True is a pass over the tokens so far; without it, the newest query alone."""
    model = lively(FAMILIES["llama3.1"])
    prompts = [[5, 6, 7, 8, 9], [10, 11, 12]]
    sampler = jaxsink.ARSampler(4, stop_at_eos=False, whole_map=True)
    out = jaxsink.generate(model, prompts, sampler, record=WANTED)
    newest = jaxsink.generate(model, prompts, jaxsink.ARSampler(4, stop_at_eos=False), record=WANTED)
    tokens, there = np.asarray(out.tokens), out.real_at()
    for step in range(4):
        added, own = whole_map(model, tokens, there[step])
        np.testing.assert_allclose(out.record["added"][step], added, rtol=2e-4, atol=1e-5)
        np.testing.assert_allclose(out.record["own"][step], own, rtol=1e-4)
        seen = jaxsink.forward(model, tokens, there[step], record=SEEN).record["tap"]["probs"]
        last = 4 + step
        np.testing.assert_allclose(newest.record["own"][step], seen[:, :, :, last, last], rtol=1e-4)


def test_a_value_that_is_nothing_contributes_nothing() -> None:
    """All attention on one key whose value is zero: what is received is large, what is added is 0."""
    config = FAMILIES["llama3.1"]
    model = lively(config)
    still = jax.tree.map(lambda x: x, model)
    still.layers.attention.v.weight[...] = 0 * model.layers.attention.v.weight[...]
    tokens, mask = sequences(config)
    out = jaxsink.forward(still, tokens, mask, record={"added": record.contribution(), "got": record.received()}).record
    assert float(np.asarray(out["got"]).max()) > 1 and float(np.asarray(out["added"]).max()) == 0
