"""Programs that differ and yet give the same bits, compiled as users compile them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively, sequences

import jaxsink
from jaxsink.nn.cache import put, put_by_product
from jaxsink.nn.layer import Layer
from jaxsink.recording import recorders as record


@pytest.mark.parametrize("backend", ["naive", "blocked"])
@pytest.mark.parametrize("family", ["llada", "llama3.1"])
def test_a_row_that_would_lose_every_key_ignores_the_drop(family: str, backend: str) -> None:
    config = FAMILIES[family]
    model = lively(config)
    tokens, mask = sequences(config)
    everything = np.ones((config.layers, 3, config.heads, 13), bool)
    plain = jaxsink.forward(model, tokens, mask, record=record.maps(), backend=backend)
    out = jaxsink.forward(model, tokens, mask, drop=everything, record=record.maps(), backend=backend)
    np.testing.assert_array_equal(out.logits, plain.logits)
    np.testing.assert_array_equal(out.record, plain.record)


@pytest.mark.parametrize("family", ["llada", "dream", "qwen3"])
def test_heads_told_apart_before_the_slice_are_the_same_model_and_for_tpu_only(family: str, monkeypatch) -> None:
    model = lively(FAMILIES[family], seed=3, size=0.02)
    tokens = np.arange(24).reshape(2, 12) % 70
    before = jaxsink.forward(model, tokens, record=record.received())
    jax.clear_caches()
    used = []
    by_head = Layer.by_head
    monkeypatch.setattr(Layer, "by_head", lambda self: used.append(family) or by_head(self))
    np.testing.assert_array_equal(jaxsink.forward(model, tokens).logits, before.logits)
    assert not used
    jax.clear_caches()
    monkeypatch.setattr("jaxsink.nn.transformer.on_tpu", lambda mesh: True)
    after = jaxsink.forward(model, tokens, record=record.received())
    assert used
    np.testing.assert_allclose(after.logits, before.logits, atol=1e-6)
    np.testing.assert_allclose(after.record, before.record, atol=1e-5)


@pytest.mark.parametrize("layer", [None, 1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_keys_moved_by_a_product_are_the_same_keys(dtype: str, layer: int | None) -> None:
    """What a TPU does in place of writing row by row, with positions out of range, which are not written."""
    rng = np.random.default_rng(0)
    half = jnp.asarray(rng.standard_normal((2, 3, 9, 4) if layer is None else (3, 2, 3, 9, 4)), dtype)
    new = jnp.asarray(rng.standard_normal((2, 3, 4, 4)) * 1e3, dtype)
    position = jnp.array([[9, 0, 1, 2], [5, 6, 7, 9]])
    index = None if layer is None else jnp.int32(layer)
    moved = put_by_product(half, new, position, index)
    np.testing.assert_array_equal(moved, put(half, new, position, index))
    changed = np.asarray((moved != half).any(axis=(-3, -1)))
    assert changed[..., 0, :].reshape(-1, 9).any(axis=0).nonzero()[0].tolist() == [0, 1, 2]
