"""Recorders of the attention map: what keys receive, what one query or all of them pay, and the map itself.

Most work on any query block, so they cost no S x S memory under the blocked backend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int, PyTree

from jaxsink.checks import at_least, check_value
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.nn.batch import KINDS as QUERY_KINDS
from jaxsink.nn.recorder import Recorder, SeesKeys, ready_made
from jaxsink.nn.softmax import hides
from jaxsink.nn.taps import ReceivedTap, Tap
from jaxsink.nn.taps import received as sum_received


@ready_made
def received() -> Recorder:
    """f32[B,H,S]: attention each key receives, summed over real queries (its mean over real keys is 1).

    Examples:
        >>> scores = jaxsink.forward(model, tokens, record=jaxsink.record.received()).record
        >>> scores.shape  # layers, sequences, heads, keys
        (4, 1, 4, 19)
        >>> round(float(scores.mean()), 4)
        1.0
    """
    return Recorder(sum_received, "sum", columns="all", settles=True)


@ready_made
def received_by_query() -> Recorder:
    """{"masked", "unmasked", "prompt"}: f32[B,H,S] each: `received`, split by the kind of the query (Fig. 6a).

    Examples:
        >>> split = jaxsink.generate(model, question, sampler, record=jaxsink.record.received_by_query()).record
        >>> {kind: scores.shape == out.record.shape for kind, scores in split.items()}
        {'masked': True, 'prompt': True, 'unmasked': True}
    """
    return Recorder(_received_by_query, "sum", columns="by kind", settles=True)


@ready_made
def diagonal() -> Recorder:
    """f32[B,H]: attention that tokens pay to themselves, the mean of A_qq over real queries.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.diagonal())
        >>> seen.record.shape  # one figure per head
        (4, 1, 4)
    """
    return Recorder(_diagonal_sums, "sum", settles=True).then(_diagonal_mean)


@ready_made
def last_row() -> Recorder:
    """f32[B,H,S]: attention paid by the last real query, the rule for autoregressive models.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.last_row())
        >>> seen.record.shape
        (4, 1, 4, 19)
    """
    return Recorder(_last_row, "sum", of_last_query=True)


@checked()
def where_hidden(recorder: Recorder) -> Recorder:
    """The same of those queries alone that lose what is dropped (`MaskSinks(rows="decoded")` and the like).

    It counts them whether or not anything is dropped in the step; of all queries where none are named.

    Args:
        recorder: one that sums over queries

    Examples:
        >>> recorder = jaxsink.record.where_hidden(jaxsink.record.received())
        >>> hide = jaxsink.sinks.MaskSinks(k=1, rows="masked")
        >>> jaxsink.generate(model, question, sampler, intervene=hide, record=recorder).record.shape == out.record.shape
        True
    """
    return replace(recorder, read=_WhereHidden(recorder.read), columns=None)


@ready_made
def dropped() -> Recorder:
    """bool[B,H,S]: the keys that `drop` or an intervention hid in this step; keys that only get less are not hidden.

    Examples:
        >>> hide = jaxsink.sinks.MaskSinks(k=1)
        >>> masked = jaxsink.generate(model, question, sampler, intervene=hide, record=jaxsink.record.dropped())
        >>> int(masked.record[1].sum(axis=-1).max())  # one key per head, from the second step on
        1
    """
    return Recorder(_dropped, "once")


@ready_made
def extra_sink() -> Recorder:
    """f32[B,H]: attention that the model's extra sink token receives, summed over real queries.

    Examples:
        >>> given = jaxsink.init(model.config.replace(extra_sink=True, layers=1))
        >>> seen = jaxsink.forward(given, tokens, record=jaxsink.record.extra_sink())
        >>> seen.record.shape  # layers, sequences, heads
        (1, 1, 4)
    """
    return Recorder(_extra_sink, "sum")


@ready_made
@checked(layers=at_least(0), heads=at_least(0))
def maps(layers: Sequence[int] | None = None, heads: Sequence[int] | None = None) -> Recorder:
    """f32[B,H,S,S]: the attention maps themselves; rows of padded queries are zero.

    Args:
        layers: layers to keep; None: all
        heads: heads to keep; None: all

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.maps(layers=[1], heads=[0, 2]))
        >>> seen.record.shape  # one layer, one sequence, two heads, queries, keys
        (1, 1, 2, 19, 19)
        >>> bool(jnp.allclose(seen.record.sum(axis=-1), 1.0, atol=1e-5))  # each query spends 1
        True
    """
    recorder = Recorder(_Maps(check_value("record.maps: heads", heads, tuple[int, ...] | None, at_least(0))), "rows")
    return recorder if layers is None else recorder.at(layers)


@ready_made
def row_entropy() -> Recorder:
    """f32[B,H,S]: entropy of each query's row in nats; 0 for padded queries.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.row_entropy())
        >>> seen.record.shape
        (4, 1, 4, 19)
    """
    return Recorder(_row_entropy, "rows")


def _received_by_query(tap: Tap | ReceivedTap) -> dict[str, Float32[Array, "B H S"]]:
    assert tap.probs is not None
    kind = jax.nn.one_hot(tap.query_kind, len(QUERY_KINDS), axis=1, dtype=jnp.float32)
    split = jnp.einsum("bnq,bhqs->nbhs", kind, tap.probs, precision="highest")
    return dict(zip(QUERY_KINDS, split, strict=True))


def _diagonal_sums(tap: Tap) -> dict[str, Float32[Array, "B ..."]]:
    """The sum over real queries, and their number."""
    assert tap.probs is not None
    position = jnp.broadcast_to(tap.query_position, tap.query_mask.shape)
    # On a cache some queries only fill the number up, beyond the sequence: they pay nothing, but have no key of their own.
    own = jnp.take_along_axis(tap.probs, position[:, None, :, None], axis=-1, mode="clip")
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
