"""Small models: a copy of the weights on every device, and the batch split over the devices by pmap.

A batch that does not divide is padded with copies of its last sequence and cut back at the end. Sequences never influence
each other, so nobody sees the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import PyTree

from jaxsink.checks import at_least, shown
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.nn.recorder import TreeDef
from jaxsink.parallel.mesh import Device

Axes = PyTree[int | None]
"""Where the batch is: one number for a whole argument or a pytree of numbers, None = every device gets the whole array."""

A = TypeVar("A", Array, np.ndarray)

FlatAxes = tuple[tuple[int, ...], TreeDef]
"""Leaves and treedef of `Axes`, which can be hashed."""

NOTHING: Mapping[str, Hashable] = MappingProxyType({})


def check_devices(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The devices as a hashable tuple, or one sentence about what is wrong."""
    devices = tuple(devices)
    if not devices or len(set(devices)) != len(devices):
        raise JaxsinkError("devices must name at least one device, and none twice; jax.devices() names all.")
    if not all(isinstance(device, jax.Device) for device in devices):
        raise JaxsinkError(f"devices must be JAX's, as jax.devices() names them, not {shown(devices)}.")
    if any(device.process_index != jax.process_index() for device in devices):
        raise JaxsinkError("devices of other hosts cannot be named here; load the model onto a mesh instead.")
    return devices


class PmapProgram:
    """A pmapped function. Unlike `jax.pmap` itself, it takes options for the compiler, with each call."""

    def __init__(self, pmapped: Callable[..., Any]) -> None:
        self._pmapped: Any = pmapped
        self._compiled: dict[Hashable, Callable[..., Any]] = {}

    def __call__(self, *arguments: PyTree, compiler_options: Mapping[str, str] | None = None) -> PyTree:
        """Split arguments in, split results out; see `split_batch` and `merge_batch`."""
        if not compiler_options:
            return self._pmapped(*arguments)
        leaves, treedef = jax.tree.flatten(arguments)
        shapes = tuple((leaf.shape, leaf.dtype, leaf.sharding) for leaf in leaves)
        key = treedef, shapes, tuple(sorted(compiler_options.items()))
        if key not in self._compiled:
            lowered = self._pmapped.lower(*arguments)
            self._compiled[key] = lowered.compile(compiler_options=dict(compiler_options))
        return self._compiled[key](*arguments)


@checked(donate=at_least(0))
def pmap_program(
    function: Callable[..., PyTree],
    in_axes: Axes,
    out_axes: Axes,
    devices: Sequence[Device],
    *,
    donate: Sequence[int] = (),
    static: Mapping[str, Hashable] = NOTHING,
) -> PmapProgram:
    """`jax.pmap(function)`, compiled once per process: the only place of the project that calls pmap.

    Equal arguments give the same program, so the function must be hashable by value: a function of a module, not a closure
    made for this call.

    Args:
        in_axes: where each argument has the axis of the devices; a tuple with one entry per argument
        out_axes: the same for the results
        donate: numbers of the arguments whose memory the results may take
        static: keyword arguments that are part of the program (settings, the number of steps)

    Examples:
        >>> squares = jaxsink.parallel.pmap_program(jnp.square, (0,), 0, jax.devices()[:1])
        >>> squares(np.arange(3.0)[None]).shape  # the axis of the devices comes first
        (1, 3)
    """
    values = tuple(sorted(static.items()))
    return _pmap_program(function, _hashable(in_axes), _hashable(out_axes), tuple(devices), tuple(donate), values)


@lru_cache(maxsize=256)
def _pmap_program(
    function: Callable[..., PyTree],
    in_axes: FlatAxes,
    out_axes: FlatAxes,
    devices: tuple[Device, ...],
    donate: tuple[int, ...],
    static: tuple[tuple[str, Hashable], ...],
) -> PmapProgram:
    options: dict[str, Any] = {
        name: jax.tree.unflatten(treedef, leaves)
        for name, (leaves, treedef) in (("in_axes", in_axes), ("out_axes", out_axes))
    }
    bound = partial(function, **dict(static))
    return PmapProgram(jax.pmap(bound, devices=devices, donate_argnums=donate, **options))


def _hashable(axes: Axes) -> FlatAxes:
    leaves, treedef = jax.tree.flatten(axes)
    return tuple(leaves), treedef


@checked()
def pmap_batch(
    function: Callable[..., PyTree],
    arguments: Sequence[PyTree],
    in_axes: Sequence[int | None],
    out_axes: Axes,
    devices: Sequence[Device],
    *,
    static: Mapping[str, Hashable] = NOTHING,
) -> PyTree:
    """`function(*arguments)` with the batch split over the devices, and the results as one batch again.

    Args:
        function: as for `pmap_program`
        arguments: pytrees of arrays
        in_axes: where each argument has its batch axis; None: every device gets it whole
        out_axes: the same for the results, as one number or a pytree of numbers
        devices: that share the batch
        static: as for `pmap_program`

    Examples:
        >>> jaxsink.parallel.pmap_batch(jnp.square, [np.arange(4.0)], [0], 0, jax.devices()[:1]).tolist()
        [0.0, 1.0, 4.0, 9.0]
    """
    devices = check_devices(devices)
    pairs = list(zip(arguments, in_axes, strict=True))
    batch = next(jax.tree.leaves(argument)[0].shape[axis] for argument, axis in pairs if axis is not None)
    devices = devices[: max(batch, 1)]
    split = [argument if axis is None else split_batch(argument, axis, len(devices)) for argument, axis in pairs]
    results = pmap_program(function, tuple(in_axes), out_axes, devices, static=static)(*split)
    return jax.tree.map(lambda axis, part: merge_batch(part, axis, batch), out_axes, results)


def pad_batch(x: A, axis: int, multiple: int) -> A:
    """[..., B, ...] with B rounded up to a multiple by repeating the last sequence; NumPy arrays stay on the host."""
    size = x.shape[axis]
    extra = -size % multiple
    if extra == 0:
        return x
    numpy = np if isinstance(x, np.ndarray) else jnp
    return numpy.concatenate([x, numpy.take(x, np.full(extra, size - 1), axis=axis)], axis=axis)  # type: ignore[arg-type]


def split_batch(tree: PyTree, axis: int, count: int) -> PyTree:
    """[..., B, ...] -> [..., count, B / count, ...], padded to a multiple."""

    def split(x: Any) -> Any:
        x = pad_batch(x, axis, count)
        return x.reshape(*x.shape[:axis], count, -1, *x.shape[axis + 1 :])

    return jax.tree.map(split, tree)


def merge_batch(tree: PyTree, axis: int, batch: int) -> PyTree:
    """The inverse of `split_batch`, cut back to the batch."""

    def merge(x: Array) -> Array:
        x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
        return x if x.shape[axis] == batch else lax.slice_in_dim(x, 0, batch, axis=axis)

    return jax.tree.map(merge, tree)
