"""Which model it is: a hash of its configuration and weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Shaped, UInt32

from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.transformer import Transformer


def fingerprint(model: Transformer) -> str:
    """A hash of configuration and weights, the same however they are cut over devices."""
    return hash_of(named_leaves(model)[0], repr(model.config))


def hash_of(arrays: Iterable[tuple[str, Shaped[Array, "..."]]], about: str = "") -> str:
    """A hash of named arrays. Integer sums represent their numbers, so that large ones stay on their devices."""
    digest = hashlib.sha256(about.encode())
    for name, array in arrays:
        digest.update(f"{name} {array.dtype} {array.shape} {int(_checksum(array))}".encode())
    return digest.hexdigest()


@jax.jit
def _checksum(x: Shaped[Array, "..."]) -> UInt32[Array, ""]:
    """The sum of all elements' bits, each mixed with its index."""
    bits = lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}")).astype(jnp.uint32)
    strides = np.cumprod([1, *x.shape[:0:-1]])[::-1]
    mixed = bits
    for axis, stride in enumerate(strides[: x.ndim]):
        index = lax.broadcasted_iota(jnp.uint32, x.shape, axis)
        mixed = mixed + index * jnp.uint32(int(stride) * 0x9E3779B1 % 2**32)
    mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> 13)) * jnp.uint32(0xC2B2AE35)
    return (mixed ^ (mixed >> 16)).sum(dtype=jnp.uint32)
