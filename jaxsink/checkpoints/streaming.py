"""From a checkpoint's pieces to a model's arrays, each filled in place: no parameter is ever in memory twice.

A piece is a parameter, or one layer's part of it. Whoever has pieces (a converted checkpoint, a Hugging Face directory)
gives a function that reads a part of one into an array of the host; here it is called for the shards that devices need.
On a CPU the arrays of the model are these very arrays. int8 weights are rounded a few layers at a time.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, Sharding
from jax.typing import DTypeLike
from jaxtyping import Float, Int8, Shaped

from jaxsink.nn.config import ModelConfig
from jaxsink.nn.new_model import abstract
from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.quantization import BESIDE, INT8, is_rounded, rounded, scale_name
from jaxsink.nn.transformer import Model
from jaxsink.parallel import sharding_of

GROUP_BYTES = 256 << 20
"""Layers are rounded, and arrays handed to Orbax, in groups of about this size."""

READERS = 4
"""Layers read at the same time."""

Index = tuple[slice, ...]
Allocate = Callable[[tuple[int, ...], DTypeLike], Shaped[np.ndarray, "..."]]
Rounded = tuple[Int8[Array, "L out in"], Float[Array, "L out"]]
"""int8 weights and the scales of their outputs."""


class ReadInto(Protocol):
    """Reads a part of a checkpoint."""

    def __call__(self, parameter: str, layer: int | None, index: Index, into: Shaped[np.ndarray, "..."]) -> None:
        """Fill `into` with the part `index` of a parameter, or of one layer's part of it, in the type of `into`."""


def is_layered(name: str) -> bool:
    """Layer parameters are stored as one array per layer."""
    return name.startswith("layers.")


def assemble(config: ModelConfig, dtype: str, mesh: Mesh | None, read_into: ReadInto) -> Model:
    """The model in this type, on the mesh or on one device; parameters are read largest first."""
    leaves, treedef = named_leaves(abstract(config, dtype))
    wanted = {}
    for name, leaf in sorted(leaves, key=lambda item: -item[1].size):
        sharding = on_one_device() if mesh is None else sharding_of(name, len(leaf.shape), config, mesh)
        wanted[name] = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    arrays: dict[str, Array] = {}
    with ThreadPoolExecutor(READERS) as pool:
        filler = Filler(read_into, pool)
        for name, leaf in wanted.items():
            if dtype == INT8 and is_rounded(name):
                scale = wanted[scale_name(name)]
                arrays[name], arrays[scale_name(name)] = filler.rounded(name, leaf, scale)
            elif name not in arrays and not (dtype == INT8 and name.endswith(".scale")):
                arrays[name] = filler.array(name, leaf)
    return jax.tree.unflatten(treedef, [arrays[name] for name, _ in leaves])


def on_one_device() -> Sharding:
    return jax.sharding.SingleDeviceSharding(jax.devices()[0])


@dataclass(frozen=True)
class Filler:
    """Makes arrays by reading into them."""

    read_into: ReadInto
    pool: ThreadPoolExecutor

    def array(
        self, name: str, leaf: jax.ShapeDtypeStruct, first: int = 0, allocate: Allocate | None = None
    ) -> Shaped[Array, "..."]:
        """A parameter, or those of its layers that begin with `first`; each device reads only its own shard."""
        allocate = allocate or host_array

        def shard(index: Index | None) -> Shaped[np.ndarray, "..."]:
            assert index is not None and leaf.sharding is not None
            value = allocate(leaf.sharding.shard_shape(leaf.shape), leaf.dtype)
            if not is_layered(name):
                self.read_into(name, None, index, value)
                return value
            layers = range(leaf.shape[0])[index[0]]
            jobs = [
                self.pool.submit(self.read_into, name, first + layer, index[1:], part)
                for layer, part in zip(layers, value, strict=True)
            ]
            for job in jobs:
                job.result()
            return value

        assert leaf.sharding is not None
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, shard, dtype=leaf.dtype)

    def rounded(self, name: str, leaf: jax.ShapeDtypeStruct, scale: jax.ShapeDtypeStruct) -> Rounded:
        """Weights and scales; only a few layers exist unrounded at a time."""
        shardings = (leaf.sharding, scale.sharding)

        @partial(jax.jit, out_shardings=shardings)
        def zeros() -> Rounded:
            return jnp.zeros(leaf.shape, leaf.dtype), jnp.zeros(scale.shape, scale.dtype)

        @partial(jax.jit, donate_argnums=0, out_shardings=shardings)
        def put(whole: Rounded, layers: Float[Array, "N out in"], first: Array) -> Rounded:
            def replace(old: Array, new: Array) -> Array:
                return jax.lax.dynamic_update_slice_in_dim(old, new, first, axis=0)

            return jax.tree.map(replace, whole, rounded(layers))

        whole = zeros()

        layers, *shape = leaf.shape
        step = min(layers, max(1, GROUP_BYTES // (math.prod(shape) * jnp.dtype(BESIDE).itemsize)))
        buffers = Buffers()
        for first in range(0, layers, step):
            group = (min(step, layers - first), *shape)
            struct = jax.ShapeDtypeStruct(group, jnp.dtype(BESIDE), sharding=leaf.sharding)
            part = self.array(name, struct, first, buffers.array)
            whole = put(jax.block_until_ready(whole), part, jnp.asarray(first))
        return whole


def host_array(shape: tuple[int, ...], dtype: DTypeLike) -> Shaped[np.ndarray, "..."]:
    """Uninitialised memory on pages of its own.

    On a CPU, JAX takes over an array without a copy only if its memory is aligned. NumPy's is not, and NumPy asks for huge
    pages, which the system may need longer to find than the disk needs to fill them.
    """
    return _on_pages(_pages(_bytes(shape, dtype)), shape, dtype)


class Buffers:
    """Memory for short-lived arrays, used again by later ones of the same size.

    New pages cost as much as reading into them. Arrays larger than a group get their own.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[mmap.mmap]] = defaultdict(list)

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> Shaped[np.ndarray, "..."]:
        """An uninitialised array; its memory comes back when the last view of it is gone."""
        size = _bytes(shape, dtype)
        if size > GROUP_BYTES:
            return host_array(shape, dtype)
        free = self._free[size]
        try:  # not a look first: several threads take from the list
            pages = free.pop()
        except IndexError:
            pages = _pages(size)
        value = _on_pages(pages, shape, dtype)
        owner = value if value.base is None or not isinstance(value.base, np.ndarray) else value.base
        weakref.finalize(owner, free.append, pages)
        return value


def _bytes(shape: tuple[int, ...], dtype: DTypeLike) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


def _pages(size: int) -> mmap.mmap:
    return mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _on_pages(pages: mmap.mmap, shape: tuple[int, ...], dtype: DTypeLike) -> Shaped[np.ndarray, "..."]:
    return np.frombuffer(pages, np.uint8, _bytes(shape, dtype)).view(dtype).reshape(shape)
