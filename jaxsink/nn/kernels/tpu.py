"""One layer's inputs put in the form that the TPU kernel takes: padded to tiles, facts about queries by lane."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32, Int, Shaped

from jaxsink.nn.kernels import tpu_kernel as kernel
from jaxsink.nn.kernels.arrays import NOWHERE, Arrays, Mixed, blind_queries, key_bias
from jaxsink.nn.kernels.tiles import LANES, MIB, Tiles, choose_tiles, up_to
from jaxsink.nn.softmax import HIDDEN


def on_tpu_device(x: Arrays, kinds: int, budget: int, interpret: bool) -> Mixed:
    """budget: bytes of VMEM. interpret: on a device that is no TPU, slowly."""
    batch, queries, heads, size = x.q.shape
    keys, kv_heads = x.k.shape[1:3]
    wide = up_to(size, LANES)
    tiles = choose_tiles(queries, keys, wide, x.q.dtype.itemsize, budget, kinds > 0)
    problem = kernel.Problem(
        heads=heads,
        kv_heads=kv_heads,
        scale=x.scale,
        kinds=kinds,
        bounded=x.bounded,
        tiles=tiles,
        vmem=budget + 2 * MIB,
        interpret=interpret,
    )

    def flat(y: Array, length: int) -> Array:
        """[B,S,H,D] -> [B,length,H*wide]; for a D of whole lanes and a fitting S this moves nothing."""
        y = jnp.pad(y, ((0, 0), (0, length - y.shape[1]), (0, 0), (0, wide - size)))
        return y.reshape(batch, length, -1)

    lower, upper = x.ends()
    bias, bare = (pad_keys(y, tiles) for y in key_bias(x))
    operands = kernel.Operands(
        q=flat(x.q, tiles.queries),
        k=flat(x.k, tiles.keys),
        v=flat(x.v, tiles.keys),
        bias=bias,
        queries=by_lane(jnp.stack([x.kind, lower, upper], axis=1), tiles, kernel.FIELDS),
        limits=block_limits(lower, upper, tiles),
        blind=None,
    )
    blind = blind_queries(x)
    if blind is not None:
        anyone = to_blocks(blind.any(axis=1), tiles).any(axis=2).astype(jnp.int32)
        operands = operands._replace(blind=kernel.Blind(by_lane(blind[:, :, None], tiles, 1), bare, anyone))
    out, columns = kernel.attention(operands, problem)
    out = out.reshape(batch, tiles.queries, heads, wide)[:, :queries, :, :size]
    return out, None if columns is None else columns[..., :keys]


def pad_keys(bias: Float32[Array, "B _ S"], tiles: Tiles) -> Float32[Array, "B _ 1 keys"]:
    return jnp.pad(bias, ((0, 0), (0, 0), (0, tiles.keys - bias.shape[2])), constant_values=HIDDEN)[:, :, None]


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
