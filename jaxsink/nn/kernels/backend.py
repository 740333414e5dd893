"""The attention backend "pallas": one layer's inputs put in the form that the kernel takes, on one device or on a mesh.

The kernel serves recorders that add up attention over queries (`Recorder.columns`), and those that never look at it. What
it is not made for runs on "blocked", with the same results: recorders that read probabilities, a caller's own `visible`,
the extra sink token, and fewer than `MIN_QUERIES` queries (a decoding step, whose map is a few rows).

Gradients are those of "blocked", which then runs the layer again.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec, use_abstract_mesh

from jaxsink.nn.attention import HIDDEN, Inputs, Visibility, blocked, tap_of
from jaxsink.nn.kernels import attention as kernel
from jaxsink.nn.kernels.tiles import LANES, MIB, Tiles, choose_tiles, device_kind, on_tpu, up_to, vmem_budget
from jaxsink.parallel.mesh import COPIES, DATA, MODEL, in_parts
from jaxsink.recording.recorders import QUERY_KINDS, Recorder, Tap

MIN_QUERIES = 8
NOWHERE = -1  # the kind of queries that statistics do not count


def serves(x: Inputs, recorders: tuple[Recorder, ...]) -> bool:
    """Can the kernel compute this layer and these records?"""
    readable = all(r.join == "once" or r.columns is not None for r in recorders)
    return readable and x.visibility.custom is None and x.extra is None and x.q.shape[1] >= MIN_QUERIES


def pallas(x: Inputs, recorders: tuple[Recorder, ...]) -> tuple[Array, tuple[Any, ...]]:
    if not serves(x, recorders):
        return blocked(x, recorders)
    leaves, treedef = jax.tree.flatten(x)
    is_array = [isinstance(leaf, jax.Array) for leaf in leaves]

    def with_arrays(arrays: list[Array]) -> Inputs:
        arrays_ = iter(arrays)
        return jax.tree.unflatten(treedef, [next(arrays_) if a else y for y, a in zip(leaves, is_array, strict=True)])

    def plain(arrays: list[Array]) -> tuple[Array, tuple[Any, ...]]:
        return blocked(with_arrays(arrays), recorders)

    @jax.custom_vjp
    def fused(arrays: list[Array]) -> tuple[Array, tuple[Any, ...]]:
        y = with_arrays(arrays)
        out, columns = mix_and_add_up(y, kinds_wanted(recorders))
        tap = tap_of_columns(y, columns)
        return out, tuple(recorder.read(tap) for recorder in recorders)

    fused.defvjp(lambda arrays: (fused(arrays), arrays), lambda arrays, change: jax.vjp(plain, arrays)[1](change))
    return fused([leaf for leaf, array in zip(leaves, is_array, strict=True) if array])


def kinds_wanted(recorders: tuple[Recorder, ...]) -> int:
    """Into how many kinds the kernel has to split what keys receive: 0 = nobody asks, 1 = all queries together."""
    wanted = {recorder.columns for recorder in recorders}
    return len(QUERY_KINDS) if "by kind" in wanted else int("all" in wanted)


def tap_of_columns(x: Inputs, columns: Array | None) -> Tap:
    """The tap with all queries of a kind added up to one: `columns` f32[B,H,kinds,S] in the place of `probs`."""
    tap = tap_of(x, None)
    if columns is None:
        return tap
    shape = (columns.shape[0], columns.shape[2])
    kind = jnp.broadcast_to(jnp.arange(shape[1]), shape)
    return tap._replace(probs=columns, rows=jnp.ones(shape, bool), row_kind=kind)


class Arrays(NamedTuple):
    """What the kernel needs to know of a layer; the axes of each are named in `AXES`."""

    q: Array  # [B,Q,H,D]
    k: Array  # [B,S,K,D]
    v: Array  # [B,S,K,D]
    mask: Array  # bool[B,S]
    kind: Array  # i32[B,Q], NOWHERE = not counted
    drop: Array | None  # bool or f32[B,H,S]
    lower: Array | None  # i32[B,Q], first key that a query sees; None = 0
    upper: Array | None  # i32[B,Q], first key after those that it sees; None = S


AXES: dict[str, tuple[str | None, ...]] = {
    "q": ("rows", "queries", "heads", None),
    "k": ("rows", None, "heads", None),
    "v": ("rows", None, "heads", None),
    "mask": ("rows", None),
    "kind": ("rows", "queries"),
    "drop": ("rows", "heads", None),
    "lower": ("rows", "queries"),
    "upper": ("rows", "queries"),
}


def mix_and_add_up(x: Inputs, kinds: int) -> tuple[Array, Array | None]:
    """([B,Q,H,D], f32[B,H,kinds,S]: what each key receives) of one layer."""
    see = x.visibility
    lower, upper = intervals(see)
    kind = jnp.where(x.rows, x.row_kind, NOWHERE)
    arrays = Arrays(x.q, x.k, x.v, see.mask, kind, x.drop, lower, upper)
    budget, interpret = vmem_budget(device_kind(x.mesh)), not on_tpu(x.mesh)
    run = partial(on_one_device, kinds=kinds, budget=budget, interpret=interpret)
    return run(arrays) if x.mesh is None else on_mesh(run, arrays, x.mesh, kinds)


def intervals(see: Visibility) -> tuple[Array | None, Array | None]:
    """(lower, upper) i32[B,Q]: query q sees the real keys lower … upper - 1. Positions never fall from key to key."""
    batch, keys = see.mask.shape
    lower = upper = None
    if see.causal:
        upper = jnp.broadcast_to(see.query_index + 1, see.query_position.shape)
    if see.block is not None:
        of_key, of_query = see.key_position // see.block, see.query_position // see.block
        in_blocks = jax.vmap(partial(jnp.searchsorted, side="right"))(of_key, of_query)
        upper = in_blocks if upper is None else jnp.minimum(upper, in_blocks)
    if see.window is not None:
        first = jnp.clip(see.query_index - see.window + 1, 0, keys - 1)
        first = first if see.use_window is None else jnp.where(see.use_window, first, 0)
        lower = jnp.broadcast_to(first, (batch, first.shape[0]))
    return lower, upper


def on_mesh(run: Any, arrays: Arrays, mesh: Any, kinds: int) -> tuple[Array, Array | None]:
    """Each device its rows and heads. Heads are cut as the weights are; devices that hold copies of the same heads share
    the queries between them, or the rows, or (where neither divides) do the same work."""
    batch, queries = arrays.kind.shape
    parts = math.gcd(arrays.k.shape[2], mesh.shape[MODEL])
    mesh = in_parts(mesh, parts)
    spare = COPIES if COPIES in mesh.shape else MODEL if parts == 1 else None
    copies = 1 if spare is None else mesh.shape[spare]
    data = mesh.shape[DATA] if batch % mesh.shape[DATA] == 0 else 1
    share_queries = copies > 1 and queries % copies == 0
    share_rows = copies > 1 and not share_queries and (batch // data) % copies == 0
    rows = [name for name, used in ((DATA, data > 1), (spare, share_rows)) if used]
    place = {
        "rows": tuple(rows) or None,
        "queries": spare if share_queries else None,
        "heads": MODEL if parts > 1 else None,
        None: None,
    }

    def spec(axes: tuple[str | None, ...]) -> PartitionSpec:
        return PartitionSpec(*[place[axis] for axis in axes])

    given = {name: value for name, value in arrays._asdict().items() if value is not None}
    specs = {name: spec(AXES[name]) for name in given}

    def local(given: dict[str, Array]) -> tuple[Array, ...]:
        everything: dict[str, Any] = {name: given.get(name) for name in Arrays._fields}
        out, columns = run(Arrays(**everything))
        if columns is None:
            return (out,)
        return out, lax.psum(columns, spare) if share_queries else columns

    out_specs = (spec(AXES["q"]), spec(("rows", "heads", None, None)))[: 2 if kinds else 1]
    with use_abstract_mesh(mesh.abstract_mesh):  # the caller may have set the mesh without copies
        results = jax.shard_map(local, mesh=mesh, in_specs=(specs,), out_specs=out_specs, check_vma=False)(given)
    return results[0], results[1] if kinds else None


def on_one_device(x: Arrays, kinds: int, budget: int, interpret: bool) -> tuple[Array, Array | None]:
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
        operands = operands._replace(blind=(by_lane(blind[:, :, None], tiles, 1), bare, anyone))
    out, columns = kernel.attention(operands, problem)
    out = out.reshape(batch, tiles.queries, heads, wide)[:, :queries, :, :size]
    return out, None if columns is None else columns[..., :keys]


def hides(drop: Array) -> Array:
    return drop if drop.dtype == bool else drop <= 0


def key_bias(x: Arrays, problem: kernel.Problem) -> tuple[Array, Array]:
    """(f32[B,H or 1,1,S] with the drop, f32[B,1,1,S] without), padded keys hidden, in units of unscaled scores.

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


def blind_queries(x: Arrays, lower: Array, upper: Array) -> Array:
    """bool[B,H,Q]: the drop would leave the query no key."""
    assert x.drop is not None
    left = x.mask[:, None] & ~hides(x.drop)
    keys = left.shape[2]
    here = jnp.where(left, jnp.arange(keys), keys)
    if x.lower is None:
        following = here.min(axis=2, keepdims=True)
    else:
        following = jnp.take_along_axis(lax.cummin(here, axis=2, reverse=True), lower[:, None], axis=2)
    return following >= upper[:, None]


def to_blocks(x: Array, tiles: Tiles) -> Array:
    """[…,Q] -> […,query blocks,Q of a block], the last query repeated."""
    widths = [(0, 0)] * (x.ndim - 1) + [(0, tiles.queries - x.shape[-1])]
    return jnp.pad(x, widths, mode="edge").reshape(*x.shape[:-1], tiles.query_blocks, tiles.query_block)


def by_lane(x: Array, tiles: Tiles, rows: int) -> Array:
    """[…,n,Q] -> f32[…,rows,lanes], each block of queries filled up to whole lanes; added queries count nowhere."""
    blocks, block = tiles.query_blocks, tiles.query_block
    widths = [(0, 0)] * (x.ndim - 2) + [(0, rows - x.shape[-2]), (0, tiles.queries - x.shape[-1])]
    x = jnp.pad(x.astype(jnp.float32), widths, constant_values=NOWHERE)
    x = x.reshape(*x.shape[:-1], blocks, block)
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -block % LANES)])
    return x.reshape(*x.shape[:-2], -1)


def block_limits(lower: Array, upper: Array, tiles: Tiles) -> Array:
    """i32[B,4,query blocks]: smallest and largest lower, smallest and largest upper end of each block."""
    lower, upper = to_blocks(lower, tiles), to_blocks(upper, tiles)
    limits = (lower.min(axis=2), lower.max(axis=2), upper.min(axis=2), upper.max(axis=2))
    return jnp.stack(limits, axis=1).astype(jnp.int32)
