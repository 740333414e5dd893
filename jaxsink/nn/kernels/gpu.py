"""One layer's inputs put in the form that the GPU kernel takes: who sees what, by query, by key and by block."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int, Int32, Shaped

from jaxsink.nn.kernels import gpu_kernel as kernel
from jaxsink.nn.kernels.arrays import Arrays, Mixed, blind_queries, key_bias
from jaxsink.nn.kernels.gpu_blocks import Blocks, choose_blocks


def on_gpu_device(x: Arrays, kinds: int, interpret: bool) -> Mixed:
    """interpret: on a device that is no GPU, slowly."""
    blocks = choose_blocks(x.q.shape[1], x.q.shape[3], x.q.dtype.itemsize)
    problem = kernel.Problem(x.scale, kinds, blocks, interpret)
    bias, bare = key_bias(x)
    blind = blind_queries(x)
    keys_of, queries_of = spans(x, blocks)
    lower, upper = x.ends() if x.bounded else (None, None)
    operands = kernel.Operands(
        q=x.q,
        k=x.k,
        v=x.v,
        bias=bias,
        bare=bare,
        lower=None if lower is None else lower.astype(jnp.int32),
        upper=None if upper is None else upper.astype(jnp.int32),
        kind=x.kind.astype(jnp.int32),
        blind=None if blind is None else blind.astype(jnp.int32),
        keys_of=keys_of,
        queries_of=queries_of,
    )
    return kernel.attention(operands, problem)


def spans(x: Arrays, blocks: Blocks) -> tuple[Int32[Array, "B query_blocks 2"], Int32[Array, "B key_blocks 2"]]:
    """First and last block of keys that each block of queries sees, and the other way round."""
    batch, keys = x.mask.shape
    if x.bounded:
        sees = blocks_that_see(*x.ends(), keys, blocks)
        return first_and_last(sees), first_and_last(sees.transpose(0, 2, 1))
    of_queries, of_keys = -(-x.q.shape[1] // blocks.queries), -(-keys // blocks.keys)
    every = jnp.array([0, 1], jnp.int32)
    keys_of = jnp.broadcast_to(every * (of_keys - 1), (batch, of_queries, 2))
    return keys_of, jnp.broadcast_to(every * (of_queries - 1), (batch, of_keys, 2))


def blocks_that_see(
    lower: Int[Array, "B Q"], upper: Int[Array, "B Q"], keys: int, blocks: Blocks
) -> Bool[Array, "B query_blocks key_blocks"]:
    """True = some query of the block may see some key of the other block."""
    begin = jnp.arange(0, keys, blocks.keys)
    lowest = in_blocks(lower, blocks.queries).min(axis=2)[..., None]
    highest = in_blocks(upper, blocks.queries).max(axis=2)[..., None]
    return (lowest < begin + blocks.keys) & (highest > begin)


def in_blocks(x: Shaped[Array, "B Q"], block: int) -> Shaped[Array, "B blocks block"]:
    """The last query is repeated to fill the last block."""
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % block)), mode="edge").reshape(x.shape[0], -1, block)


def first_and_last(sees: Bool[Array, "B M N"]) -> Int32[Array, "B M 2"]:
    """Of the blocks that are seen; a last one below the first, if none is."""
    count = sees.shape[2]
    last = count - 1 - jnp.argmax(sees[..., ::-1], axis=2)
    first = jnp.argmax(sees, axis=2)
    return jnp.stack([first, jnp.where(sees.any(axis=2), last, -1)], axis=2).astype(jnp.int32)
