"""What to keep of each layer: recorders read a tap of the network, and say how query blocks join.

A recorder is a traceable function of a tap (jaxsink/nn/taps.py), with the name of the tap that it reads. The ready-made
ones below work on any query block, so they cost no S x S memory under the blocked backend. Any other function may be passed
as it is: it then reads the tap "attention", and sees the whole map.

    record = {"received": received(), "entropy": row_entropy(), "mine": lambda tap: tap.probs.max(axis=(2, 3))}

gives the same dictionary back in `out.record`, each leaf with a leading layer axis. `received()` alone gives one array. A
function of another tap is wrapped: `Recorder(lambda tap: tap.vectors.mean(axis=1), tap="residual")`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Float32, Int, PyTree

from jaxsink.checks import at_least, check_value
from jaxsink.errors import JaxsinkError
from jaxsink.nn.batch import KINDS as QUERY_KINDS
from jaxsink.nn.recorder import Recorder, SeesKeys, compile_record, ready_made
from jaxsink.nn.softmax import hides
from jaxsink.nn.taps import ReceivedTap, Tap, VectorTap

__all__ = [
    "QUERY_KINDS",
    "Recorder",
    "Tap",
    "VectorTap",
    "compile_record",
    "contribution",
    "diagonal",
    "dropped",
    "extra_sink",
    "head_norm",
    "hidden",
    "hidden_max",
    "key_norm",
    "last_row",
    "logit_parts",
    "maps",
    "mlp_norm",
    "received",
    "received_by_query",
    "residual",
    "residual_norm",
    "row_entropy",
    "value_norm",
    "where_hidden",
]


@ready_made
def received() -> Recorder:
    """f32[B,H,S]: attention each key receives, summed over real queries (its mean over real keys is 1)."""
    return Recorder(_received, "sum", columns="all")


@ready_made
def received_by_query() -> Recorder:
    """{"masked", "unmasked", "prompt"}: f32[B,H,S] each: `received`, split by the kind of the query (Fig. 6a)."""
    return Recorder(_received_by_query, "sum", columns="by kind")


@ready_made
def contribution() -> Recorder:
    """f32[B,H,S]: how much each key adds to the residual stream, Σ_q A_qj ‖W_O^h v_j‖ over real queries.

    v_j is the value of key j (bias included), W_O^h the columns of the output projection that belong to head h, and ‖·‖ the
    Euclidean length; the projection's own bias belongs to no key. Attention alone says where a head looks, this what it
    takes from there: a sink that receives much and hands on nothing scores low. 0 for padded keys.
    """
    return Recorder(_contribution, "sum")


@ready_made
def diagonal() -> Recorder:
    """f32[B,H]: attention that tokens pay to themselves, the mean of A_qq over real queries."""
    return Recorder(_diagonal_sums, "sum").then(_diagonal_mean)


@ready_made
def last_row() -> Recorder:
    """f32[B,H,S]: attention paid by the last real query, the rule for autoregressive models."""
    return Recorder(_last_row, "sum", of_last_query=True)


def where_hidden(recorder: Recorder) -> Recorder:
    """The same of those queries alone that lose what is dropped (`MaskSinks(rows="decoded")` and the like), whether or not
    anything is dropped in the step; of all queries where none are named."""
    return replace(recorder, read=_WhereHidden(recorder.read), columns=None)


@ready_made
def dropped() -> Recorder:
    """bool[B,H,S]: the keys that `drop` or an intervention hid in this step; keys that only get less are not hidden."""
    return Recorder(_dropped, "once")


@ready_made
def extra_sink() -> Recorder:
    """f32[B,H]: attention that the model's extra sink token receives, summed over real queries."""
    return Recorder(_extra_sink, "sum")


@ready_made
def logit_parts() -> Recorder:
    """{"query", "key", "cosine", "logit"}: f32[B,H,S] each: why a key gets its attention.

    Means over the queries that attend to the key: of |q|, of |k| (the key's own length), of the cosine of their angle, and
    of |q||k|cos/√D, the logit before the softmax.
    """
    return Recorder(_logit_sums, "sum").then(_logit_means)


@ready_made
def maps(layers: Sequence[int] | None = None, heads: Sequence[int] | None = None) -> Recorder:
    """f32[B,H,S,S]: the attention maps themselves, for chosen layers and heads; rows of padded queries are zero."""
    recorder = Recorder(_Maps(check_value("record.maps: heads", heads, tuple[int, ...] | None, at_least(0))), "rows")
    return recorder if layers is None else recorder.at(layers)


@ready_made
def row_entropy() -> Recorder:
    """f32[B,H,S]: entropy of each query's row in nats; 0 for padded queries."""
    return Recorder(_row_entropy, "rows")


@ready_made
def key_norm() -> Recorder:
    """f32[B,K,S]: Euclidean length of each key; 0 for padded keys."""
    return Recorder(_key_norm, "once")


@ready_made
def value_norm() -> Recorder:
    """f32[B,K,S]: Euclidean length of each value (low at sinks); 0 for padded keys."""
    return Recorder(_value_norm, "once")


@ready_made
def hidden() -> Recorder:
    """f32[B,S,E]: the residual stream that enters the layer."""
    return Recorder(_hidden, "once")


@ready_made
def hidden_max() -> Recorder:
    """{"max", "median": f32[B,S], "dimension": i32[B,S]} of |hidden|: massive activations.

    The usual rule is max > 100 and max >= 1000 * median; `dimension` says which feature is the largest.
    """
    return Recorder(_hidden_max, "once")


@ready_made
def residual() -> Recorder:
    """f32[B,S,E]: the residual stream after the layer."""
    return Recorder(_vectors, "once", tap="residual")


@ready_made
def residual_norm() -> Recorder:
    """f32[B,S]: Euclidean length of the residual stream after the layer; 0 for padded queries."""
    return Recorder(_vector_norm, "once", tap="residual")


@ready_made
def mlp_norm() -> Recorder:
    """f32[B,S]: Euclidean length of what the mlp adds to the residual stream; 0 for padded queries."""
    return Recorder(_vector_norm, "once", tap="mlp")


@ready_made
def head_norm() -> Recorder:
    """f32[B,H,S]: Euclidean length of what each head hands on, its attention times the values; 0 for padded queries."""
    return Recorder(_head_norm, "once", tap="values")


def _received(tap: Tap | ReceivedTap) -> Float32[Array, "B H S"]:
    assert tap.probs is not None
    return tap.probs.sum(axis=2)


def _received_by_query(tap: Tap | ReceivedTap) -> dict[str, Float32[Array, "B H S"]]:
    assert tap.probs is not None
    kind = jax.nn.one_hot(tap.query_kind, len(QUERY_KINDS), axis=1, dtype=jnp.float32)
    split = jnp.einsum("bnq,bhqs->nbhs", kind, tap.probs, precision="highest")
    return dict(zip(QUERY_KINDS, split, strict=True))


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


def _diagonal_sums(tap: Tap) -> dict[str, Float32[Array, "B ..."]]:
    """The sum over real queries, and their number."""
    assert tap.probs is not None
    position = jnp.broadcast_to(tap.query_position, tap.query_mask.shape)
    own = jnp.take_along_axis(tap.probs, position[:, None, :, None], axis=-1)
    return {"sum": own.sum(axis=(2, 3)), "count": tap.query_mask.sum(axis=1).astype(jnp.float32)}


def _diagonal_mean(sums: dict[str, Float32[Array, "B ..."]], _: SeesKeys) -> Float32[Array, "B H"]:
    return sums["sum"] / jnp.maximum(sums["count"], 1.0)[:, None]


def _last_row(tap: Tap) -> Float32[Array, "B H S"]:
    assert tap.probs is not None
    last = last_real_position(tap.mask)
    return jnp.where((tap.query_position == last[:, None])[:, None, :, None], tap.probs, 0.0).sum(axis=2)


def _dropped(tap: Tap) -> Bool[Array, "B H S"]:
    mask = tap.mask[:, None, :]
    if tap.context.drop is None:
        return jnp.zeros((mask.shape[0], tap.q.shape[2], mask.shape[2]), bool)
    return hides(tap.context.drop)[..., : mask.shape[2]] & mask


def _extra_sink(tap: Tap) -> Float32[Array, "B H"]:
    if tap.extra is None:
        raise JaxsinkError("record.extra_sink: this model has no extra sink token (see ModelConfig.extra_sink).")
    return tap.extra.sum(axis=2)


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


def last_real_position(mask: Bool[Array, "B S"]) -> Int[Array, " B"]:
    """The position of the last real token of each sequence."""
    return mask.shape[1] - 1 - jnp.argmax(mask[:, ::-1], axis=1)


@dataclass(frozen=True)
class _WhereHidden:
    """A function of the attention tap that is shown those queries alone that lose what is dropped."""

    read: Callable[[Tap], PyTree[Array]]

    @property
    def heads(self) -> tuple[int, ...] | None:
        return getattr(self.read, "heads", None)

    def __call__(self, tap: Tap) -> PyTree[Array]:
        queries = tap.context.queries
        if queries.hidden_from is None:
            return self.read(tap)
        counted = queries.counted & queries.hidden_from
        context = replace(tap.context, queries=queries._replace(counted=counted))
        return self.read(replace(tap, context=context).with_probs(_probs(tap), tap.extra))


def _probs(tap: Tap) -> Float32[Array, "B H Q S"]:
    assert tap.probs is not None
    return tap.probs


@dataclass(frozen=True)
class _Maps:
    heads: tuple[int, ...] | None

    def __call__(self, tap: Tap) -> Float32[Array, "B _ Q S"]:
        assert tap.probs is not None
        return tap.probs if self.heads is None else tap.probs[:, jnp.array(self.heads)]


def _row_entropy(tap: Tap) -> Float32[Array, "B H Q"]:
    assert tap.probs is not None
    return -jax.scipy.special.xlogy(tap.probs, tap.probs).sum(axis=-1)


def _length(vectors: Float[Array, "B S *H D"]) -> Float32[Array, "B S *H"]:
    return jnp.sqrt(jnp.square(vectors.astype(jnp.float32)).sum(axis=-1))


def _by_head(length: Float32[Array, "B S H"], mask: Bool[Array, "B S"]) -> Float32[Array, "B H S"]:
    """Heads first; 0 for what is padded."""
    return jnp.where(mask[:, None, :], length.transpose(0, 2, 1), 0.0)


def _key_norm(tap: Tap) -> Float32[Array, "B K S"]:
    return _by_head(_length(tap.k), tap.mask)


def _value_norm(tap: Tap) -> Float32[Array, "B K S"]:
    return _by_head(_length(tap.v), tap.mask)


def _hidden(tap: Tap) -> Float32[Array, "B Q E"]:
    return tap.hidden.astype(jnp.float32)


def _hidden_max(tap: Tap) -> dict[str, Array]:
    size = jnp.abs(tap.hidden.astype(jnp.float32))
    largest = jnp.where(tap.query_mask, size.max(axis=-1), 0.0)
    median = jnp.where(tap.query_mask, jnp.median(size, axis=-1), 0.0)
    return {"max": largest, "median": median, "dimension": size.argmax(axis=-1)}


def _vectors(tap: VectorTap) -> Float32[Array, "B Q *F"]:
    return tap.vectors.astype(jnp.float32)


def _vector_norm(tap: VectorTap) -> Float32[Array, "B Q"]:
    return jnp.where(tap.query_mask, _length(tap.vectors), 0.0)


def _head_norm(tap: VectorTap) -> Float32[Array, "B H Q"]:
    return _by_head(_length(tap.vectors), tap.query_mask)
