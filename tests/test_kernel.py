"""The Pallas kernel, in interpret mode, against float64 NumPy and the other backends."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from configs import FAMILIES
from hypothesis import given, settings
from hypothesis import strategies as st
from test_forward import lively, sequences

import jaxsink
from jaxsink import attention, parallel, record
from jaxsink.kernels import backend, tiles


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer, drawn at random."""

    batch: int = 2
    queries: int = 20
    keys: int = 20
    kv_heads: int = 2
    group: int = 2
    size: int = 16
    pattern: str = "all"  # or "causal", "window", "blocks"
    padding: str = "left"  # or "none", "gaps", "row": one row of nothing but padding
    drop: str = "none"  # or "some", "most", "every", "factors"
    seed: int = 0
    dtype: str = "float32"


def layer(case: Case) -> attention.Inputs:
    rng = np.random.default_rng(case.seed)
    b, keys, heads = case.batch, case.keys, case.kv_heads * case.group

    def normal(*shape: int, scale: float = 1.0) -> jnp.ndarray:
        return jnp.asarray(scale * rng.standard_normal(shape), case.dtype)

    mask = np.ones((b, keys), bool)
    if case.padding == "left":
        mask[0, : keys // 3] = False
    if case.padding == "gaps":
        mask = rng.random((b, keys)) < 0.7
        mask[:, -1] = True
    if case.padding == "row":
        mask[-1] = False
    drop: Any = None
    if case.drop != "none":
        drop = rng.random((b, heads, keys)) < {"some": 0.2, "most": 0.9, "every": 2.0, "factors": 0.3}[case.drop]
    if case.drop == "factors":
        drop = np.where(drop, 0.0, rng.uniform(0.1, 2.0, drop.shape)).astype(np.float32)
    start = keys - case.queries
    position = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    see = attention.Visibility(
        mask=jnp.asarray(mask),
        key_position=jnp.asarray(position),
        query_position=jnp.asarray(position[:, start:]),
        query_index=start + jnp.arange(case.queries),
        custom=None,
        causal=case.pattern in ("causal", "window"),
        block=4 if case.pattern == "blocks" else None,
        window=5 if case.pattern == "window" else None,
        use_window=None,
    )
    kind = jnp.asarray(rng.integers(0, 3, (b, keys)))
    counted = jnp.asarray(mask & (rng.random((b, 1)) < 0.8))
    return attention.Inputs(
        q=normal(b, case.queries, heads, case.size, scale=2.0),
        k=normal(b, keys, case.kv_heads, case.size),
        v=normal(b, keys, case.kv_heads, case.size),
        visibility=see,
        drop=None if drop is None else jnp.asarray(drop),
        rows=counted[:, start:],
        row_kind=kind[:, start:],
        hidden=normal(b, case.queries, 3),
        layer=jnp.array(0),
        sequence=attention.Sequence(kind, kind, counted),
    )


def in_float64(x: attention.Inputs) -> tuple[np.ndarray, np.ndarray]:
    """(outputs [B,Q,H,D], probabilities [B,H,Q,S]), query by query."""
    q, k, v = (np.asarray(y, np.float64) for y in (x.q, x.k, x.v))
    batch, queries, heads, size = q.shape
    see, group = x.visibility, heads // k.shape[2]
    probs, out = np.zeros((batch, heads, queries, k.shape[1])), np.zeros(q.shape)
    drop = np.zeros((batch, heads, k.shape[1])) if x.drop is None else np.asarray(x.drop)
    factor = np.where(drop, 0.0, 1.0) if x.drop is None or drop.dtype == bool else drop.astype(np.float64)
    for b, h, i in np.ndindex(batch, heads, queries):
        at, real = int(see.query_index[i]), np.asarray(see.mask[b])
        index = np.arange(k.shape[1])
        seen = real.copy()
        if see.causal:
            seen &= index <= at
        if see.window is not None:
            seen &= at - index < see.window
        if see.block is not None:
            seen &= np.asarray(see.key_position[b]) // see.block <= int(see.query_position[b, i]) // see.block
        if not seen.any():
            continue
        weight = factor[b, h] if (seen & (factor[b, h] > 0)).any() else np.ones(k.shape[1])
        scores = k[b, :, h // group] @ q[b, i, h] / np.sqrt(size)
        p = np.where(seen, weight * np.exp(scores - scores[seen].max()), 0.0)
        probs[b, h, i] = p / p.sum()
        out[b, i, h] = probs[b, h, i] @ v[b, :, h // group]
    return out, probs


def check(case: Case, x: attention.Inputs | None = None) -> None:
    x = layer(case) if x is None else x
    out, probs = in_float64(x)
    rows, kind = np.asarray(x.rows), np.asarray(x.row_kind)
    by_kind = [np.einsum("bq,bhqs->bhs", rows & (kind == n), probs) for n in range(3)]
    ours, columns = backend.mix_and_add_up(x, 3)
    assert columns is not None and columns.dtype == jnp.float32 and ours.dtype == x.q.dtype
    assert np.isfinite(np.asarray(ours, np.float32)).all()
    expected = np.stack(by_kind, axis=2)
    tolerance = 1e-6 if case.dtype == "float32" else 1e-5  # the same rounded inputs: only exp and sums differ
    np.testing.assert_allclose(columns, expected, rtol=tolerance * 3, atol=tolerance * max(expected.max(), 1e-30))
    assert (np.asarray(columns)[expected == 0] == 0).all()
    sees = probs.sum(axis=(1, 3)) > 0
    np.testing.assert_allclose(
        np.asarray(ours, np.float64)[sees], out[sees], atol=1e-5 if case.dtype == "float32" else 3e-2
    )
    _, total = backend.mix_and_add_up(x, 1)
    np.testing.assert_allclose(total[:, :, 0], expected.sum(axis=2), rtol=3e-6, atol=tolerance * max(expected.max(), 1))
    alone, nothing = backend.mix_and_add_up(x, 0)
    assert nothing is None
    np.testing.assert_array_equal(np.asarray(alone, np.float32), np.asarray(ours, np.float32))


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles of keys and blocks of queries, without long sequences."""
    monkeypatch.setattr(tiles, "KEY_TILE", 128)
    monkeypatch.setattr(tiles, "QUERY_BLOCK", 128)


cases = st.builds(
    Case,
    batch=st.integers(1, 2),
    queries=st.integers(1, 40),
    keys=st.sampled_from([40, 128, 129]),
    kv_heads=st.integers(1, 2),
    group=st.sampled_from([1, 2, 7]),
    size=st.sampled_from([4, 64, 80, 96, 128, 256]),
    pattern=st.sampled_from(["all", "causal", "window", "blocks"]),
    padding=st.sampled_from(["none", "left", "gaps", "row"]),
    drop=st.sampled_from(["none", "some", "most", "every", "factors"]),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)


@settings(max_examples=12, deadline=None)
@given(case=cases)
def test_any_layer_against_float64(case: Case) -> None:
    check(case)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("drop", ["none", "most", "factors"])
@pytest.mark.parametrize("pattern", ["all", "causal", "window", "blocks"])
def test_several_tiles_against_float64(pattern: str, drop: str) -> None:
    check(Case(batch=1, queries=290, keys=300, group=1, kv_heads=2, pattern=pattern, padding="gaps", drop=drop, seed=3))
