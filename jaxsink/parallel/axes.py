"""Where dataclasses of arrays have their batch and head axes: declared once per field, read by sharding and pmap.

@pytree_dataclass
class Carry:
    tokens: Int[Array, "B S"] = axes()
    drop: Bool[Array, "L B H S"] = axes(batch=1, heads=2)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxsink.nn.sharding import keep_layout
from jaxsink.parallel.pmap import merge_batch, split_batch

T = TypeVar("T")


def axes(batch: int | None = 0, heads: int | None = None, **default: Any) -> Any:
    """A field whose arrays have their batch and heads at these axes; batch=None: the same for all sequences."""
    return dataclasses.field(metadata={"batch": batch, "heads": heads}, **default)


@dataclass_transform(frozen_default=True, field_specifiers=(axes,))
def pytree_dataclass(cls: type[T]) -> type[T]:
    """A frozen dataclass that is a pytree; its fields declare their `axes`."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


def by_field(tree: T, function: Callable[[PyTree, int | None, int | None], PyTree]) -> T:
    """The same dataclass with function(value, batch axis, heads axis) in every field; dataclasses inside likewise."""
    changed = {}
    for field in dataclasses.fields(tree):  # pyright: ignore[reportArgumentType]
        value = getattr(tree, field.name)
        if dataclasses.is_dataclass(value):
            changed[field.name] = by_field(value, function)
        else:
            changed[field.name] = function(value, field.metadata["batch"], field.metadata["heads"])
    return dataclasses.replace(tree, **changed)  # pyright: ignore[reportArgumentType]


def constrain(tree: T, mesh: Mesh | None) -> T:
    """Inside jit: sequences and heads lie where the mesh has them."""
    return tree if mesh is None else by_field(tree, lambda x, batch, heads: keep_layout(x, mesh, batch, heads))


def split(tree: T, count: int) -> T:
    """The sequences in `count` parts, as pmap wants them: a leading part axis before the batch axis."""
    return by_field(tree, lambda x, batch, _: x if batch is None else split_batch(x, batch, count))


def split_axes(tree: T) -> T:
    """pmap's in_axes for what `split` gives."""
    return by_field(tree, lambda _, batch, __: batch)


def join(tree: T, batch: int) -> T:
    """One batch again, of what pmap gave back with the parts in front; only fields whose batch axis comes first."""
    return by_field(tree, lambda x, axis, _: merge_batch(x, 0, batch) if axis == 0 else x)
