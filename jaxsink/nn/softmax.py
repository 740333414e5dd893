"""Scores to probabilities to outputs, with whole maps: the backends "naive" and "blocked" work with these.

**Dropped keys.** `drop` hides keys from every query of a head, before the softmax, so the rest of the query's attention
re-normalises and a dropped key receives exactly 0. `drop` may also be factors: a key's attention is multiplied by its
factor before the query re-normalises, so 0 hides it, 1 leaves it alone and 0.5 halves its odds. Where the context names the
queries that it acts on (`Queries.hidden_from`), the others attend as if nothing were dropped.

**No query goes blind.** A query of which *every* visible key is dropped ignores the drop: it attends as if nothing had
been dropped. (So the first token of a causal model always sees itself.) A real query that `visible` leaves with no key at
all attends uniformly over the real keys, as the PyTorch models do. With the model option `extra_sink`, every query also
sees one token that is not part of the sequence and that nothing hides, so neither rule is needed.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Float32

from jaxsink.nn.linear import matmul_precision
from jaxsink.nn.taps import ExtraSink, Tap

HIDDEN = float(
    jnp.finfo(jnp.float32).min
)  # finite: the scores of hidden keys stay finite, and exp() of them is exactly 0

Drop = Bool[Array, "B H S"] | Float32[Array, "B H S"]  # keys to hide, or factors on attention


def mix(
    tap: Tap,
) -> tuple[Float[Array, "B Q H D"], Float32[Array, "B H Q S"], Float32[Array, "B H Q"] | None]:
    """(outputs of the heads, probabilities, attention on the extra sink)."""
    probs, extra = probabilities(tap)
    return weighted_values(probs, tap.v, extra, tap.sink), probs, extra


def probabilities(tap: Tap) -> tuple[Float32[Array, "B H Q S"], Float32[Array, "B H Q"] | None]:
    """Softmax of the scaled scores over the keys each query may see; and the share of the extra sink."""
    batch, queries, heads, size = tap.q.shape
    keys, kv_heads = tap.k.shape[1], tap.k.shape[2]
    q = heads_first(tap.q).reshape(batch, kv_heads, -1, size)  # the queries of one kv head are one long matrix
    k = heads_first(tap.k)
    scores = jnp.einsum("bkqd,bksd->bkqs", q, k, preferred_element_type=jnp.float32, precision=matmul_precision(tap.q))
    scores = scores.reshape(batch, heads, queries, keys) * (size**-0.5)

    context = tap.context
    visibility, drop = context.visibility, context.drop
    seen = visibility.seen(context.queries)
    seen_at_all = seen
    if drop is not None:
        hidden, some = hides(drop), context.queries.hidden_from
        lost = hidden[:, :, None, :] if some is None else hidden[:, :, None, :] & some[:, None, :, None]
        seen = seen & ~lost
        if drop.dtype != bool:
            added = jnp.log(jnp.where(hidden, 1.0, drop))[:, :, None, :]
            scores = scores + (added if some is None else jnp.where(some[:, None, :, None], added, 0.0))
    if tap.sink is not None:
        return beside_extra(jnp.where(seen, scores, HIDDEN), q, tap.sink.key)
    if drop is not None:
        seen = jnp.where(seen.any(axis=-1, keepdims=True), seen, seen_at_all)
    if visibility.custom is not None:
        blind = ~seen_at_all.any(axis=-1, keepdims=True)
        scores = jnp.where(blind, 0.0, scores)
        seen = seen | (blind & visibility.real[:, None, None, :])
    return jax.nn.softmax(jnp.where(seen, scores, HIDDEN), axis=-1), None


def hides(drop: Bool[Array, "*axes S"] | Float32[Array, "*axes S"]) -> Bool[Array, "*axes S"]:
    """The keys that are hidden."""
    return drop if drop.dtype == bool else drop <= 0


def beside_extra(
    scores: Float32[Array, "B H Q S"], q: Float[Array, "B K GQ D"], key: Float[Array, "K D"]
) -> tuple[Float32[Array, "B H Q S"], Float32[Array, "B H Q"]]:
    """The softmax over the scores and one key more: (probabilities, share of that key)."""
    to_extra = jnp.einsum("bkqd,kd->bkq", q, key, preferred_element_type=jnp.float32, precision=matmul_precision(q))
    to_extra = to_extra.reshape(scores.shape[:3]) * (q.shape[-1] ** -0.5)
    share = jax.nn.sigmoid(to_extra - jax.nn.logsumexp(scores, axis=-1))
    return jax.nn.softmax(scores, axis=-1) * (1 - share)[..., None], share


def weighted_values(
    probs: Float32[Array, "B H Q S"],
    v: Float[Array, "B S K D"],
    extra: Float32[Array, "B H Q"] | None = None,
    sink: ExtraSink | None = None,
) -> Float[Array, "B Q H D"]:
    """The values, weighted by the probabilities; and the extra sink's value by its share."""
    batch, heads, queries, keys = probs.shape
    kv_heads, size = v.shape[2:]
    grouped = probs.astype(v.dtype).reshape(batch, kv_heads, -1, keys)
    out = jnp.einsum("bkqs,bksd->bkqd", grouped, heads_first(v), precision=matmul_precision(v))
    if extra is not None and sink is not None:
        out = out + extra.astype(v.dtype).reshape(batch, kv_heads, -1, 1) * sink.value[:, None, :]
    return heads_first(out.reshape(batch, heads, queries, size))


def heads_first(x: Float[Array, "B Q heads D"]) -> Float[Array, "B heads Q D"]:
    """Heads before tokens, or back. On CPU, products of matrices that lie this way take half the time."""
    return x.transpose(0, 2, 1, 3)
