"""The attention backend "pallas": one layer's inputs put in the form that the kernel takes, on one device or on a mesh.

The kernel serves recorders that add up attention over queries (`Recorder.columns`), and those that never look at it. What
it is not made for runs on "blocked", with the same results: recorders that read probabilities, a caller's own `visible`,
the extra sink token, keys that are hidden from some queries only, and fewer than `MIN_QUERIES` queries (a decoding step,
whose map is a few rows).

Gradients are those of "blocked", which then runs the layer again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec, use_abstract_mesh
from jaxtyping import Bool, Float, Float32, Int, Shaped

from jaxsink.nn.backends import Unreduced, blocked
from jaxsink.nn.batch import KINDS
from jaxsink.nn.context import Queries, Visibility
from jaxsink.nn.kernels import attention as kernel
from jaxsink.nn.kernels.tiles import LANES, MIB, Tiles, choose_tiles, up_to, vmem_budget
from jaxsink.nn.recorder import Recorder
from jaxsink.nn.sharding import COPIES, DATA, MODEL, device_kind, in_parts, on_tpu
from jaxsink.nn.softmax import HIDDEN, Drop, hides
from jaxsink.nn.taps import ReceivedTap, Tap

MIN_QUERIES = 8
NOWHERE = -1  # the kind of queries that statistics do not count

Mixed = tuple[Float[Array, "B Q H D"], Float32[Array, "B H N S"] | None]  # outputs, and what keys receive by kind


def serves(tap: Tap, recorders: tuple[Recorder, ...]) -> bool:
    """Can the kernel compute this layer and these records?"""
    readable = all(r.join == "once" or r.columns is not None for r in recorders)
    context = tap.context
    plain = context.visibility.custom is None and tap.sink is None and context.queries.hidden_from is None
    return readable and plain and tap.q.shape[1] >= MIN_QUERIES


def pallas(tap: Tap, recorders: tuple[Recorder, ...]) -> tuple[Float[Array, "B Q H D"], Unreduced]:
    if not serves(tap, recorders):
        return blocked(tap, recorders)
    leaves, treedef = jax.tree.flatten(tap)

    def plain(leaves: list[Array]) -> tuple[Array, Unreduced]:
        return blocked(jax.tree.unflatten(treedef, leaves), recorders)

    @jax.custom_vjp
    def fused(leaves: list[Array]) -> tuple[Array, Unreduced]:
        tap = jax.tree.unflatten(treedef, leaves)
        out, columns = mix_and_add_up(tap, kinds_wanted(recorders))
        received = tap if columns is None else ReceivedTap(tap.context, columns)
        return out, tuple(r.read(tap if r.columns is None else received) for r in recorders)

    fused.defvjp(lambda leaves: (fused(leaves), leaves), lambda leaves, change: jax.vjp(plain, leaves)[1](change))
    return fused(leaves)


def kinds_wanted(recorders: tuple[Recorder, ...]) -> int:
    """Into how many kinds the kernel has to split what keys receive: 0 = nobody asks, 1 = all queries together."""
    wanted = {recorder.columns for recorder in recorders}
    return len(KINDS) if "by kind" in wanted else int("all" in wanted)


class Arrays(NamedTuple):
    """What the kernel needs to know of a layer; where each lies on a mesh is said in `AXES`."""

    q: Float[Array, "B Q H D"]
    k: Float[Array, "B S K D"]
    v: Float[Array, "B S K D"]
    mask: Bool[Array, "B S"]
    kind: Int[Array, "B Q"]  # NOWHERE = not counted
    drop: Drop | None
    lower: Int[Array, "B Q"] | None  # first key that a query sees; None = 0
    upper: Int[Array, "B Q"] | None  # first key after those that it sees; None = S


AXES: dict[str, tuple[str | None, ...]] = {
    "q": ("sequences", "queries", "heads", None),
    "k": ("sequences", None, "heads", None),
    "v": ("sequences", None, "heads", None),
    "mask": ("sequences", None),
    "kind": ("sequences", "queries"),
    "drop": ("sequences", "heads", None),
    "lower": ("sequences", "queries"),
    "upper": ("sequences", "queries"),
}


def mix_and_add_up(tap: Tap, kinds: int) -> Mixed:
    """The heads' outputs of one layer, and how much attention every key receives."""
    context = tap.context
    queries, see, mesh = context.queries, context.visibility, context.execution.mesh
    lower, upper = intervals(see, queries)
    kind = jnp.where(queries.counted, queries.kind, NOWHERE)
    arrays = Arrays(tap.q, tap.k, tap.v, see.real, kind, context.drop, lower, upper)
    budget, interpret = vmem_budget(device_kind(mesh)), not on_tpu(mesh)
    run = partial(on_one_device, kinds=kinds, budget=budget, interpret=interpret)
    return run(arrays) if mesh is None else on_mesh(run, arrays, mesh, kinds)


def intervals(see: Visibility, queries: Queries) -> tuple[Int[Array, "B Q"] | None, Int[Array, "B Q"] | None]:
    """(lower, upper): a query sees the real keys lower … upper - 1. Positions never fall from key to key."""
    batch, keys = see.real.shape
    lower = upper = None
    if see.causal:
        upper = jnp.broadcast_to(queries.position + 1, queries.token_position.shape)
    if see.block is not None:
        of_key, of_query = see.token_position // see.block, queries.token_position // see.block
        in_blocks = jax.vmap(partial(jnp.searchsorted, side="right"))(of_key, of_query)
        upper = in_blocks if upper is None else jnp.minimum(upper, in_blocks)
    if queries.limit is not None:
        upper = queries.limit if upper is None else jnp.minimum(upper, queries.limit)
    if see.window is not None:
        first = jnp.clip(queries.position - see.window + 1, 0, keys - 1)
        first = first if see.use_window is None else jnp.where(see.use_window, first, 0)
        lower = jnp.broadcast_to(first, (batch, first.shape[-1]))
    return lower, upper


def on_mesh(run: Callable[[Arrays], Mixed], arrays: Arrays, mesh: Mesh, kinds: int) -> Mixed:
    """Each device its sequences and heads. Heads are cut as the weights are; devices that hold copies of the same heads
    share the queries between them, or the sequences, or (where neither divides) do the same work."""
    batch, queries = arrays.kind.shape
    parts = math.gcd(arrays.k.shape[2], mesh.shape[MODEL])
    mesh = in_parts(mesh, parts)
    spare = COPIES if COPIES in mesh.shape else MODEL if parts == 1 else None
    copies = 1 if spare is None else mesh.shape[spare]
    data = mesh.shape[DATA] if batch % mesh.shape[DATA] == 0 else 1
    share_queries = copies > 1 and queries % copies == 0
    share_sequences = copies > 1 and not share_queries and (batch // data) % copies == 0
    sequences = [name for name, used in ((DATA, data > 1), (spare, share_sequences)) if used]
    place = {
        "sequences": tuple(sequences) or None,
        "queries": spare if share_queries else None,
        "heads": MODEL if parts > 1 else None,
        None: None,
    }

    def spec(axes: tuple[str | None, ...]) -> PartitionSpec:
        return PartitionSpec(*[place[axis] for axis in axes])

    given = {name: value for name, value in arrays._asdict().items() if value is not None}
    specs = {name: spec(AXES[name]) for name in given}

    def local(given: dict[str, Array]) -> tuple[Array, ...]:
        out, columns = run(Arrays._make(given.get(name) for name in Arrays._fields))
        if columns is None:
            return (out,)
        return out, lax.psum(columns, spare) if share_queries else columns

    out_specs = (spec(AXES["q"]), spec(("sequences", "heads", None, None)))[: 2 if kinds else 1]
    with use_abstract_mesh(mesh.abstract_mesh):  # the caller may have set the mesh without copies
        results = jax.shard_map(local, mesh=mesh, in_specs=(specs,), out_specs=out_specs, check_vma=False)(given)
    return results[0], results[1] if kinds else None


def on_one_device(x: Arrays, kinds: int, budget: int, interpret: bool) -> Mixed:
    batch, queries, heads, size = x.q.shape
    keys, kv_heads = x.k.shape[1:3]
    wide = up_to(size, LANES)
    tiles = choose_tiles(queries, keys, wide, x.q.dtype.itemsize, budget, kinds > 0)
    problem = kernel.Problem(
        heads=heads,
        kv_heads=kv_heads,
        scale=size**-0.5,
        kinds=kinds,
        bounded=x.lower is not None or x.upper is not None,
        tiles=tiles,
        vmem=budget + 2 * MIB,
        interpret=interpret,
    )

    def flat(y: Array, length: int) -> Array:
        """[B,S,H,D] -> [B,length,H*wide]; for a D of whole lanes and a fitting S this moves nothing."""
        y = jnp.pad(y, ((0, 0), (0, length - y.shape[1]), (0, 0), (0, wide - size)))
        return y.reshape(batch, length, -1)

    lower = jnp.zeros((batch, queries), jnp.int32) if x.lower is None else x.lower
    upper = jnp.full((batch, queries), keys, jnp.int32) if x.upper is None else x.upper
    bias, bare = key_bias(x, problem)
    operands = kernel.Operands(
        q=flat(x.q, tiles.queries),
        k=flat(x.k, tiles.keys),
        v=flat(x.v, tiles.keys),
        bias=bias,
        queries=by_lane(jnp.stack([x.kind, lower, upper], axis=1), tiles, kernel.FIELDS),
        limits=block_limits(lower, upper, tiles),
        blind=None,
    )
    if x.drop is not None and problem.bounded:
        blind = blind_queries(x, lower, upper)
        anyone = to_blocks(blind.any(axis=1), tiles).any(axis=2).astype(jnp.int32)
        operands = operands._replace(blind=kernel.Blind(by_lane(blind[:, :, None], tiles, 1), bare, anyone))
    out, columns = kernel.attention(operands, problem)
    out = out.reshape(batch, tiles.queries, heads, wide)[:, :queries, :, :size]
    return out, None if columns is None else columns[..., :keys]


def key_bias(x: Arrays, problem: kernel.Problem) -> tuple[Float32[Array, "B _ 1 keys"], Float32[Array, "B 1 1 keys"]]:
    """(with the drop, without), padded keys hidden, in units of unscaled scores.

    Where every query sees every key, a head loses either some keys or all; one that would lose all keeps all.
    """
    real = x.mask[:, None]
    bare = jnp.where(real, 0.0, HIDDEN)
    bias = bare
    if x.drop is not None:
        lost = hides(x.drop)
        if not problem.bounded:
            lost = lost & (real & ~lost).any(axis=2, keepdims=True)
        factor = 1.0 if x.drop.dtype == bool else jnp.where(hides(x.drop), 1.0, x.drop)
        bias = jnp.where(real & ~lost, jnp.log(factor) / problem.scale, HIDDEN)
    more = problem.tiles.keys - x.mask.shape[1]
    padded = (jnp.pad(y, ((0, 0), (0, 0), (0, more)), constant_values=HIDDEN)[:, :, None] for y in (bias, bare))
    return next(padded), next(padded)


def blind_queries(x: Arrays, lower: Int[Array, "B Q"], upper: Int[Array, "B Q"]) -> Bool[Array, "B H Q"]:
    """True = the drop would leave the query no key."""
    assert x.drop is not None
    left = x.mask[:, None] & ~hides(x.drop)
    keys = left.shape[2]
    here = jnp.where(left, jnp.arange(keys), keys)
    if x.lower is None:
        following = here.min(axis=2, keepdims=True)
    else:
        following = jnp.take_along_axis(lax.cummin(here, axis=2, reverse=True), lower[:, None], axis=2)
    return following >= upper[:, None]


def to_blocks(x: Shaped[Array, "*lead Q"], tiles: Tiles) -> Shaped[Array, "*lead blocks block"]:
    """Queries in blocks, the last one repeated to fill them."""
    widths = [(0, 0)] * (x.ndim - 1) + [(0, tiles.queries - x.shape[-1])]
    return jnp.pad(x, widths, mode="edge").reshape(*x.shape[:-1], tiles.query_blocks, tiles.query_block)


def by_lane(x: Shaped[Array, "*lead N Q"], tiles: Tiles, rows: int) -> Float32[Array, "*lead rows lanes"]:
    """Facts about queries, each block of queries filled up to whole lanes; added queries count nowhere."""
    blocks, block = tiles.query_blocks, tiles.query_block
    widths = [(0, 0)] * (x.ndim - 2) + [(0, rows - x.shape[-2]), (0, tiles.queries - x.shape[-1])]
    x = jnp.pad(x.astype(jnp.float32), widths, constant_values=NOWHERE)
    x = x.reshape(*x.shape[:-1], blocks, block)
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -block % LANES)])
    return x.reshape(*x.shape[:-2], -1)


def block_limits(lower: Int[Array, "B Q"], upper: Int[Array, "B Q"], tiles: Tiles) -> Int[Array, "B 4 blocks"]:
    """Smallest and largest lower, smallest and largest upper end of each block."""
    lower, upper = to_blocks(lower, tiles), to_blocks(upper, tiles)
    limits = (lower.min(axis=2), lower.max(axis=2), upper.min(axis=2), upper.max(axis=2))
    return jnp.stack(limits, axis=1).astype(jnp.int32)
