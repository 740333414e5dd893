"""Batches over devices: rows dealt out by pmap, or laid along the data axis of a mesh.

A batch that does not divide is filled up with copies of its last row, and cut back at the end: rows never influence each
other, so nobody sees the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsink.errors import JaxsinkError
from jaxsink.nn.sharding import DATA
from jaxsink.nn.sharding import keep_rows as keep_rows
from jaxsink.nn.sharding import layout_of as layout_of


def check_devices(devices: Any) -> tuple[Any, ...]:
    """The devices as a hashable tuple, or one sentence about what is wrong."""
    devices = tuple(devices)
    if not devices or len(set(devices)) != len(devices):
        raise JaxsinkError("devices must name at least one device, and none twice; jax.devices() names all.")
    if any(device.process_index != jax.process_index() for device in devices):
        raise JaxsinkError("devices of other hosts cannot be named here; load the model onto a mesh instead.")
    return devices


def pmap_rows(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    in_axes: Sequence[int | None],
    out_axes: Any,
    devices: Sequence[Any],
) -> Any:
    """`function(*arguments)`, with the batch dealt out over devices: one pmapped program, results put together again.

    in_axes: where each argument (a pytree) has its batch axis, None = every device gets it whole. out_axes: the same for
    the results, as one number or a pytree of numbers. The function must be hashable by value, or it compiles every time.
    """
    devices = check_devices(devices)
    batch = next(
        jax.tree.leaves(a)[0].shape[axis] for a, axis in zip(arguments, in_axes, strict=True) if axis is not None
    )
    devices = devices[: max(batch, 1)]
    split = [a if axis is None else deal(a, axis, len(devices)) for a, axis in zip(arguments, in_axes, strict=True)]
    results = _pmapped(function, tuple(in_axes), _hashable(out_axes), devices)(*split)
    return jax.tree.map(lambda axis, part: jax.tree.map(lambda x: collect(x, axis, batch), part), out_axes, results)


@lru_cache(maxsize=256)
def _pmapped(function: Callable[..., Any], in_axes: Any, out_axes: Any, devices: tuple[Any, ...]) -> Any:
    leaves, treedef = out_axes
    return jax.pmap(function, in_axes=in_axes, out_axes=jax.tree.unflatten(treedef, leaves), devices=devices)


def _hashable(axes: Any) -> tuple[tuple[int, ...], Any]:
    leaves, treedef = jax.tree.flatten(axes)
    return tuple(leaves), treedef


def fill_up(x: Any, axis: int, multiple: int) -> Any:
    """[..., B, ...] with B rounded up to a multiple, by repeating the last row."""
    extra = -x.shape[axis] % multiple
    if extra == 0:
        return x
    last = (np if isinstance(x, np.ndarray) else jnp).take(x, np.full(extra, x.shape[axis] - 1), axis=axis)
    return (np if isinstance(x, np.ndarray) else jnp).concatenate([x, last], axis=axis)


def deal(tree: Any, axis: int, count: int) -> Any:
    """[..., B, ...] -> [..., count, B / count, ...], filled up."""

    def one(x: Any) -> Any:
        x = fill_up(x, axis, count)
        return x.reshape(*x.shape[:axis], count, -1, *x.shape[axis + 1 :])

    return jax.tree.map(one, tree)


def collect(x: Any, axis: int, batch: int) -> Any:
    """The inverse of `deal`, cut back to the batch."""
    x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return x if x.shape[axis] == batch else lax.slice_in_dim(x, 0, batch, axis=axis)


def rows_sharding(mesh: Mesh, axis: int = 0) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, DATA))


def place_rows(x: np.ndarray, mesh: Mesh | None, axis: int = 0) -> Array:
    """A host array on the devices, its rows along the data axis; works on several hosts, if all hold the whole array."""
    if mesh is None:
        return jnp.asarray(x)
    return jax.make_array_from_callback(x.shape, rows_sharding(mesh, axis), lambda index: x[index])
