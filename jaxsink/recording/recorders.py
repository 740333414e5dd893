"""What to keep of each layer's attention: recorders read the tap, and say how query blocks join.

A recorder is a traceable function of a `Tap`. The ready-made ones below work on any query block, so they cost no
S x S memory under the blocked backend. Any other function may be passed as it is: it then sees the whole map.

    record = {"received": received(), "entropy": row_entropy(), "mine": lambda tap: tap.probs.max(axis=(2, 3))}

gives the same dictionary back in `out.record`, each leaf with a leading layer axis. `received()` alone gives one array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxsink.errors import JaxsinkError

QUERY_KINDS = ("masked", "unmasked", "prompt")

Join = Literal["sum", "rows", "once", "whole"]


class Tap(NamedTuple):
    """One layer's attention as the model used it. Rows of padded queries are exactly zero in `probs`."""

    layer: Array  # i32[]
    probs: Any  # f32[B,H,Q,S], after the softmax, before any rounding to bfloat16 (None for join="once")
    rows: Array  # bool[B,Q], True = real query
    row_index: Array  # i32[Q], where the queries stand in the sequence
    row_kind: Array  # i32[B,Q]: MASKED, UNMASKED or PROMPT
    q: Array  # [B,Q,H,D], rotated
    k: Array  # [B,S,K,D], rotated
    v: Array  # [B,S,K,D]
    hidden: Array  # [B,Q,E], what enters the layer (layer 0: the embeddings)
    mask: Array  # bool[B,S], True = real key of a sequence that counts
    tokens: Array  # i32[B,S], what the keys are
    key_kind: Array  # i32[B,S]: MASKED, UNMASKED or PROMPT
    extra: Any = None  # f32[B,H,Q], attention on the token of the model option `extra_sink`


@dataclass(frozen=True)
class Recorder:
    """A function of the tap, how its values on query blocks join, and the layers it is wanted for (None = all).

    join: "sum" adds the blocks, "rows" puts them side by side along axis 2 ([B,H,Q,...]), "once" never looks at
    `probs` or the queries and runs once per layer, "whole" needs all queries at once (costs S x S memory per layer).

    columns: what `read` makes of `probs` is the same if queries are added up first, "all" of them or those of each kind
    ("by kind"). Then a kernel that never holds the probabilities can serve it: the tap has one row per sum.
    """

    read: Callable[[Tap], Any]
    join: Join = "whole"
    layers: tuple[int, ...] | None = None
    reductions: tuple[Callable[[Any, Tap], Any], ...] = ()
    columns: Literal["all", "by kind"] | None = None

    @property
    def name(self) -> str:
        """What a record without a name of its own is called: "received" for `received()`."""
        found = getattr(self.read, "__name__", type(self.read).__name__).strip("_").lower()
        return found if found.isidentifier() else "value"

    @property
    def heads(self) -> tuple[int, ...] | None:
        """The heads that are kept; None = all."""
        return getattr(self.read, "heads", None)

    def at(self, layers: Sequence[int]) -> Recorder:
        """The same recorder for these layers only; the leading axis then has len(layers) entries, in that order."""
        return replace(self, layers=tuple(int(layer) for layer in layers))

    def then(self, reduction: Callable[[Any, Tap], Any]) -> Recorder:
        """Reduce each layer's joined value before it is kept: `received().then(top(5))`. See jaxsink.reduce.

        The reduction gets the value and a tap without `probs`, and must be hashable by value to avoid recompiling.
        """
        return replace(self, reductions=(*self.reductions, reduction))

    def finish(self, value: Any, tap: Tap) -> Any:
        """The joined value of a layer, reduced."""
        for reduction in self.reductions:
            value = reduction(value, tap)
        return value


def received() -> Recorder:
    """f32[B,H,S]: attention each key receives, summed over real queries (its mean over real keys is 1)."""
    return Recorder(_received, "sum", columns="all")


def received_by_query() -> Recorder:
    """{"masked", "unmasked", "prompt"}: f32[B,H,S] each: `received`, split by the kind of the query (Fig. 6a)."""
    return Recorder(_received_by_query, "sum", columns="by kind")


def last_row() -> Recorder:
    """f32[B,H,S]: attention paid by the last real query, the rule for autoregressive models."""
    return Recorder(_last_row, "sum")


def extra_sink() -> Recorder:
    """f32[B,H]: attention that the model's extra sink token receives, summed over real queries."""
    return Recorder(_extra_sink, "sum")


def logit_parts() -> Recorder:
    """{"query", "key", "cosine", "logit"}: f32[B,H,S] each: why a key gets its attention.

    Means over the queries that attend to the key: of |q|, of |k| (the key's own length), of the cosine of their angle, and
    of |q||k|cos/√D, the logit before the softmax.
    """
    return Recorder(_logit_sums, "sum").then(_logit_means)


def maps(layers: Sequence[int] | None = None, heads: Sequence[int] | None = None) -> Recorder:
    """f32[B,H,S,S]: the attention maps themselves, for chosen layers and heads; rows of padded queries are zero."""
    recorder = Recorder(_Maps(None if heads is None else tuple(int(head) for head in heads)), "rows")
    return recorder if layers is None else recorder.at(layers)


def row_entropy() -> Recorder:
    """f32[B,H,S]: entropy of each query's row in nats; 0 for padded queries."""
    return Recorder(_row_entropy, "rows")


def key_norm() -> Recorder:
    """f32[B,K,S]: Euclidean length of each key; 0 for padded keys."""
    return Recorder(_key_norm, "once")


def value_norm() -> Recorder:
    """f32[B,K,S]: Euclidean length of each value (low at sinks); 0 for padded keys."""
    return Recorder(_value_norm, "once")


def hidden() -> Recorder:
    """f32[B,S,E]: the residual stream that enters the layer."""
    return Recorder(_hidden, "once")


def hidden_max() -> Recorder:
    """{"max", "median": f32[B,S], "dimension": i32[B,S]} of |hidden|: massive activations.

    The usual rule is max > 100 and max >= 1000 * median; `dimension` says which feature is the largest.
    """
    return Recorder(_hidden_max, "once")


FACTORIES = (
    "received", "received_by_query", "last_row", "extra_sink", "logit_parts", "maps", "row_entropy", "key_norm",
    "value_norm", "hidden", "hidden_max",
)  # fmt: skip


def compile_record(record: Any, layers: int, heads: int) -> tuple[tuple[Recorder, ...], Any]:
    """Flatten a pytree of recorders and functions into (recorders, treedef), both hashable; None records nothing."""
    leaves, treedef = jax.tree.flatten(record, is_leaf=callable_leaf)
    recorders = []
    for leaf in leaves:
        if not callable_leaf(leaf):
            hint = f"; record.{leaf}() is one" if isinstance(leaf, str) and leaf in FACTORIES else ""
            raise JaxsinkError(f"record: expected a recorder or a function of the tap, not {leaf!r}{hint}.")
        name = getattr(leaf, "__name__", "")
        if name in FACTORIES and leaf is globals().get(name):
            raise JaxsinkError(f"record: record.{name} makes a recorder; give record.{name}().")
        recorder = leaf if isinstance(leaf, Recorder) else Recorder(leaf)
        for layer in recorder.layers or ():
            if not 0 <= layer < layers:
                raise JaxsinkError(f"record: layer {layer} is asked for, but the model has layers 0 to {layers - 1}.")
        for head in recorder.heads or ():
            if not 0 <= head < heads:
                raise JaxsinkError(f"record: head {head} is asked for, but the model has heads 0 to {heads - 1}.")
        recorders.append(recorder)
    return tuple(recorders), treedef


def callable_leaf(value: Any) -> bool:
    return isinstance(value, Recorder) or callable(value)


def _received(tap: Tap) -> Array:
    return tap.probs.sum(axis=2)


def _received_by_query(tap: Tap) -> dict[str, Array]:
    kind = jax.nn.one_hot(tap.row_kind, len(QUERY_KINDS), axis=1, dtype=jnp.float32)  # [B,3,Q]
    split = jnp.einsum("bnq,bhqs->nbhs", kind, tap.probs, precision="highest")
    return dict(zip(QUERY_KINDS, split, strict=True))


def _last_row(tap: Tap) -> Array:
    last = last_real_index(tap.mask)
    return jnp.where((tap.row_index == last[:, None])[:, None, :, None], tap.probs, 0.0).sum(axis=2)


def _extra_sink(tap: Tap) -> Array:
    if tap.extra is None:
        raise JaxsinkError("record.extra_sink: this model has no extra sink token (see ModelConfig.extra_sink).")
    return tap.extra.sum(axis=2)


def _logit_sums(tap: Tap) -> dict[str, Array]:
    """Sums over attending queries, and their number."""
    group = tap.q.shape[2] // tap.k.shape[2]
    q, k = tap.q.astype(jnp.float32), jnp.repeat(tap.k.astype(jnp.float32), group, axis=2)
    q_length, k_length = (jnp.linalg.norm(x, axis=-1).transpose(0, 2, 1) for x in (q, k))  # [B,H,Q], [B,H,S]
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


def _logit_means(sums: dict[str, Array], tap: Tap) -> dict[str, Array]:
    count = jnp.maximum(sums["count"], 1.0)
    return {name: sums[name] / count for name in ("query", "key", "cosine", "logit")}


def last_real_index(mask: Array) -> Array:
    """i32[B]: index of the last real token of each row of mask bool[B,S]."""
    return mask.shape[1] - 1 - jnp.argmax(mask[:, ::-1], axis=1)


@dataclass(frozen=True)
class _Maps:
    heads: tuple[int, ...] | None

    def __call__(self, tap: Tap) -> Array:
        return tap.probs if self.heads is None else tap.probs[:, jnp.array(self.heads)]


def _row_entropy(tap: Tap) -> Array:
    return -jax.scipy.special.xlogy(tap.probs, tap.probs).sum(axis=-1)


def _length(vectors: Array, mask: Array) -> Array:
    """[B,S,K,D] -> f32[B,K,S]."""
    length = jnp.sqrt(jnp.square(vectors.astype(jnp.float32)).sum(axis=-1))
    return jnp.where(mask[:, None, :], length.transpose(0, 2, 1), 0.0)


def _key_norm(tap: Tap) -> Array:
    return _length(tap.k, tap.mask)


def _value_norm(tap: Tap) -> Array:
    return _length(tap.v, tap.mask)


def _hidden(tap: Tap) -> Array:
    return tap.hidden.astype(jnp.float32)


def _hidden_max(tap: Tap) -> dict[str, Array]:
    size = jnp.abs(tap.hidden.astype(jnp.float32))
    largest = jnp.where(tap.rows, size.max(axis=-1), 0.0)
    median = jnp.where(tap.rows, jnp.median(size, axis=-1), 0.0)
    return {"max": largest, "median": median, "dimension": size.argmax(axis=-1)}
