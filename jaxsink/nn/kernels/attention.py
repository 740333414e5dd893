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

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxsink.nn.kernels.tiles import LANES, Tiles

HIDDEN = float(jnp.finfo(jnp.float32).min)
LOG2_E = 1.4426950408889634
KIND, LOWER, UPPER, FIELDS = 0, 1, 2, 8  # rows of `queries`; a block of 8 rows is the smallest the hardware moves


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


class Operands(NamedTuple):
    """Padded to the tiles; D is a multiple of 128."""

    q: Array  # [B,Q,H*D]
    k: Array  # [B,S,K*D]
    v: Array  # [B,S,K*D]
    bias: Array  # f32[B,H or 1,1,S], log of the factors on keys over `scale`, or HIDDEN
    queries: Array  # f32[B,8,lanes]: kind of query (-1 = counts nowhere), lower and upper end of what it sees; each
    #                 block of queries fills whole lanes
    limits: Array  # i32[B,4,query blocks]: smallest lower, largest lower, smallest upper, largest upper of a block
    blind: tuple[Array, Array, Array] | None  # f32[B,H,1,lanes]: 1 = sees through the drop; bias without the drop
    #                                           f32[B,1,1,S]; i32[B,query blocks]: 1 = some query of a block is blind


def attention(x: Operands, problem: Problem) -> tuple[Array, Array | None]:
    """([B,Q,H*D], f32[B,H,kinds,S] column sums)."""
    tiles = problem.tiles
    batch, size = x.q.shape[0], x.q.shape[2] // problem.heads
    group = problem.heads // problem.kv_heads
    block, tile = tiles.query_block, tiles.key_tile

    def key_tile(b: Any, i: Any, j: Any, limits: Any) -> Any:
        """The tile to hold at step j: that which was there already, where j is outside of what the block sees."""
        if not problem.bounded:
            return j
        return jnp.clip(j, limits[b, 0, i] // tile, jnp.maximum(limits[b, 3, i] - 1, 0) // tile)

    def kv(b: Any, h: Any, i: Any, j: Any, limits: Any, *_: Any) -> Any:
        return b, key_tile(b, i, j, limits), h // group

    def keys_of(heads: int) -> Any:
        def index(b: Any, h: Any, i: Any, j: Any, limits: Any, *_: Any) -> Any:
            return b, h if heads > 1 else 0, 0, key_tile(b, i, j, limits)

        return pl.BlockSpec((1, 1, 1, tile), index)

    def q_block(b: Any, h: Any, i: Any, *_: Any) -> Any:
        return b, i, h

    lanes = x.queries.shape[2] // tiles.query_blocks
    in_specs = [
        pl.BlockSpec((1, block, size), q_block),
        pl.BlockSpec((1, tile, size), kv),
        pl.BlockSpec((1, tile, size), kv),
        keys_of(x.bias.shape[1]),
        pl.BlockSpec((1, FIELDS, lanes), lambda b, h, i, *_: (b, 0, i)),
    ]
    operands: list[Array] = [x.q, x.k, x.v, x.bias, x.queries]
    scalars: list[Array] = [x.limits]
    if x.blind is not None:
        blind, without_drop, anyone = x.blind
        in_specs += [pl.BlockSpec((1, 1, 1, lanes), lambda b, h, i, *_: (b, h, 0, i)), keys_of(1)]
        operands += [blind, without_drop]
        scalars.append(anyone)
    out_shape = [jax.ShapeDtypeStruct(x.q.shape, x.q.dtype)]
    out_specs = [pl.BlockSpec((1, block, size), q_block)]
    scratch = [pltpu.VMEM((block, LANES), jnp.float32), pltpu.VMEM((block, LANES), jnp.float32)]
    scratch.append(pltpu.VMEM((block, size), jnp.float32))
    if problem.kinds:
        out_shape.append(jax.ShapeDtypeStruct((batch, problem.heads, problem.kinds, tiles.keys), jnp.float32))
        out_specs.append(pl.BlockSpec((1, 1, problem.kinds, tiles.keys), lambda b, h, *_: (b, h, 0, 0)))
        scratch.append(pltpu.VMEM((tiles.key_tiles, block, tile), jnp.float32))
        scratch.append(pltpu.VMEM((tiles.key_tiles, block, LANES), jnp.float32))
    pairs = batch * problem.heads * tiles.queries * tiles.keys
    results = pl.pallas_call(
        partial(_program, problem=problem, with_blind=x.blind is not None),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(batch, problem.heads, tiles.query_blocks, tiles.key_tiles),
            in_specs=in_specs,
            out_specs=out_specs,
            scratch_shapes=scratch,
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


def _program(*refs: Any, problem: Problem, with_blind: bool) -> None:
    """One tile of keys for one block of queries of one head."""
    tiles, tile = problem.tiles, problem.tiles.key_tile
    given = iter(refs)

    def optional(there: bool) -> Any:
        return next(given) if there else None

    limits, anyone = next(given), optional(with_blind)
    q, k, v, bias, queries = (next(given) for _ in range(5))
    blind, bare = optional(with_blind), optional(with_blind)
    out, columns = next(given), optional(problem.kinds > 0)
    largest, total, mixed = (next(given) for _ in range(3))
    stash, maxima = optional(problem.kinds > 0), optional(problem.kinds > 0)
    b, i, j = pl.program_id(0), pl.program_id(2), pl.program_id(3)
    block = q.shape[1]
    exact = lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    rate = problem.scale * LOG2_E

    if problem.bounded:
        lowest, last_lower, first_upper, highest = (limits[b, n, i] for n in range(4))
        first, last = lowest // tile, jnp.maximum(highest - 1, 0) // tile
        inside = (j * tile >= last_lower) & ((j + 1) * tile <= first_upper)
        here = (j >= first) & (j <= last)
    else:
        first, last, inside, here = 0, tiles.key_tiles - 1, True, True
    plain = inside if not with_blind else inside & (anyone[b, i] == 0)

    def column(rows: Array) -> Array:
        """[8,lanes] -> [Q,8]."""
        return rows.T[:block]

    @pl.when(j == 0)
    def _start() -> None:
        largest[...] = jnp.full_like(largest, -jnp.inf)
        total[...] = jnp.zeros_like(total)
        mixed[...] = jnp.zeros_like(mixed)
        if problem.kinds:

            @pl.when(i == 0)
            def _() -> None:
                columns[...] = jnp.zeros_like(columns)

    def add_tile(careful: bool) -> None:
        scores = lax.dot_general(
            q[0], k[0], (((1,), (1,)), ((), ())), precision=exact, preferred_element_type=jnp.float32
        )
        on_keys = bias[0, 0]
        if careful and with_blind:
            sees_through = column(jnp.broadcast_to(blind[0, 0], (FIELDS, blind.shape[3])))[:, :1] > 0
            on_keys = jnp.where(sees_through, bare[0, 0], on_keys)
        scores = scores + on_keys
        if careful:
            of_query = column(queries[0])
            index = (lax.broadcasted_iota(jnp.int32, (1, tile), 1) + j * tile).astype(jnp.float32)
            seen = (index >= of_query[:, LOWER : LOWER + 1]) & (index < of_query[:, UPPER : UPPER + 1])
            scores = jnp.where(seen, scores, HIDDEN)
        before = largest[:, :1]
        now = jnp.maximum(before, scores.max(axis=1, keepdims=True))
        weights = jnp.exp2((scores - now) * rate)
        shrink = jnp.exp2((before - now) * rate)
        largest[...] = jnp.broadcast_to(now, largest.shape)
        total[...] = total[...] * shrink + weights.sum(axis=1, keepdims=True)
        mixed[...] = mixed[...] * shrink + lax.dot_general(
            weights.astype(v.dtype),
            v[0],
            (((1,), (0,)), ((), ())),
            precision=exact,
            preferred_element_type=jnp.float32,
        )
        if problem.kinds:
            stash[j] = weights
            maxima[j] = largest[...]

    if problem.bounded:
        pl.when(here & plain)(lambda: add_tile(False))
        pl.when(here & ~plain)(lambda: add_tile(True))
    else:
        add_tile(False)

    @pl.when(j == tiles.key_tiles - 1)
    def _finish() -> None:
        share = 1.0 / total[:, :1]
        out[0] = (mixed[...] * share).astype(out.dtype)
        if not problem.kinds:
            return
        kind = column(queries[0])[:, KIND : KIND + 1]

        def add_up(t: Any, _: None) -> None:
            weights, at = stash[t], pl.ds(t * tile, tile)
            factor = share * jnp.exp2((maxima[t][:, :1] - largest[:, :1]) * rate)
            for n in range(problem.kinds):
                counts = kind >= 0 if problem.kinds == 1 else kind == n
                added = (weights * jnp.where(counts, factor, 0.0)).sum(axis=0, keepdims=True)
                columns[0, 0, n : n + 1, at] = columns[0, 0, n : n + 1, at] + added

        lax.fori_loop(first, last + 1, add_up, None)
