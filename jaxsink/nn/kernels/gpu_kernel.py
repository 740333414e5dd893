"""Attention of one layer on a GPU as two Pallas (Triton) calls: outputs, and how much attention every key receives.

**Two calls.** What a key receives is a sum over queries, and a GPU's programs run in any order, so they cannot add to it in
turn as a TPU's do. `mix` goes with a block of queries through the keys (the online softmax) and keeps of every query the
largest score and one over the sum of weights. `add_up` goes with a block of keys through the queries: with these two numbers
the weights of a query are known as soon as its scores are, so the scores are multiplied out again and their weights added
up, in float32, in an order that is always the same: no atomic additions, no sums of parts, and nothing of the size S x S.

**What a query sees** is an interval of keys [lower, upper). Blocks that do not see each other are not visited.
Padding and dropped keys are a bias on the keys of each head. Lengths and head sizes are any: what lies beyond them is masked
where it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Bool, Float, Float32, Int, Int32

from jaxsink.nn.kernels.arrays import LOG2_E, NOWHERE
from jaxsink.nn.kernels.gpu_blocks import Blocks
from jaxsink.nn.kernels.tiles import up_to
from jaxsink.nn.linear import matmul_precision
from jaxsink.nn.softmax import HIDDEN

Ref = Any  # memory that a program reads and writes; Pallas has no public type for it
Index = Int[Array, ""] | int


class Problem(NamedTuple):
    """Static: what a compiled kernel is made for."""

    scale: float  # on the scores
    kinds: int  # 0 = no statistics, 1 = all queries together, n = by kind
    blocks: Blocks
    interpret: bool

    @property
    def rate(self) -> float:
        """On scores, for weights as powers of two."""
        return self.scale * LOG2_E


class Operands(NamedTuple):
    """As the model has them: nothing is padded, nothing moved."""

    q: Float[Array, "B Q H D"]
    k: Float[Array, "B S K D"]
    v: Float[Array, "B S K D"]
    bias: Float32[Array, "B _ S"]  # on unscaled scores, of each head or of all; HIDDEN = nobody sees the key
    bare: Float32[Array, "B 1 S"]  # for blind queries
    lower: Int32[Array, "B Q"] | None  # None = every query sees every key
    upper: Int32[Array, "B Q"] | None
    kind: Int32[Array, "B Q"]  # NOWHERE = not counted
    blind: Int32[Array, "B H Q"] | None  # 1 = sees through the drop
    keys_of: Int32[Array, "B query_blocks 2"]  # first and last block of keys that a block of queries sees
    queries_of: Int32[Array, "B key_blocks 2"]  # and the other way round


# What lies along the axes of the operands: a head's kv head is g, and F are first and last block.
AXES = {
    **{"q": "bQhD", "k": "bSgD", "v": "bSgD", "bias": "bhS", "bare": "bhS", "lower": "bQ", "upper": "bQ", "kind": "bQ"},
    **{"blind": "bhQ", "keys_of": "bNF", "queries_of": "bNF"},
}


def attention(x: Operands, problem: Problem) -> tuple[Float[Array, "B Q H D"], Float32[Array, "B H N S"] | None]:
    """(outputs, what each key receives by kind of query)."""
    batch, queries, heads, _ = x.q.shape
    blocks, keys, kinds = problem.blocks, x.k.shape[1], problem.kinds
    per_query = jax.ShapeDtypeStruct((batch, heads, queries), jnp.float32)
    mine = pl.BlockSpec((None, None, blocks.queries), lambda i, h, b: (b, h, i))
    to_mix = Call(
        "attention_received" if kinds else "attention_alone",
        grid=(pl.cdiv(queries, blocks.queries), heads, batch),
        shapes=[jax.ShapeDtypeStruct(x.q.shape, x.q.dtype), *[per_query] * 2][: 3 if kinds else 1],
        specs=[pl.BlockSpec((None, blocks.queries, None, blocks.width), lambda i, h, b: (b, i, h, 0)), mine, mine],
    )
    results = to_mix.run(_mix, x, problem)
    if not kinds:
        return results[0], None
    to_add_up = Call(
        "attention_columns",
        grid=(pl.cdiv(keys, blocks.keys), heads, batch),
        shapes=[jax.ShapeDtypeStruct((batch, heads, kinds, keys), jnp.float32)],
        specs=[pl.BlockSpec((None, None, kinds, blocks.keys), lambda j, h, b: (b, h, 0, j))],
    )
    (columns,) = to_add_up.run(_add_up, x, problem, *results[1:])
    return results[0], columns


class Call(NamedTuple):
    """One program for each block, head and sequence; specs: the parts of the results that a program writes."""

    name: str
    grid: tuple[int, ...]
    shapes: list[jax.ShapeDtypeStruct]
    specs: list[pl.BlockSpec]

    def run(self, program: Callable[..., None], x: Operands, problem: Problem, *beside: Float32[Array, "B H Q"]) -> Any:
        """program(its parts of x, problem, its parts of `beside`, its results)."""
        blocks, group = problem.blocks, x.q.shape[2] // x.k.shape[2]
        sizes = {"Q": blocks.queries, "S": blocks.keys, "D": blocks.width}

        def part(y: Array, axes: str) -> pl.BlockSpec:
            """The rows of a program's sequence and head, in whole blocks: what lies beyond is masked when loaded."""
            block = [None if a in "bhg" else up_to(n, sizes.get(a, 1)) for a, n in zip(axes, y.shape, strict=True)]

            def index(_: Index, h: Index, b: Index) -> tuple[Index, ...]:
                place = {"b": b, "h": h, "g": h // group}
                return tuple(0 if n == 1 else place.get(a, 0) for a, n in zip(axes, y.shape, strict=True))

            return pl.BlockSpec(tuple(block), index)

        given = {name: value for name, value in x._asdict().items() if value is not None}
        absent = dict.fromkeys(name for name, value in x._asdict().items() if value is None)

        def body(*refs: Ref) -> None:
            mine = dict(zip(given, refs, strict=False))
            program(
                Memory(lengths=(x.q.shape[1], x.k.shape[1], x.q.shape[3]), **{**absent, **mine}),
                problem,
                *refs[len(mine) :],
            )

        return pl.pallas_call(
            body,
            grid=self.grid,
            in_specs=[part(y, AXES[name]) for name, y in given.items()] + [part(y, "bhQ") for y in beside],
            out_specs=self.specs[: len(self.shapes)],
            out_shape=self.shapes,
            compiler_params=plgpu.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages),
            interpret=problem.interpret,
            name=self.name,
        )(*given.values(), *beside)


class Memory(NamedTuple):
    """What one program reads: its sequence's and head's rows of the operands, `x[name].shape` rounded up to blocks."""

    q: Ref
    k: Ref
    v: Ref
    bias: Ref
    bare: Ref
    lower: Ref | None
    upper: Ref | None
    kind: Ref
    blind: Ref | None
    keys_of: Ref
    queries_of: Ref
    lengths: tuple[int, int, int]  # Q, S and D

    def rows(self, ref: Ref, length: int, start: Index, count: int, width: int) -> Float[Array, "N D"]:
        """`count` queries or keys (or values) from `start` on; those beyond the length are zero."""
        inside = (start + jnp.arange(count) < length)[:, None] & (jnp.arange(width) < self.lengths[2])[None]
        return plgpu.load(ref.at[pl.ds(start, count), :], mask=inside, other=0.0)

    def queries(self, start: Index, blocks: Blocks) -> Float[Array, "Q D"]:
        return self.rows(self.q, self.lengths[0], start, blocks.queries, blocks.width)

    def keys(self, ref: Ref, start: Index, blocks: Blocks) -> Float[Array, "S D"]:
        return self.rows(ref, self.lengths[1], start, blocks.keys, blocks.width)

    def of_queries(self, ref: Ref, start: Index, count: int, other: float) -> Array:
        return plgpu.load(ref.at[pl.ds(start, count)], mask=start + jnp.arange(count) < self.lengths[0], other=other)

    def of_keys(self, ref: Ref, start: Index, count: int) -> Float32[Array, " S"]:
        return plgpu.load(ref.at[pl.ds(start, count)], mask=start + jnp.arange(count) < self.lengths[1], other=HIDDEN)


class Facts(NamedTuple):
    """About the queries of a block; without ends, they see every key."""

    ends: tuple[Int32[Array, " Q"], Int32[Array, " Q"]] | None
    blind: Bool[Array, " Q"] | None

    @classmethod
    def load(cls, x: Memory, start: Index, count: int) -> Facts:
        blind = None if x.blind is None else x.of_queries(x.blind, start, count, 0) > 0
        if x.lower is None or x.upper is None:
            return cls(None, blind)
        return cls((x.of_queries(x.lower, start, count, 0), x.of_queries(x.upper, start, count, 0)), blind)


def masked(
    scores: Float32[Array, "_ _"], x: Memory, problem: Problem, facts: Facts, first_key: Index, queries_axis: int
) -> Float32[Array, "_ _"]:
    """Unscaled scores of queries and keys, HIDDEN where a query does not see the key. queries_axis: 0 or 1 of `scores`."""
    count = problem.blocks.keys

    def by_query(y: Array) -> Array:
        return jnp.expand_dims(y, 1 - queries_axis)

    def by_key(y: Array) -> Array:
        return jnp.expand_dims(y, queries_axis)

    on_keys = by_key(x.of_keys(x.bias, first_key, count))
    if facts.blind is not None:
        on_keys = jnp.where(by_query(facts.blind), by_key(x.of_keys(x.bare, first_key, count)), on_keys)
    scores = scores + on_keys
    if facts.ends is None:
        return scores
    lower, upper = (by_query(end) for end in facts.ends)
    index = by_key(first_key + jnp.arange(count))
    return jnp.where((index >= lower) & (index < upper), scores, HIDDEN)


def product(a: Float[Array, "M N"], b: Float[Array, "O P"], over: int = 1) -> Float32[Array, "M _"]:
    """a bᵀ, or a b where the sum is over axis 0 of b."""
    contract = (((1,), (over,)), ((), ()))
    return lax.dot_general(a, b, contract, precision=matmul_precision(a), preferred_element_type=jnp.float32)


def _mix(x: Memory, problem: Problem, out: Ref, *softmax: Ref) -> None:
    """A block of queries goes through the keys."""
    blocks, i = problem.blocks, pl.program_id(0)
    start, count = i * blocks.queries, blocks.queries
    q, facts = x.queries(start, blocks), Facts.load(x, start, count)

    def add_block(j: Index, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        largest, total, mixed = carry
        first = j * blocks.keys
        scores = masked(product(q, x.keys(x.k, first, blocks)), x, problem, facts, first, queries_axis=0)
        now = jnp.maximum(largest, scores.max(axis=1))
        weights = jnp.exp2((scores - now[:, None]) * problem.rate)
        shrink = jnp.exp2((largest - now) * problem.rate)
        v = x.keys(x.v, first, blocks)
        mixed = mixed * shrink[:, None] + product(weights.astype(v.dtype), v, over=0)
        return now, total * shrink + weights.sum(axis=1), mixed

    zeros = jnp.zeros(count, jnp.float32)
    begin = (zeros + HIDDEN, zeros, jnp.zeros((count, blocks.width), jnp.float32))
    largest, total, mixed = lax.fori_loop(x.keys_of[i, 0], x.keys_of[i, 1] + 1, add_block, begin)
    share = jnp.where(total > 0, 1.0 / jnp.where(total > 0, total, 1.0), 0.0)
    queries, _, size = x.lengths
    inside = start + jnp.arange(count) < queries
    in_head = (jnp.arange(blocks.width) < size)[None]
    plgpu.store(out, (mixed * share[:, None]).astype(out.dtype), mask=inside[:, None] & in_head)
    for ref, value in zip(softmax, (largest, share), strict=False):
        plgpu.store(ref, value, mask=inside)


def _add_up(x: Memory, problem: Problem, largest: Ref, share: Ref, columns: Ref) -> None:
    """A block of keys goes through the queries. Keys lie below each other, so that sums over queries stay in a warp."""
    blocks, j = problem.blocks, pl.program_id(0)
    first, count = j * blocks.keys, blocks.queries
    k = x.keys(x.k, first, blocks)

    def add_block(i: Index, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        start = i * count
        facts = Facts.load(x, start, count)
        scores = masked(product(k, x.queries(start, blocks)), x, problem, facts, first, queries_axis=1)
        weights = jnp.exp2((scores - x.of_queries(largest, start, count, 0.0)[None]) * problem.rate)
        shares, kind = x.of_queries(share, start, count, 0.0), x.of_queries(x.kind, start, count, NOWHERE)
        counts = [kind >= 0] if problem.kinds == 1 else [kind == n for n in range(problem.kinds)]
        added = [(weights * jnp.where(counted, shares, 0.0)[None]).sum(axis=1) for counted in counts]
        return tuple(a + b for a, b in zip(sums, added, strict=True))

    begin = (jnp.zeros(blocks.keys, jnp.float32),) * problem.kinds
    sums = lax.fori_loop(x.queries_of[j, 0], x.queries_of[j, 1] + 1, add_block, begin)
    inside = first + jnp.arange(blocks.keys) < x.lengths[1]
    for n, value in enumerate(sums):
        plgpu.store(columns.at[pl.ds(n, 1)], value[None], mask=inside[None])
