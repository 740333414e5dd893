"""Layers drawn at random for the attention kernels, and what they give by whole maps in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import triton

from jaxsink.nn.batch import Keys
from jaxsink.nn.context import LayerContext, Queries, Visibility
from jaxsink.nn.kernels import arrays, gpu, tiles, tpu
from jaxsink.recording import recorders as record

Kernel = Callable[..., Any]
KERNELS: dict[str, Kernel] = {
    "tpu": partial(tpu.on_tpu_device, budget=tiles.SMALL_VMEM, interpret=True),
    "gpu": partial(gpu.on_gpu_device, interpret=True),
}


def one_program(name: str) -> Kernel:
    run = jax.jit(partial(KERNELS[name]), static_argnames="kinds")
    return lambda x, kinds: run(arrays.arrays_of(x), kinds=kinds)


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


def layer(case: Case) -> record.Tap:
    rng = np.random.default_rng(case.seed)
    b, keys, heads = case.batch, case.keys, case.kv_heads * case.group

    def normal(*shape: int) -> jnp.ndarray:
        return jnp.asarray(rng.standard_normal(shape), case.dtype)

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
    see = Visibility(
        jnp.asarray(mask),
        jnp.asarray(position),
        causal=case.pattern in ("causal", "window"),
        block=4 if case.pattern == "blocks" else None,
        window=5 if case.pattern == "window" else None,
    )
    kind = jnp.asarray(rng.integers(0, 3, (b, keys)))
    counted = jnp.asarray(mask & (rng.random((b, 1)) < 0.8))
    context = LayerContext(
        Keys(counted, kind, kind),
        Queries(
            counted[:, start:], start + jnp.arange(case.queries), kind[:, start:], jnp.asarray(position[:, start:])
        ),
        see,
        layer=jnp.array(0),
        drop=None if drop is None else jnp.asarray(drop),
    )
    return record.Tap(
        context,
        q=normal(b, case.queries, heads, case.size),
        k=normal(b, keys, case.kv_heads, case.size),
        v=normal(b, keys, case.kv_heads, case.size),
        hidden=normal(b, case.queries, 3),
    )


def in_float64(x: record.Tap) -> tuple[np.ndarray, np.ndarray]:
    """(outputs [B,Q,H,D], probabilities [B,H,Q,S]); rows that see no key are zero."""
    q, k, v = (np.asarray(y, np.float64).transpose(0, 2, 1, 3) for y in (x.q, x.k, x.v))
    k, v = (np.repeat(y, q.shape[1] // k.shape[1], axis=1) for y in (k, v))
    see, queries, drop = x.context.visibility, x.context.queries, x.context.drop
    distance = np.asarray(queries.position)[:, None] - np.arange(k.shape[2])
    seen = np.asarray(see.real)[:, None, None, :] & np.ones(distance.shape, bool)
    if see.causal:
        seen &= distance >= 0
    if see.window is not None and (see.use_window is None or bool(see.use_window)):
        seen &= distance < see.window
    if see.block is not None:
        of_key, of_query = (np.asarray(y) // see.block for y in (see.token_position, queries.token_position))
        seen &= (of_key[:, None, :] <= of_query[:, :, None])[:, None]
    factor = np.ones((q.shape[0], q.shape[1], k.shape[2]))
    if drop is not None:
        factor = np.where(drop, 0.0, 1.0) if drop.dtype == bool else np.asarray(drop, np.float64)
    weight = seen * factor[:, :, None, :]
    weight = np.where(weight.any(axis=-1, keepdims=True), weight, seen)  # no row goes blind
    scores = np.where(weight > 0, q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1]), -1e9)
    weight = weight * np.exp(scores - scores.max(axis=-1, keepdims=True))
    probs = weight / np.maximum(weight.sum(axis=-1, keepdims=True), 1e-300)
    return (probs @ v).transpose(0, 2, 1, 3), probs


def by_kind(x: record.Tap, probs: np.ndarray) -> np.ndarray:
    """[B,H,3,S]."""
    kind = np.where(x.query_mask, x.query_kind, -1)
    return np.stack([np.einsum("bq,bhqs->bhs", kind == n, probs) for n in range(3)], axis=2)


def check(case: Case, kernel: Kernel, sums: float = 1e-6) -> None:
    """sums: the largest error of what a key receives, relative to the most that any does."""
    x = layer(case)
    out, probs = in_float64(x)
    expected = by_kind(x, probs)
    ours, columns = kernel(x, 3)
    assert columns.dtype == jnp.float32 and ours.dtype == x.q.dtype
    largest = np.maximum(expected.max(axis=(1, 2, 3), keepdims=True), 1e-30)
    assert (np.abs(columns - expected) / largest).max() <= sums  # bfloat16 as well: sums stay in float32
    assert (np.asarray(columns)[expected == 0] == 0).all()
    ours = np.asarray(ours, np.float64)
    assert np.isfinite(ours).all()
    sees = probs.sum(axis=(1, 3)) > 0
    tolerance = 2e-6 if case.dtype == "float32" else 1e-2
    np.testing.assert_allclose(ours[sees], out[sees], atol=tolerance * np.abs(out).max(initial=1.0))


def check_reach(kernel: Kernel) -> None:
    """The GPU kernel writes every entry of its results once and nothing beyond them, and reads nothing beyond its operands.

    Interpret mode pads what a program sees with NaN, and cuts off what it writes there; a GPU has other memory there.
    """
    load, store = triton.load, triton.store
    written: list[int] = []
    beyond: list[int] = []

    def counting_store(ref: Any, value: jnp.ndarray, *, mask: Any = None) -> None:
        inside = jnp.broadcast_to(True if mask is None else mask, value.shape)
        jax.debug.callback(lambda count: written.append(int(count)), inside.sum())
        store(ref, value, mask=mask)

    def counting_load(ref: Any, *, mask: Any = None, other: Any = None) -> jnp.ndarray:
        value = load(ref, mask=mask, other=other)
        if jnp.issubdtype(value.dtype, jnp.floating):
            jax.debug.callback(lambda count: beyond.append(int(count)), jnp.isnan(value).sum())
        return value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton, "store", counting_store)
        patch.setattr(triton, "load", counting_load)
        out, columns = kernel(layer(Case(batch=1, queries=33, keys=129, size=80, pattern="causal", drop="some")), 3)
        jax.effects_barrier()
    of_softmax = 2 * out.size // out.shape[-1]  # two numbers of every query
    assert sum(written) == out.size + of_softmax + columns.size
    assert beyond and sum(beyond) == 0
