"""Sinks against the rest: what different queries sink to, and what sets a sink's vectors apart from other tokens'."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxsink.errors import JaxsinkError
from jaxsink.sinks.rules import Rule, Threshold, detect, with_mask


@jax.jit
def as_if_all(by_query: Any) -> Any:
    """`record.received_by_query()` with each kind's scores scaled as if all queries were of that kind.

    Queries of one kind are fewer than all, so the mean of their column sums is below 1, and no ε would fit both kinds.
    Each row gives away 1 in all, so a kind's number of queries is the sum of its scores. Then every rule, and `track`,
    applies to a kind's scores [..., S] as to those of `received()`. All zero where there is no query of the kind.
    """
    totals = {kind: scores.sum(axis=-1, keepdims=True) for kind, scores in by_query.items()}
    every = sum(totals.values())
    return {kind: scores * every / jnp.maximum(totals[kind], 1e-6) for kind, scores in by_query.items()}


class Split(NamedTuple):
    """What masked and unmasked queries sink to (Fig. 6a); "..." are the record's axes before the sequence."""

    masked: Array  # bool[...,S], sinks of masked queries
    unmasked: Array  # bool[...,S]
    same_top: Array  # bool[...], both kinds give most to the same token
    overlap: Array  # f32[...], sinks of both over sinks of either; NaN where neither has one


def split_by_query(by_query: Any, rule: Rule | None = None, mask: Any = None) -> Split:
    """Sinks by the kind of query, from `record.received_by_query()`; prompt tokens count as unmasked queries."""
    if not isinstance(by_query, dict) or set(by_query) != {"masked", "unmasked", "prompt"}:
        raise JaxsinkError("split_by_query needs what record.received_by_query() recorded.")
    joined = {"masked": by_query["masked"], "unmasked": by_query["unmasked"] + by_query["prompt"]}
    scores = as_if_all(joined)
    found = {kind: detect(value, rule or Threshold(), mask) for kind, value in scores.items()}
    either = (found["masked"] | found["unmasked"]).sum(axis=-1)
    both = (found["masked"] & found["unmasked"]).sum(axis=-1)
    same = jnp.argmax(scores["masked"], axis=-1) == jnp.argmax(scores["unmasked"], axis=-1)
    overlap = jnp.where(either > 0, both / jnp.maximum(either, 1), jnp.nan)
    return Split(found["masked"], found["unmasked"], same, overlap)


class AtSinks(NamedTuple):
    """Means over sinks and over the other real tokens, [...]; NaN where there are none."""

    sinks: Array
    elsewhere: Array
    ratio: Array


def at_sinks(values: Any, sinks: Any, mask: Any = None) -> AtSinks:
    """How a figure per token differs at sinks: values f32[...,K or H,S], sinks bool[...,H,S].

    For `record.value_norm()` (low at sinks), `record.key_norm()`, or a part of `record.logit_parts()`. Figures per kv head
    serve all heads of its group.
    """
    values, sinks = jnp.asarray(values, jnp.float32), jnp.asarray(sinks)
    if values.ndim != sinks.ndim or sinks.shape[-2] % values.shape[-2]:
        raise JaxsinkError(f"at_sinks: figures of shape {values.shape} do not fit sinks of shape {sinks.shape}.")
    real = jnp.broadcast_to(with_mask(sinks, mask)[1], sinks.shape)
    values = jnp.repeat(values, sinks.shape[-2] // values.shape[-2], axis=-2)

    def mean(where: Array) -> Array:
        count = where.sum(axis=-1)
        return jnp.where(count > 0, jnp.where(where, values, 0.0).sum(axis=-1) / jnp.maximum(count, 1), jnp.nan)

    here, elsewhere = mean(sinks & real), mean(real & ~sinks)
    return AtSinks(here, elsewhere, here / elsewhere)
