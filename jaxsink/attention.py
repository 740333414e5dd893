"""The only softmax over keys in the project: who may see whom, dropped keys, and the tap.

**What a row sees.** A query sees the real keys that the family's pattern allows (all, causal, sliding window, blocks),
and that a caller's own `visible` allows. `drop` then hides keys from every query of a head, before the softmax, so the
rest of the row re-normalises and a dropped column receives exactly 0.

**No row goes blind.** A row of which *every* visible key is dropped ignores the drop: it attends as if nothing had been
dropped. (So the first token of a causal model always sees itself.) A real query that `visible` leaves with no key at
all attends uniformly over the real keys, as the PyTorch models do.

Backends compute the same numbers: "naive" holds the map of one layer (B x H x Q x S), "blocked" goes through the queries
in blocks of `BLOCK` rows with full key rows, so memory is B x H x BLOCK x S. A backend is an entry of `BACKENDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsink.errors import JaxsinkError
from jaxsink.record import Recorder, Tap

BLOCK = 128
NAIVE_LIMIT = 1024  # from here on the map of a layer is not held as a whole
HIDDEN = jnp.finfo(jnp.float32).min  # finite: a row of hidden keys stays finite, and exp() of it is exactly 0 elsewhere


class Visibility(NamedTuple):
    """Which keys each query may see, as far as the layer's pattern goes; rows are made on demand, never S x S at once."""

    mask: Array  # bool[B,S], True = real key
    key_position: Array  # i32[B,S]
    query_position: Array  # i32[B,Q]
    query_index: Array  # i32[Q], index of each query among the keys
    custom: Array | None  # bool[B,Q,S]
    causal: bool
    block: int | None
    window: int | None
    use_window: Array | None  # bool[], does this layer use the window; None = yes

    def block_rows(self, start: Array | int, size: int) -> Visibility:
        """The same for queries start … start + size - 1."""
        return self._replace(
            query_position=lax.dynamic_slice_in_dim(self.query_position, start, size, 1),
            query_index=lax.dynamic_slice_in_dim(self.query_index, start, size, 0),
            custom=None if self.custom is None else lax.dynamic_slice_in_dim(self.custom, start, size, 1),
        )

    def seen(self) -> Array:
        """bool[B,1,Q or 1,S]."""
        seen = self.mask[:, None, None, :]
        distance = self.query_index[:, None] - jnp.arange(self.mask.shape[1])[None, :]  # [Q,S]
        if self.causal:
            seen = seen & (distance >= 0)
        if self.window is not None:
            near = distance < self.window
            seen = seen & (near if self.use_window is None else near | ~self.use_window)
        if self.block is not None:
            of_key, of_query = self.key_position // self.block, self.query_position // self.block
            seen = seen & (of_key[:, None, None, :] <= of_query[:, None, :, None])
        if self.custom is not None:
            seen = seen & self.custom[:, None]
        return seen


class Sequence(NamedTuple):
    """The whole sequence that the keys stand for, as statistics see it."""

    tokens: Array  # i32[B,S]
    kind: Array  # i32[B,S]
    counted: Array  # bool[B,S], real tokens of sequences that statistics count


class Inputs(NamedTuple):
    """Everything one layer's attention works on."""

    q: Array  # [B,Q,H,D]
    k: Array  # [B,S,K,D]
    v: Array  # [B,S,K,D]
    visibility: Visibility
    drop: Array | None  # bool[B,H,S]
    rows: Array  # bool[B,Q], queries that statistics count
    row_kind: Array  # i32[B,Q]
    hidden: Array  # [B,Q,E]
    layer: Array  # i32[]
    sequence: Sequence  # what the keys are

    def block_rows(self, start: Array | int, size: int) -> Inputs:
        def part(x: Array) -> Array:
            return lax.dynamic_slice_in_dim(x, start, size, 1)

        return self._replace(
            q=part(self.q),
            visibility=self.visibility.block_rows(start, size),
            rows=part(self.rows),
            row_kind=part(self.row_kind),
            hidden=part(self.hidden),
        )


def probabilities(x: Inputs) -> Array:
    """f32[B,H,Q,S]: softmax of the scaled scores over the keys each query may see."""
    batch, queries, heads, size = x.q.shape
    keys, kv_heads = x.k.shape[1], x.k.shape[2]
    grouped = x.q.reshape(batch, queries, kv_heads, heads // kv_heads, size)
    scores = jnp.einsum("bqkgd,bskd->bkgqs", grouped, x.k, preferred_element_type=jnp.float32, precision=exact(x.q))
    scores = scores.reshape(batch, heads, queries, keys) * (size**-0.5)

    seen = x.visibility.seen()
    blind = None if x.visibility.custom is None else ~seen.any(axis=-1, keepdims=True)
    if x.drop is not None:
        kept = seen & ~x.drop[:, :, None, :]
        seen = jnp.where(kept.any(axis=-1, keepdims=True), kept, seen)
    if blind is not None:
        scores = jnp.where(blind, 0.0, scores)
        seen = seen | (blind & x.visibility.mask[:, None, None, :])
    return jax.nn.softmax(jnp.where(seen, scores, HIDDEN), axis=-1)


def weighted_values(probs: Array, v: Array) -> Array:
    """f32[B,H,Q,S] x [B,S,K,D] -> [B,Q,H,D]."""
    batch, heads, queries, keys = probs.shape
    kv_heads, size = v.shape[2:]
    grouped = probs.astype(v.dtype).reshape(batch, kv_heads, heads // kv_heads, queries, keys)
    return jnp.einsum("bkgqs,bskd->bqkgd", grouped, v, precision=exact(v)).reshape(batch, queries, heads, size)


def exact(x: Array) -> str | None:
    """float32 models get true float32 products on every device; bfloat16 ones the device's native ones."""
    return "highest" if x.dtype == jnp.float32 else None


def tap_of(x: Inputs, probs: Array | None) -> Tap:
    return Tap(
        layer=x.layer,
        probs=None if probs is None else jnp.where(x.rows[:, None, :, None], probs, 0.0),
        rows=x.rows,
        row_index=x.visibility.query_index,
        row_kind=x.row_kind,
        q=x.q,
        k=x.k,
        v=x.v,
        hidden=x.hidden,
        mask=x.sequence.counted,
        tokens=x.sequence.tokens,
        key_kind=x.sequence.kind,
    )


def naive(x: Inputs, recorders: tuple[Recorder, ...]) -> tuple[Array, tuple[Any, ...]]:
    probs = probabilities(x)
    tap = tap_of(x, probs)
    return weighted_values(probs, x.v), tuple(recorder.read(tap) for recorder in recorders)


def blocked(x: Inputs, recorders: tuple[Recorder, ...]) -> tuple[Array, tuple[Any, ...]]:
    """Scan over query blocks: softmax is local to a row, so one pass gives outputs and column sums."""
    queries = x.q.shape[1]
    size = min(BLOCK, queries)
    padded = pad_queries(x, -queries % size)
    by_block = tuple(r for r in recorders if r.join in ("sum", "rows"))
    whole = any(r.join == "whole" for r in recorders)

    def one(sums: tuple[Any, ...], start: Array) -> tuple[tuple[Any, ...], tuple[Array, tuple[Any, ...], Array | None]]:
        block = padded.block_rows(start, size)
        probs = probabilities(block)
        tap = tap_of(block, probs)
        values = [recorder.read(tap) for recorder in by_block]
        added = iter([v for r, v in zip(by_block, values, strict=True) if r.join == "sum"])
        sums = tuple(jax.tree.map(jnp.add, total, next(added)) for total in sums)
        rows = tuple(v for r, v in zip(by_block, values, strict=True) if r.join == "rows")
        return sums, (weighted_values(probs, x.v), rows, probs if whole else None)

    def first_sums() -> tuple[Any, ...]:
        block = padded.block_rows(0, size)
        tap = tap_of(block, probabilities(block))
        return tuple(r.read(tap) for r in by_block if r.join == "sum")

    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(first_sums))
    starts = jnp.arange(0, padded.q.shape[1], size)
    sums, (out, rows, maps) = lax.scan(one, zeros, starts)

    def side_by_side(blocks: Array, axis: int) -> Array:
        """[N, …, size at axis, …] -> […, Q at axis, …]."""
        moved = jnp.moveaxis(blocks, 0, axis)
        joined = moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])
        return lax.slice_in_dim(joined, 0, queries, axis=axis)

    full_tap = tap_of(x, None if maps is None else side_by_side(maps, 2))
    by_sum, by_rows = iter(sums), iter(rows)
    records = []
    for recorder in recorders:
        if recorder.join == "sum":
            records.append(next(by_sum))
        elif recorder.join == "rows":
            records.append(jax.tree.map(lambda blocks: side_by_side(blocks, 2), next(by_rows)))
        else:
            records.append(recorder.read(full_tap))
    return side_by_side(out, 1), tuple(records)


def pad_queries(x: Inputs, extra: int) -> Inputs:
    """Append padded queries, which count nowhere."""
    if extra == 0:
        return x

    def pad(value: Array, axis: int = 1) -> Array:
        widths = [(0, extra) if i == axis else (0, 0) for i in range(value.ndim)]
        return jnp.pad(value, widths)

    see = x.visibility
    return x._replace(
        q=pad(x.q),
        visibility=see._replace(
            query_position=pad(see.query_position),
            query_index=pad(see.query_index, 0),
            custom=None if see.custom is None else pad(see.custom),
        ),
        rows=pad(x.rows),
        row_kind=pad(x.row_kind),
        hidden=pad(x.hidden),
    )


Backend = Callable[[Inputs, tuple[Recorder, ...]], tuple[Array, tuple[Any, ...]]]
BACKENDS: dict[str, Backend] = {"naive": naive, "blocked": blocked}


def choose_backend(name: str | None, queries: int, keys: int) -> str:
    """`None` picks by size; a name is taken as it is."""
    if name is None:
        return "naive" if queries * keys <= NAIVE_LIMIT**2 else "blocked"
    if name not in BACKENDS:
        raise JaxsinkError(f"there is no attention backend {name!r}; known are: {', '.join(BACKENDS)}.")
    return name


def attend(x: Inputs, recorders: tuple[Recorder, ...], backend: str) -> tuple[Array, tuple[Any, ...]]:
    """([B,Q,H,D], one reduced record per recorder) of one layer."""
    out, records = BACKENDS[backend](x, recorders)
    tap = tap_of(x, None)
    return out, tuple(r.finish(value, tap) for r, value in zip(recorders, records, strict=True))
