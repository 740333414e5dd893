"""Attention of one layer as one Pallas call: outputs, and how much attention every key receives, by kind of query.

**One pass.** A program works on one block of queries of one head and goes through the keys tile by tile with a running
maximum m and a running sum of weights (the online softmax). The weights exp(score - m) of each tile stay in VMEM together
with the m they were made with. After the last tile m is final, and so is the sum: the weights of each tile are rescaled by
exp(m of then - m) / sum and added up over the queries, in float32 on the vector unit. Nothing is computed twice, and
nothing of the size S x S leaves the chip's VMEM.

**What a query sees** is an interval of keys [lower, upper): causal, windows and blocks are all of that kind. Tiles outside
the intervals of a whole block are neither loaded nor computed; tiles inside all of them skip the comparison.
Padding and dropped keys are a bias on the keys of each head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Float, Float32, Int, Int32

from jaxsink.nn.kernels.arrays import LOG2_E
from jaxsink.nn.kernels.tiles import LANES, Tiles
from jaxsink.nn.softmax import HIDDEN

KIND, LOWER, UPPER, FIELDS = 0, 1, 2, 8  # rows of `queries`; a block of 8 rows is the smallest the hardware moves

Ref = Any  # memory that a program reads and writes; Pallas has no public type for it
Index = Int[Array, ""] | int


class Problem(NamedTuple):
    """Static: what a compiled kernel is made for."""

    heads: int
    kv_heads: int
    scale: float  # on the scores
    kinds: int  # 0 = no statistics, 1 = all queries together, n = by kind
    bounded: bool  # False = every query sees every key
    tiles: Tiles
    vmem: int  # bytes the kernel may use
    interpret: bool

    @property
    def rate(self) -> float:
        """On scores, for weights as powers of two."""
        return self.scale * LOG2_E


class Blind(NamedTuple):
    """Queries that would lose all their keys by the drop, and so see through it."""

    queries: Float32[Array, "B H 1 lanes"]  # 1 = sees through the drop
    bias: Float32[Array, "B 1 1 S"]  # without the drop
    blocks: Int32[Array, "B blocks"]  # 1 = some query of the block is blind


class Operands(NamedTuple):
    """Padded to the tiles; D is a multiple of 128, and each block of queries fills whole lanes."""

    q: Float[Array, "B Q HD"]
    k: Float[Array, "B S KD"]
    v: Float[Array, "B S KD"]
    bias: Float32[Array, "B _ 1 S"]  # of each head, or of all: log of the factors on keys over `scale`, or HIDDEN
    queries: Float32[Array, "B 8 lanes"]  # KIND (-1 = counts nowhere), LOWER and UPPER end of what each query sees
    limits: Int32[Array, "B 4 blocks"]  # smallest lower, largest lower, smallest upper, largest upper of a block
    blind: Blind | None


def attention(x: Operands, problem: Problem) -> tuple[Float[Array, "B Q HD"], Float32[Array, "B H N S"] | None]:
    """(outputs, what each key receives by kind of query)."""
    tiles, with_blind = problem.tiles, x.blind is not None
    batch, size = x.q.shape[0], x.q.shape[2] // problem.heads
    in_specs, query_spec = input_specs(x, problem)
    operands: list[Array] = [x.q, x.k, x.v, x.bias, x.queries]
    scalars: list[Array] = [x.limits]
    if x.blind is not None:
        operands += [x.blind.queries, x.blind.bias]
        scalars.append(x.blind.blocks)
    out_shape, out_specs = [jax.ShapeDtypeStruct(x.q.shape, x.q.dtype)], [query_spec]
    if problem.kinds:
        out_shape.append(jax.ShapeDtypeStruct((batch, problem.heads, problem.kinds, tiles.keys), jnp.float32))
        out_specs.append(pl.BlockSpec((1, 1, problem.kinds, tiles.keys), lambda b, h, *_: (b, h, 0, 0)))
    pairs = batch * problem.heads * tiles.queries * tiles.keys
    results = pl.pallas_call(
        partial(_program, problem=problem, with_blind=with_blind),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(batch, problem.heads, tiles.query_blocks, tiles.key_tiles),
            in_specs=in_specs,
            out_specs=out_specs,
            scratch_shapes=scratch(problem, size),
        ),
        out_shape=out_shape,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=problem.vmem
        ),
        cost_estimate=pl.CostEstimate(
            flops=4 * pairs * size,
            transcendentals=pairs,
            bytes_accessed=sum(a.size * a.dtype.itemsize for a in operands) + x.q.size * x.q.dtype.itemsize,
        ),
        interpret=problem.interpret,
        name="attention_received" if problem.kinds else "attention_alone",
    )(*scalars, *operands)
    return results[0], results[1] if problem.kinds else None


def input_specs(x: Operands, problem: Problem) -> tuple[list[pl.BlockSpec], pl.BlockSpec]:
    """Which part of every operand a program (b, h, i, j) is given; and that of the queries, which is also the outputs'."""
    tiles = problem.tiles
    size, group = x.q.shape[2] // problem.heads, problem.heads // problem.kv_heads
    block, tile = tiles.query_block, tiles.key_tile
    lanes = x.queries.shape[2] // tiles.query_blocks

    def key_tile(b: Index, i: Index, j: Index, limits: Ref) -> Index:
        """The tile to hold at step j: that which was there already, where j is outside of what the block sees."""
        if not problem.bounded:
            return j
        return jnp.clip(j, limits[b, 0, i] // tile, jnp.maximum(limits[b, 3, i] - 1, 0) // tile)

    def keys_of(heads: int) -> pl.BlockSpec:
        def index(b: Index, h: Index, i: Index, j: Index, limits: Ref, *_: Ref) -> tuple[Index, ...]:
            return b, h if heads > 1 else 0, 0, key_tile(b, i, j, limits)

        return pl.BlockSpec((1, 1, 1, tile), index)

    queries = pl.BlockSpec((1, block, size), lambda b, h, i, *_: (b, i, h))
    values = pl.BlockSpec((1, tile, size), lambda b, h, i, j, limits, *_: (b, key_tile(b, i, j, limits), h // group))
    facts = pl.BlockSpec((1, FIELDS, lanes), lambda b, h, i, *_: (b, 0, i))
    specs = [queries, values, values, keys_of(x.bias.shape[1]), facts]
    if x.blind is not None:
        specs += [pl.BlockSpec((1, 1, 1, lanes), lambda b, h, i, *_: (b, h, 0, i)), keys_of(1)]
    return specs, queries


def scratch(problem: Problem, size: int) -> list[pl.MemoryRef]:
    """VMEM that programs of one block of queries hand on to each other; see `Memory`."""
    tiles = problem.tiles
    block = tiles.query_block
    shapes: list[tuple[int, ...]] = [(block, LANES), (block, LANES), (block, size)]
    if problem.kinds:
        shapes += [(tiles.key_tiles, block, tiles.key_tile), (tiles.key_tiles, block, LANES)]
    return [pltpu.VMEM(shape, jnp.float32) for shape in shapes]


class Memory(NamedTuple):
    """What one program reads and writes: the parts of operands and results that are its own, and the scratch."""

    limits: Ref
    anyone: Ref | None
    q: Ref
    k: Ref
    v: Ref
    bias: Ref
    queries: Ref
    blind: Ref | None
    bare: Ref | None
    out: Ref
    columns: Ref | None
    largest: Ref  # the running maximum of every query
    total: Ref  # its sum of weights
    mixed: Ref  # its weighted values
    stash: Ref | None  # the weights of every tile …
    maxima: Ref | None  # … and the maximum they were made with

    @classmethod
    def of(cls, refs: tuple[Ref, ...], problem: Problem, with_blind: bool) -> Memory:
        """From Pallas's order, in which what a problem does not have is left out."""
        given, counts = iter(refs), problem.kinds > 0
        absent = {"anyone": not with_blind, "blind": not with_blind, "bare": not with_blind}
        absent |= {"columns": not counts, "stash": not counts, "maxima": not counts}
        return cls(*(None if absent.get(name) else next(given) for name in cls._fields))

    def column(self, rows: Float32[Array, "8 lanes"]) -> Float32[Array, "Q 8"]:
        """Facts about the queries of the block, one query below the other."""
        return rows.T[: self.q.shape[1]]


def _program(*refs: Ref, problem: Problem, with_blind: bool) -> None:
    """One tile of keys for one block of queries of one head."""
    x, tile = Memory.of(refs, problem, with_blind), problem.tiles.key_tile
    b, i, j = pl.program_id(0), pl.program_id(2), pl.program_id(3)
    first, last, inside, here = 0, problem.tiles.key_tiles - 1, True, True
    if problem.bounded:
        lowest, last_lower, first_upper, highest = (x.limits[b, n, i] for n in range(4))
        first, last = lowest // tile, jnp.maximum(highest - 1, 0) // tile
        inside = (j * tile >= last_lower) & ((j + 1) * tile <= first_upper)
        here = (j >= first) & (j <= last)
    plain = inside if x.anyone is None else inside & (x.anyone[b, i] == 0)

    @pl.when(j == 0)
    def _start() -> None:
        x.largest[...] = jnp.full_like(x.largest, -jnp.inf)
        x.total[...] = jnp.zeros_like(x.total)
        x.mixed[...] = jnp.zeros_like(x.mixed)
        if x.columns is not None:
            columns = x.columns

            @pl.when(i == 0)
            def _() -> None:
                columns[...] = jnp.zeros_like(columns)

    if problem.bounded:
        pl.when(here & plain)(lambda: _add_tile(x, problem, j, False))
        pl.when(here & ~plain)(lambda: _add_tile(x, problem, j, True))
    else:
        _add_tile(x, problem, j, False)

    @pl.when(j == problem.tiles.key_tiles - 1)
    def _finish() -> None:
        share = 1.0 / x.total[:, :1]
        x.out[0] = (x.mixed[...] * share).astype(x.out.dtype)
        if problem.kinds:
            lax.fori_loop(first, last + 1, _adder(x, problem, share), None)


def _add_tile(x: Memory, problem: Problem, j: Index, careful: bool) -> None:
    """The online softmax over one more tile of keys; careful: some query does not see all of them, or is blind."""
    exact = lax.Precision.HIGHEST if x.q.dtype == jnp.float32 else None
    tile, rate = problem.tiles.key_tile, problem.rate
    across = (((1,), (1,)), ((), ()))
    scores = lax.dot_general(x.q[0], x.k[0], across, precision=exact, preferred_element_type=jnp.float32)
    on_keys = x.bias[0, 0]
    if careful and x.blind is not None and x.bare is not None:
        sees_through = x.column(jnp.broadcast_to(x.blind[0, 0], (FIELDS, x.blind.shape[3])))[:, :1] > 0
        on_keys = jnp.where(sees_through, x.bare[0, 0], on_keys)
    scores = scores + on_keys
    if careful:
        of_query = x.column(x.queries[0])
        index = (lax.broadcasted_iota(jnp.int32, (1, tile), 1) + j * tile).astype(jnp.float32)
        seen = (index >= of_query[:, LOWER : LOWER + 1]) & (index < of_query[:, UPPER : UPPER + 1])
        scores = jnp.where(seen, scores, HIDDEN)
    before = x.largest[:, :1]
    now = jnp.maximum(before, scores.max(axis=1, keepdims=True))
    weights = jnp.exp2((scores - now) * rate)
    shrink = jnp.exp2((before - now) * rate)
    x.largest[...] = jnp.broadcast_to(now, x.largest.shape)
    x.total[...] = x.total[...] * shrink + weights.sum(axis=1, keepdims=True)
    plainly = (((1,), (0,)), ((), ()))
    x.mixed[...] = x.mixed[...] * shrink + lax.dot_general(
        weights.astype(x.v.dtype), x.v[0], plainly, precision=exact, preferred_element_type=jnp.float32
    )
    if x.stash is not None and x.maxima is not None:
        x.stash[j] = weights
        x.maxima[j] = x.largest[...]


def _adder(x: Memory, problem: Problem, share: Float32[Array, "Q 1"]) -> Callable[[Index, None], None]:
    """Adds what the keys of a tile receive, now that maxima and sums are final."""
    assert x.stash is not None and x.maxima is not None and x.columns is not None
    stash, maxima, columns, tile = x.stash, x.maxima, x.columns, problem.tiles.key_tile
    kind = x.column(x.queries[0])[:, KIND : KIND + 1]

    def add_up(t: Index, _: None) -> None:
        weights, at = stash[t], pl.ds(t * tile, tile)
        factor = share * jnp.exp2((maxima[t][:, :1] - x.largest[:, :1]) * problem.rate)
        for n in range(problem.kinds):
            counts = kind >= 0 if problem.kinds == 1 else kind == n
            added = (weights * jnp.where(counts, factor, 0.0)).sum(axis=0, keepdims=True)
            columns[0, 0, n : n + 1, at] = columns[0, 0, n : n + 1, at] + added

    return add_up
