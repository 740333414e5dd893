"""Taps: what a recorder is shown at the named points of a layer.

Every tap contains the layer's context, so it knows the layer, the keys (mask, tokens, kind) and the queries. Arrays in a
tap are those that the model works with, never copies made for the recorder.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Float32, Int, PyTree

from jaxsink.nn.batch import Keys
from jaxsink.nn.context import LayerContext, OnQueries
from jaxsink.nn.display import describe
from jaxsink.nn.recorder import Recorder, TapName, look

OfTap = TypeVar("OfTap", bound="LayerTap")
Record = dict[int, PyTree[Array]]  # what the recorders of a layer read, by their number in `LayerContext.recorders`

RENAMED = {
    "rows": "query_mask",
    "row_index": "query_position",
    "query_index": "query_position",
    "row_kind": "query_kind",
}


@dataclass(frozen=True, repr=False)
class LayerTap:
    """What all taps know: the layer they belong to, its keys and its queries."""

    context: LayerContext

    @property
    def layer(self) -> Int[Array, ""]:
        assert self.context.layer is not None
        return self.context.layer

    @property
    def keys(self) -> Keys:
        """What is counted, tokens and kind of all positions; `mask`, `tokens` and `key_kind` for short."""
        return self.context.keys

    @property
    def mask(self) -> Bool[Array, "B S"]:
        """True = real key of a sequence that counts."""
        return self.keys.counted

    @property
    def tokens(self) -> Int[Array, "B S"]:
        return self.keys.tokens

    @property
    def key_kind(self) -> Int[Array, "B S"]:
        """MASKED, UNMASKED or PROMPT."""
        return self.keys.key_kind

    @property
    def query_mask(self) -> Bool[Array, "B Q"]:
        """True = real query of a sequence that counts."""
        return self.context.queries.counted

    @property
    def query_position(self) -> Int[Array, "*B Q"]:
        """The position of each query in the sequence; with an axis B if sequences start at positions of their own."""
        return self.context.queries.position

    @property
    def query_kind(self) -> Int[Array, "B Q"]:
        """MASKED, UNMASKED or PROMPT."""
        return self.context.queries.kind

    def __getattr__(self, name: str) -> Array:
        """Names of the first version."""
        if name not in RENAMED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        warnings.warn(f"{name} is called {RENAMED[name]} now.", DeprecationWarning, stacklevel=2)
        return getattr(self, RENAMED[name])

    def first_keys(self: OfTap, length: int) -> OfTap:
        """The same with the first `length` keys only."""
        return replace(self, context=self.context.first_keys(length))

    def __repr__(self) -> str:
        arrays = [field.name for field in fields(self) if field.name != "context"]
        return describe(
            self, ["layer", *arrays, "mask", "tokens", "key_kind", "query_mask", "query_position", "query_kind"]
        )


class ExtraSink(NamedTuple):
    """Key and value of the token that every query sees, and that nothing hides (`ModelConfig.extra_sink`)."""

    key: Float[Array, "K D"]
    value: Float[Array, "K D"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Tap(LayerTap):
    """One layer's attention as the model used it. What padded queries pay is exactly zero in `probs`.

    Before the softmax it is the same without `probs`: what attention works on, and what reductions get.

    Examples:
        >>> def to_the_first(tap):
        ...     return tap.probs[..., 0].mean(axis=-1)  # [B,H]
        ...
        >>> jaxsink.forward(model, tokens, record=to_the_first).record.shape  # layers, sequences, heads
        (4, 1, 4)
        >>> masked = jaxsink.record.QUERY_KINDS.index("masked")
        >>> def from_masks(tap):
        ...     print(tap.layer.dtype, tap.keys.tokens.shape, tap.query_position.shape)
        ...     asks = (tap.query_kind == masked) & tap.query_mask  # [B,Q]
        ...     seen = tap.mask & (tap.tokens > 0) & (tap.key_kind != masked)  # [B,S]
        ...     pairs = asks[:, None, :, None] & seen[:, None, None]
        ...     return jnp.where(pairs, tap.probs, 0.0).sum(axis=2)  # [B,H,S]
        ...
        >>> jaxsink.forward(model, tokens, record=from_masks).record.shape
        int32 (1, 19) (19,)
        (4, 1, 4, 19)
    """

    q: Float[Array, "B Q H D"]  # rotated
    k: Float[Array, "B S K D"]  # rotated
    v: Float[Array, "B S K D"]
    hidden: Float[Array, "B Q E"]  # what enters the layer (layer 0: the embeddings)
    sink: ExtraSink | None = None
    output: Float[Array, "*B E H D"] | None = (
        None  # the output projection, by head; each sequence's own where it is gated
    )
    probs: Float32[Array, "B H Q S"] | None = None  # after the softmax, before any rounding to bfloat16
    extra: Float32[Array, "B H Q"] | None = None  # attention on the extra sink

    def with_probs(self, probs: Float32[Array, "B H Q S"], extra: Float32[Array, "B H Q"] | None = None) -> Tap:
        """With what the softmax gave, zero for queries that do not count."""
        real = self.query_mask[:, None, :]
        return replace(
            self,
            probs=jnp.where(real[..., None], probs, 0.0),
            extra=None if extra is None else jnp.where(real, extra, 0.0),
        )

    def map_queries(self, change: OnQueries) -> Tap:
        """The same for other queries, before the softmax."""
        return replace(
            self, context=self.context.map_queries(change), q=change(self.q, 1), hidden=change(self.hidden, 1)
        )

    def first_keys(self, length: int) -> Tap:
        return replace(
            self,
            context=self.context.first_keys(length),
            k=self.k[:, :length],
            v=self.v[:, :length],
            probs=None if self.probs is None else self.probs[..., :length],
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class ReceivedTap(LayerTap):
    """Attention added up over queries, from a kernel that never holds the probabilities: one query per sum."""

    probs: Float32[Array, "B H N S"]

    @property
    def query_mask(self) -> Bool[Array, "B N"]:
        return jnp.ones(self.query_kind.shape, bool)

    @property
    def query_kind(self) -> Int[Array, "B N"]:
        """The kind whose queries were added up; with one sum of all, 0."""
        shape = (self.probs.shape[0], self.probs.shape[2])
        return jnp.broadcast_to(jnp.arange(shape[1]), shape)

    def first_keys(self, length: int) -> ReceivedTap:
        return replace(self, context=self.context.first_keys(length), probs=self.probs[..., :length])


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class VectorTap(LayerTap):
    """One vector per query: [B,Q,E]; of the tap "values" one per head [B,Q,H,D], as of "head_outputs" [B,Q,H,E].

    Examples:
        >>> largest = jaxsink.record.Recorder(lambda tap: jnp.abs(tap.vectors).max(axis=-1), tap="residual")
        >>> jaxsink.forward(model, tokens, record=largest).record.shape  # layers, sequences, positions
        (4, 1, 19)
    """

    vectors: Float[Array, "B Q *F"]


def received(tap: Tap | ReceivedTap) -> Float32[Array, "B H S"]:
    """What each key receives from all queries together."""
    assert tap.probs is not None
    return tap.probs.sum(axis=2)


def readers(context: LayerContext, name: TapName) -> dict[int, Recorder]:
    """The layer's recorders that read this tap, by their number among all."""
    return {number: recorder for number, recorder in enumerate(context.recorders) if recorder.tap == name}


def read_vectors(context: LayerContext, name: TapName, vectors: Float[Array, "B Q *F"]) -> Record:
    """What the recorders of this tap make of it, reduced."""
    tap = VectorTap(context, vectors)
    values = {number: look(r, tap) for number, r in readers(context, name).items()}
    ended = {number for number in values if context.recorders[number].ending is not None}
    return {n: value if n in ended else context.recorders[n].finish(value, tap) for n, value in values.items()}
