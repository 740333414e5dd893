"""The only softmax over keys in the project: who may see whom, dropped keys, and the tap.

**What a row sees.** A query sees the real keys that the family's pattern allows (all, causal, sliding window, blocks),
and that a caller's own `visible` allows. `drop` then hides keys from every query of a head, before the softmax, so the
rest of the row re-normalises and a dropped column receives exactly 0. `drop` may also be factors: a key's attention is
multiplied by its factor before the row re-normalises, so 0 hides it, 1 leaves it alone and 0.5 halves its odds.

**No row goes blind.** A row of which *every* visible key is dropped ignores the drop: it attends as if nothing had been
dropped. (So the first token of a causal model always sees itself.) A real query that `visible` leaves with no key at
all attends uniformly over the real keys, as the PyTorch models do. With the model option `extra_sink`, every row also
sees one token that is not part of the sequence and that nothing hides, so neither rule is needed.

Backends compute the same numbers: "naive" holds the map of one layer (B x H x Q x S), "blocked" goes through the queries
in blocks of `BLOCK` rows with full key rows, so memory is B x H x BLOCK x S, and "pallas" is a TPU kernel that holds no map
in memory at all (jaxsink/nn/kernels/backend.py; layers and records it is not made for run on "blocked"). A backend is an
entry of `BACKENDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh

from jaxsink.errors import JaxsinkError
from jaxsink.nn.kernels.tiles import on_tpu
from jaxsink.recording.recorders import Recorder, Tap

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
    drop: Array | None  # bool[B,H,S], keys to hide, or f32[B,H,S], factors
    rows: Array  # bool[B,Q], queries that statistics count
    row_kind: Array  # i32[B,Q]
    hidden: Array  # [B,Q,E]
    layer: Array  # i32[]
    sequence: Sequence  # what the keys are
    extra: tuple[Array, Array] | None = None  # key and value [K,D] of the token that everybody sees
    mesh: Mesh | None = None  # where the model lies

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


def probabilities(x: Inputs) -> tuple[Array, Array | None]:
    """f32[B,H,Q,S]: softmax of the scaled scores over the keys each query may see; and f32[B,H,Q] on the extra sink."""
    batch, queries, heads, size = x.q.shape
    keys, kv_heads = x.k.shape[1], x.k.shape[2]
    q = heads_first(x.q).reshape(batch, kv_heads, -1, size)  # the queries of one kv head are one long matrix
    k = heads_first(x.k)
    scores = jnp.einsum("bkqd,bksd->bkqs", q, k, preferred_element_type=jnp.float32, precision=exact(x.q))
    scores = scores.reshape(batch, heads, queries, keys) * (size**-0.5)

    seen = x.visibility.seen()
    seen_at_all = seen
    if x.drop is not None:
        hides = x.drop if x.drop.dtype == bool else x.drop <= 0
        seen = seen & ~hides[:, :, None, :]
        if x.drop.dtype != bool:
            scores = scores + jnp.log(jnp.where(hides, 1.0, x.drop))[:, :, None, :]
    if x.extra is not None:
        return beside_extra(jnp.where(seen, scores, HIDDEN), q, x.extra[0])
    if x.drop is not None:
        seen = jnp.where(seen.any(axis=-1, keepdims=True), seen, seen_at_all)
    if x.visibility.custom is not None:
        blind = ~seen_at_all.any(axis=-1, keepdims=True)
        scores = jnp.where(blind, 0.0, scores)
        seen = seen | (blind & x.visibility.mask[:, None, None, :])
    return jax.nn.softmax(jnp.where(seen, scores, HIDDEN), axis=-1), None


def beside_extra(scores: Array, q: Array, key: Array) -> tuple[Array, Array]:
    """The softmax over [B,H,Q,S] scores and one key [K,D] more, as (f32[B,H,Q,S], f32[B,H,Q]); q is [B,K,GQ,D]."""
    to_extra = jnp.einsum("bkqd,kd->bkq", q, key, preferred_element_type=jnp.float32, precision=exact(q))
    to_extra = to_extra.reshape(scores.shape[:3]) * (q.shape[-1] ** -0.5)
    share = jax.nn.sigmoid(to_extra - jax.nn.logsumexp(scores, axis=-1))
    return jax.nn.softmax(scores, axis=-1) * (1 - share)[..., None], share


def weighted_values(probs: Array, v: Array, extra: Array | None = None, value: Array | None = None) -> Array:
    """f32[B,H,Q,S] x [B,S,K,D] -> [B,Q,H,D], and the extra sink's share f32[B,H,Q] of its value [K,D]."""
    batch, heads, queries, keys = probs.shape
    kv_heads, size = v.shape[2:]
    grouped = probs.astype(v.dtype).reshape(batch, kv_heads, -1, keys)
    out = jnp.einsum("bkqs,bksd->bkqd", grouped, heads_first(v), precision=exact(v))
    if extra is not None and value is not None:
        out = out + extra.astype(v.dtype).reshape(batch, kv_heads, -1, 1) * value[:, None, :]
    return heads_first(out.reshape(batch, heads, queries, size))


def heads_first(x: Array) -> Array:
    """[B,Q,H,D] -> [B,H,Q,D], or back. On CPU, products of matrices that lie this way take half the time."""
    return x.transpose(0, 2, 1, 3)


def exact(x: Array) -> str | None:
    """float32 models get true float32 products on every device; bfloat16 ones the device's native ones."""
    return "highest" if x.dtype == jnp.float32 else None


def mix(x: Inputs) -> tuple[Array, Array, Array | None]:
    """([B,Q,H,D] outputs, probabilities, share of the extra sink)."""
    probs, extra = probabilities(x)
    return weighted_values(probs, x.v, extra, None if x.extra is None else x.extra[1]), probs, extra


def tap_of(x: Inputs, probs: Array | None, extra: Array | None = None) -> Tap:
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
        extra=None if extra is None else jnp.where(x.rows[:, None, :], extra, 0.0),
    )


def naive(x: Inputs, recorders: tuple[Recorder, ...]) -> tuple[Array, tuple[Any, ...]]:
    out, probs, extra = mix(x)
    tap = tap_of(x, probs, extra)
    return out, tuple(recorder.read(tap) for recorder in recorders)


def blocked(x: Inputs, recorders: tuple[Recorder, ...]) -> tuple[Array, tuple[Any, ...]]:
    """Scan over query blocks: softmax is local to a row, so one pass gives outputs and column sums."""
    queries = x.q.shape[1]
    size = min(BLOCK, queries)
    padded = pad_queries(x, -queries % size)
    by_block = tuple(r for r in recorders if r.join in ("sum", "rows"))
    whole = any(r.join == "whole" for r in recorders)

    def one(sums: tuple[Any, ...], start: Array) -> tuple[tuple[Any, ...], tuple[Array, tuple[Any, ...], Any]]:
        block = padded.block_rows(start, size)
        out, probs, extra = mix(block)
        tap = tap_of(block, probs, extra)
        values = [recorder.read(tap) for recorder in by_block]
        added = iter([v for r, v in zip(by_block, values, strict=True) if r.join == "sum"])
        sums = tuple(jax.tree.map(jnp.add, total, next(added)) for total in sums)
        rows = tuple(v for r, v in zip(by_block, values, strict=True) if r.join == "rows")
        return sums, (out, rows, (probs, extra) if whole else None)

    def first_sums() -> tuple[Any, ...]:
        block = padded.block_rows(0, size)
        tap = tap_of(block, *probabilities(block))
        return tuple(r.read(tap) for r in by_block if r.join == "sum")

    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(first_sums))
    starts = jnp.arange(0, padded.q.shape[1], size)
    sums, (out, rows, maps) = lax.scan(one, zeros, starts)

    def side_by_side(blocks: Array, axis: int) -> Array:
        """[N, …, size at axis, …] -> […, Q at axis, …]."""
        moved = jnp.moveaxis(blocks, 0, axis)
        joined = moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])
        return lax.slice_in_dim(joined, 0, queries, axis=axis)

    full_tap = tap_of(x, *jax.tree.map(lambda blocks: side_by_side(blocks, 2), (None, None) if maps is None else maps))
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


def pallas(x: Inputs, recorders: tuple[Recorder, ...]) -> tuple[Array, tuple[Any, ...]]:
    from jaxsink.nn.kernels import backend  # only who uses Pallas waits for its import

    return backend.pallas(x, recorders)


Backend = Callable[[Inputs, tuple[Recorder, ...]], tuple[Array, tuple[Any, ...]]]
BACKENDS: dict[str, Backend] = {"naive": naive, "blocked": blocked, "pallas": pallas}


def choose_backend(name: str | None, queries: int, keys: int, mesh: Mesh | None = None) -> str:
    """`None` picks by device (of the mesh, or JAX's own) and size; a name is taken as it is."""
    if name is None:
        if on_tpu(mesh):
            return "pallas"
        return "naive" if queries * keys <= NAIVE_LIMIT**2 else "blocked"
    if name not in BACKENDS:
        raise JaxsinkError(f"there is no attention backend {name!r}; known are: {', '.join(BACKENDS)}.")
    return name


def attend(x: Inputs, recorders: tuple[Recorder, ...], backend: str) -> tuple[Array, tuple[Any, ...]]:
    """([B,Q,H,D], one reduced record per recorder) of one layer."""
    out, records = BACKENDS[backend](x, recorders)
    tap = tap_of(x, None)
    return out, tuple(r.finish(value, tap) for r, value in zip(recorders, records, strict=True))
