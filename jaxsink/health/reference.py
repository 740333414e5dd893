"""A layer of attention with everything that a backend has to get right, and what it gives in float64 NumPy."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float64

from jaxsink.nn.batch import KINDS, Keys
from jaxsink.nn.context import LayerContext, Queries, Visibility
from jaxsink.nn.taps import Tap


class Layer(NamedTuple):
    """What is checked: outputs of the heads, and attention that each key receives by kind of query."""

    tap: Tap
    outputs: Float64[np.ndarray, "B S H D"]
    received: Float64[np.ndarray, "B H N S"]


def make_layer(dtype: str, length: int, head_dim: int = 64, seed: int = 0) -> Layer:
    """Two causal sequences, one of them padded; four heads share two kv heads; a fifth of the keys is hidden."""
    rng = np.random.default_rng(seed)
    batch, heads, kv_heads = 2, 4, 2
    q, k, v = (
        jnp.asarray(rng.standard_normal((batch, length, count, head_dim)), dtype)
        for count in (heads, kv_heads, kv_heads)
    )
    real = np.ones((batch, length), bool)
    real[0, : length // 4] = False
    drop = rng.random((batch, heads, length)) < 0.2
    kind = rng.integers(0, len(KINDS), (batch, length))
    counted, kinds, position = jnp.asarray(real), jnp.asarray(kind), jnp.arange(length)
    token_position = jnp.asarray(np.maximum(np.cumsum(real, axis=1) - 1, 0))
    context = LayerContext(
        Keys(counted, kinds, kinds),
        Queries(counted, position, kinds, token_position),
        Visibility(counted, token_position, causal=True),
        layer=jnp.array(0),
        drop=jnp.asarray(drop),
    )
    outputs, probs = in_float64(q, k, v, real, drop)
    asks = np.stack([real & (kind == n) for n in range(len(KINDS))], axis=1)
    received = np.einsum("bnq,bhqs->bhns", asks, probs)
    return Layer(Tap(context, q, k, v, jnp.zeros((batch, length, 1))), outputs, received)


def in_float64(q, k, v, real: np.ndarray, drop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(outputs [B,S,H,D], probabilities [B,H,S,S]), those of padded queries zero."""
    q, k, v = (np.asarray(x, np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    seen = np.tril(np.ones((q.shape[2],) * 2, bool)) & real[:, None, None] & real[:, None, :, None]
    left = seen & ~drop[:, :, None]
    left = np.where(left.any(axis=-1, keepdims=True), left, seen)  # no query goes blind
    scores = np.where(left, q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1]), -1e9)
    weights = left * np.exp(scores - scores.max(axis=-1, keepdims=True))
    probs = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)
    return (probs @ v).transpose(0, 2, 1, 3), probs
