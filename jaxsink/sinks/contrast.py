"""Sinks against the rest: what different queries sink to, and what sets a sink's vectors apart from other tokens'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Shaped

from jaxsink.checks import NAN_TOO
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.sinks.rules import Rule, Threshold, detect, with_mask


@checked()
@jax.jit
def scale_to_all_queries(
    by_query: Mapping[str, Float[ArrayLike, "*axes S"]],
) -> dict[str, Float[Array, "*axes S"]]:
    """`record.received_by_query()` with the scores of each kind of query scaled as if all queries were of that kind.

    Queries of one kind are fewer than all, so the mean of what they give to a key is below 1, and no ε would fit both
    kinds. Each query gives 1 in all, so the sum of a kind's scores is its number of queries. Once scaled, they work with
    every rule and with `track` like those of `received()`. All zero where there is no query of the kind.

    Examples:
        >>> few = {"masked": np.array([2.0, 0.0, 0.0, 0.0]), "unmasked": np.array([0.5, 0.5, 0.5, 0.5])}
        >>> jaxsink.sinks.scale_to_all_queries(few)["masked"].tolist()  # two queries, as if all four were masked
        [4.0, 0.0, 0.0, 0.0]
    """
    by_kind = {kind: jnp.asarray(scores) for kind, scores in by_query.items()}
    queries = {kind: scores.sum(axis=-1, keepdims=True) for kind, scores in by_kind.items()}
    all_queries = sum(queries.values())
    return {kind: scores * all_queries / jnp.maximum(queries[kind], 1e-6) for kind, scores in by_kind.items()}


class Split(NamedTuple):
    """What masked and unmasked queries sink to (Fig. 6a); "*axes" are the record's axes before the sequence.

    Attributes:
        masked: sinks of masked queries
        unmasked: sinks of the others
        same_top: True where both kinds of query give most to the same key
        overlap: keys that are sinks of both, over keys that are sinks of either; NaN where neither has one

    Examples:
        >>> split = jaxsink.generate(model, question, sampler, record=jaxsink.record.received_by_query())
        >>> found = jaxsink.sinks.split_by_query(split.record, mask=split.mask)
        >>> found.same_top.shape == out.record.shape[:-1]
        True
    """

    masked: Bool[Array, "*axes S"]
    unmasked: Bool[Array, "*axes S"]
    same_top: Bool[Array, "..."]
    overlap: Float[Array, "..."]


@checked()
def split_by_query(
    by_query: Mapping[str, Float[ArrayLike, "*axes S"]],
    rule: Rule | None = None,
    mask: Shaped[ArrayLike, "..."] | None = None,
) -> Split:
    """Sinks by the kind of query; prompt tokens count as unmasked queries.

    Args:
        by_query: from `record.received_by_query()`
        rule: what counts as a sink; None: `Threshold()`
        mask: as for `detect`

    Examples:
        >>> split = jaxsink.generate(model, question, sampler, record=jaxsink.record.received_by_query())
        >>> jaxsink.sinks.split_by_query(split.record, mask=split.mask).masked.shape == out.record.shape
        True
    """
    if not isinstance(by_query, Mapping) or set(by_query) != {"masked", "unmasked", "prompt"}:
        raise JaxsinkError("split_by_query needs what record.received_by_query() recorded.")
    unmasked = jnp.asarray(by_query["unmasked"]) + jnp.asarray(by_query["prompt"])
    scores = scale_to_all_queries({"masked": by_query["masked"], "unmasked": unmasked})
    found = {kind: detect(value, rule or Threshold(), mask) for kind, value in scores.items()}
    either = (found["masked"] | found["unmasked"]).sum(axis=-1)
    both = (found["masked"] & found["unmasked"]).sum(axis=-1)
    same = jnp.argmax(scores["masked"], axis=-1) == jnp.argmax(scores["unmasked"], axis=-1)
    overlap = jnp.where(either > 0, both / jnp.maximum(either, 1), jnp.nan)
    return Split(found["masked"], found["unmasked"], same, overlap)


class AtSinks(NamedTuple):
    """A figure's mean over sinks, its mean over the other real tokens, and their ratio; NaN where there are none.

    Examples:
        >>> lengths = np.array([[0.5, 2.0, 2.0]])  # of values, one head
        >>> found = jaxsink.sinks.at_sinks(lengths, np.array([[True, False, False]]))
        >>> found.sinks.tolist(), found.elsewhere.tolist(), found.ratio.tolist()
        ([0.5], [2.0], [0.25])
    """

    sinks: Float[Array, "*axes H"]
    elsewhere: Float[Array, "*axes H"]
    ratio: Float[Array, "*axes H"]


@checked(values=NAN_TOO)
def at_sinks(
    values: Float[ArrayLike, "..."], sinks: Bool[ArrayLike, "..."], mask: Shaped[ArrayLike, "..."] | None = None
) -> AtSinks:
    """How a figure per token differs at sinks.

    For `record.value_norm()` (low at sinks), `record.key_norm()`, or a part of `record.logit_parts()`. Figures of a kv head
    serve all heads of its group.

    Args:
        values: [..., K or H, S]
        sinks: [..., H, S], from `detect`
        mask: as for `detect`

    Examples:
        >>> lengths = np.array([[0.5, 2.0, 2.0]])  # of values, one head
        >>> float(jaxsink.sinks.at_sinks(lengths, np.array([[True, False, False]])).ratio[0])
        0.25
    """
    values, sinks = jnp.asarray(values, jnp.float32), jnp.asarray(sinks)
    if values.ndim != sinks.ndim or sinks.shape[-2] % values.shape[-2]:
        raise JaxsinkError(f"at_sinks: figures of shape {values.shape} do not fit sinks of shape {sinks.shape}.")
    real = jnp.broadcast_to(with_mask(sinks, mask)[1], sinks.shape)
    values = jnp.repeat(values, sinks.shape[-2] // values.shape[-2], axis=-2)

    def mean(where: Bool[Array, "*axes S"]) -> Float[Array, "*axes"]:
        count = where.sum(axis=-1)
        return jnp.where(count > 0, jnp.where(where, values, 0.0).sum(axis=-1) / jnp.maximum(count, 1), jnp.nan)

    here, elsewhere = mean(sinks & real), mean(real & ~sinks)
    return AtSinks(here, elsewhere, here / elsewhere)
