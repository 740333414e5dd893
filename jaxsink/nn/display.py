"""Short texts for objects that hold arrays: their shapes, never their numbers."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp


def shape_of(value: object) -> str:
    """`float32[2,4,8]` for an array, `{…}` and `(…)` for containers of them, the value itself for all else."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{jnp.dtype(dtype).name}{list(shape)}".replace(" ", "")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {shape_of(part)}" for name, part in value.items()) + "}"
    if type(value) in (tuple, list):
        return "(" + ", ".join(map(shape_of, jax.tree.leaves(value))) + ")"
    return repr(value)


def describe(owner: object, names: Iterable[str]) -> str:
    """`Owner(name=shape, …)`, without the fields that are None."""
    parts = ((name, getattr(owner, name)) for name in names)
    shown = ", ".join(f"{name}={shape_of(value)}" for name, value in parts if value is not None)
    return f"{type(owner).__name__}({shown})"
