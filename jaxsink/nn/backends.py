"""Attention with probabilities that recorders can read: whole maps, or blocks of queries with all their keys."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int, PyTree

from jaxsink.nn.recorder import Recorder, look
from jaxsink.nn.softmax import mix, probabilities
from jaxsink.nn.taps import Tap

BLOCK = 128

Unreduced = tuple[PyTree[Array], ...]  # one per recorder, not yet reduced


def naive(tap: Tap, recorders: tuple[Recorder, ...]) -> tuple[Float[Array, "B Q H D"], Unreduced]:
    """The map of the layer in memory: B x H x Q x S numbers."""
    out, probs, extra = mix(tap)
    tap = tap.with_probs(probs, extra)
    return out, tuple(look(recorder, tap) for recorder in recorders)


def blocked(tap: Tap, recorders: tuple[Recorder, ...]) -> tuple[Float[Array, "B Q H D"], Unreduced]:
    """Scan over query blocks: softmax is local to a query, so one pass gives outputs and sums over queries."""
    queries = tap.q.shape[1]
    size = min(BLOCK, queries)
    padded = pad_queries(tap, -queries % size)
    adding = tuple(r for r in recorders if r.join == "sum")
    by_query = tuple(r for r in recorders if r.join == "rows")
    whole = any(r.join == "whole" for r in recorders)

    def one(sums: Unreduced, start: Int[Array, ""]) -> tuple[Unreduced, tuple[Array, Unreduced, PyTree[Array]]]:
        block = block_of(padded, start, size)
        out, probs, extra = mix(block)
        block = block.with_probs(probs, extra)
        sums = tuple(jax.tree.map(jnp.add, total, look(r, block)) for total, r in zip(sums, adding, strict=True))
        return sums, (out, tuple(look(r, block) for r in by_query), (probs, extra) if whole else None)

    def first_sums() -> Unreduced:
        block = block_of(padded, 0, size)
        block = block.with_probs(*probabilities(block))
        return tuple(look(r, block) for r in adding)

    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(first_sums))
    sums, (out, rows, maps) = lax.scan(one, zeros, jnp.arange(0, padded.q.shape[1], size))

    def joined(blocks: PyTree[Array], axis: int) -> PyTree[Array]:
        return jax.tree.map(lambda x: side_by_side(x, axis, queries), blocks)

    full = tap if maps is None else tap.with_probs(*joined(maps, 2))
    by_sum, by_rows = iter(sums), iter(joined(rows, 2))
    values = tuple(
        next(by_sum) if r.join == "sum" else next(by_rows) if r.join == "rows" else look(r, full) for r in recorders
    )
    return side_by_side(out, 1, queries), values


def block_of(tap: Tap, start: Int[Array, ""] | int, size: int) -> Tap:
    """The queries start … start + size - 1."""
    return tap.map_queries(lambda x, axis: lax.dynamic_slice_in_dim(x, start, size, axis))


def pad_queries(tap: Tap, extra: int) -> Tap:
    """Append padded queries, which count nowhere."""

    def pad(x: Array, axis: int) -> Array:
        return jnp.pad(x, [(0, extra) if i == axis else (0, 0) for i in range(x.ndim)])

    return tap if extra == 0 else tap.map_queries(pad)


def side_by_side(blocks: Array, axis: int, length: int) -> Array:
    """[N, …, size at axis, …] -> […, length at axis, …]."""
    moved = jnp.moveaxis(blocks, 0, axis)
    joined = moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])
    return lax.slice_in_dim(joined, 0, length, axis=axis)
