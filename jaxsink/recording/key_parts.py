"""Recorders of why a key gets its attention (lengths and angles), and of what it adds to the residual stream for it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Float32

from jaxsink.nn.recorder import Recorder, SeesKeys, ready_made
from jaxsink.nn.taps import Tap


@ready_made
def contribution() -> Recorder:
    """f32[B,H,S]: how much each key adds to the residual stream, Σ_q A_qj ‖W_O^h v_j‖ over real queries.

    v_j is the value of key j (bias included), W_O^h the columns of the output projection that belong to head h, and ‖·‖ the
    Euclidean length; the projection's own bias belongs to no key. Attention alone says where a head looks, this what it
    takes from there: a sink that receives much and hands on nothing scores low. 0 for padded keys.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.contribution())
        >>> seen.record.shape
        (4, 1, 4, 19)
    """
    return Recorder(_contribution, "sum", settles=True)


@ready_made
def logit_parts() -> Recorder:
    """{"query", "key", "cosine", "logit"}: f32[B,H,S] each: why a key gets its attention.

    Means over the queries that attend to the key: of |q|, of |k| (the key's own length), of the cosine of their angle, and
    of |q||k|cos/√D, the logit before the softmax.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.logit_parts())
        >>> sorted(seen.record)
        ['cosine', 'key', 'logit', 'query']
    """
    return Recorder(_logit_sums, "sum", settles=True).then(_logit_means)


def _contribution(tap: Tap) -> Float32[Array, "B H S"]:
    assert tap.probs is not None
    return tap.probs.sum(axis=2) * _added_length(tap)


def _added_length(tap: Tap) -> Float32[Array, "B H S"]:
    """‖W_O^h v_j‖ as √(vᵀ(WᵀW)v): a D x D matrix per head takes the place of vectors [B,S,H,E]."""
    assert tap.output is not None
    if tap.output.ndim == 4:  # gated by each sequence's own noise level
        each = jax.vmap(lambda output, v: _lengths(output, v[None])[0])
        return each(tap.output, tap.v)
    return _lengths(tap.output, tap.v)


def _lengths(output: Float[Array, "E H D"], v: Float[Array, "B S K D"]) -> Float32[Array, "B H S"]:
    output, v = output.astype(jnp.float32), v.astype(jnp.float32)
    products = jnp.einsum("ehd,ehc->hdc", output, output, precision="highest")
    products = products.reshape(v.shape[2], -1, *products.shape[1:])  # by kv head
    mixed = jnp.einsum("bskd,kgdc->bkgsc", v, products, precision="highest")
    squares = jnp.einsum("bkgsc,bskc->bkgs", mixed, v, precision="highest")
    return jnp.sqrt(jnp.maximum(squares, 0.0)).reshape(v.shape[0], -1, v.shape[1])


def _logit_sums(tap: Tap) -> dict[str, Float32[Array, "B H S"]]:
    """Sums over attending queries, and their number."""
    assert tap.probs is not None
    group = tap.q.shape[2] // tap.k.shape[2]
    q, k = tap.q.astype(jnp.float32), jnp.repeat(tap.k.astype(jnp.float32), group, axis=2)
    q_length, k_length = (jnp.linalg.norm(x, axis=-1).transpose(0, 2, 1) for x in (q, k))
    product = jnp.einsum("bqhd,bshd->bhqs", q, k, precision="highest")
    cosine = product / jnp.maximum(q_length[..., None] * k_length[..., None, :], 1e-30)
    attends = tap.probs > 0
    return {
        "query": jnp.where(attends, q_length[..., None], 0.0).sum(axis=2),
        "key": jnp.where(attends, k_length[..., None, :], 0.0).sum(axis=2),
        "cosine": jnp.where(attends, cosine, 0.0).sum(axis=2),
        "logit": jnp.where(attends, product * q.shape[-1] ** -0.5, 0.0).sum(axis=2),
        "count": attends.sum(axis=2).astype(jnp.float32),
    }


def _logit_means(sums: dict[str, Float32[Array, "B H S"]], _: SeesKeys) -> dict[str, Float32[Array, "B H S"]]:
    count = jnp.maximum(sums["count"], 1.0)
    return {name: sums[name] / count for name in ("query", "key", "cosine", "logit")}
