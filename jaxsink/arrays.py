"""Arrays that people give: numbers of the right sort, with the axes that an annotation names, and finite ones.

Under `jit` and `grad` there are no values yet, and only sorts and axes are looked at. Values are read on the host, and of
small arrays elsewhere: a large one on an accelerator is never waited for.
"""

from __future__ import annotations

import re
from functools import lru_cache
from types import NoneType
from typing import Any, get_origin

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import AbstractArray

from jaxsink.checks import ANY, Hint, Range, fits, kinds_of, shown, words
from jaxsink.errors import JaxsinkError

WAIT = 1 << 16  # numbers of an array on an accelerator that are fetched to be looked at
SORTS = {"Bool": "True and False", "Int": "whole numbers", "Integer": "whole numbers"}
NUMBERS = (bool, int, float)


@lru_cache(maxsize=1024)
def is_array_hint(hint: Hint) -> bool:
    """Does the annotation ask for an array, or for what JAX takes for one?"""
    return any(_is_class(kind, (AbstractArray, jax.Array)) or _is_of_numpy(kind) for kind in kinds_of(hint))


def check_array(name: str, value: Any, hint: Hint, allowed: Range = ANY) -> dict[str, int]:
    """The sizes of the axes that the annotation names, or one sentence that begins with `name`."""
    others = [kind for kind in kinds_of(hint) if not _is_array(kind) and kind is not complex]
    if any(map(_is_of_numpy, others)):  # in whose ArrayLike are also texts
        others = [kind for kind in others if kind in (NoneType, *NUMBERS)]
    if any(fits(value, kind, allowed) for kind in others):
        return {}
    hints = [kind for kind in kinds_of(hint) if _is_class(kind, AbstractArray)]
    wanted = " or ".join([_words(hints), *(words(kind) for kind in others if kind not in NUMBERS)])
    array = value if hasattr(value, "dtype") and hasattr(value, "shape") else _on_host(value)
    if array is None or not (jnp.issubdtype(array.dtype, jnp.number) or array.dtype == bool):
        raise JaxsinkError(f"{name} must be {wanted}, not {shown(value)}.")
    fitting = next((hint for hint in hints if _has_rank(hint, len(array.shape))), None)
    if hints and (fitting is None or 0 in array.shape):
        said = shown(value) if len(array.shape) == 0 else f"of shape {tuple(array.shape)}"
        raise JaxsinkError(f"{name} must be {wanted}, not {said}.")
    if fitting is not None and not _is_sort(_sort(fitting), array):
        raise JaxsinkError(f"{name} must be {wanted}, not of {array.dtype}.")
    if not _in_range(array, allowed):
        raise JaxsinkError(f"{name} must hold finite numbers{allowed.words()}, and one of them is not.")
    return {} if fitting is None else _sizes(fitting, tuple(array.shape))


def check_axes(
    name: str, value: Any, hint: Hint, allowed: Range, owner: str, sizes: dict[str, tuple[str, int]]
) -> None:
    """The same for one of several arrays that share axes. sizes: of the axes that are known so far, and whose they are."""
    for axis, size in check_array(f"{owner}: {name}", value, hint, allowed).items():
        other, known = sizes.setdefault(axis, (name, size))
        if size != known:
            raise JaxsinkError(f"{owner}: {name} has {size} along its axis {axis}, and {other} has {known}.")


def check_texts(title: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    """An array of texts that can be written."""
    wanted = f"texts {list(shape)}"
    if array.dtype.kind != "U" or array.shape != shape:
        raise JaxsinkError(f"{title} must be {wanted}, not {array.dtype} {list(array.shape)}.")
    try:
        "".join(array.flat).encode("utf-8")
    except ValueError as error:  # half a character, or a number that is none
        raise JaxsinkError(f"{title} must be {wanted}, and one of them is no text.") from error


def are_leaves(tree: object, hint: Hint) -> bool:
    """Is every leaf of a pytree what is wanted? What arrays hold is for others to see."""
    arrays = is_array_hint(hint)
    numbers = tuple(kind for kind in kinds_of(hint) if kind in NUMBERS)
    return all(
        (arrays and (hasattr(leaf, "dtype") or isinstance(leaf, numbers))) or fits(leaf, hint)
        for leaf in jax.tree.leaves(tree)
    )


def _is_of_numpy(kind: Hint) -> bool:
    """A part of NumPy's ArrayLike."""
    return getattr(get_origin(kind) or kind, "__name__", "") == "_SupportsArray"


def _is_array(kind: Hint) -> bool:
    return _is_class(kind, (AbstractArray, jax.Array, np.ndarray, np.bool_, np.number))


def _is_class(kind: Hint, of: type | tuple[type, ...]) -> bool:
    return isinstance(kind, type) and issubclass(kind, of)


def is_dtype(value: object) -> bool:
    """What weights may be: floating point, or int8."""
    if value is None:
        return False
    try:
        dtype = jnp.dtype(value)  # pyright: ignore[reportArgumentType, reportCallIssue]
    except (TypeError, ValueError):
        return False
    return jnp.issubdtype(dtype, jnp.floating) or dtype == jnp.int8


def _on_host(value: object) -> np.ndarray | None:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # lists of unequal lengths
        return None
    return array


def _values(array: Any) -> np.ndarray | None:
    """Where they can be had for nothing."""
    if isinstance(array, (Tracer, jax.ShapeDtypeStruct)):
        return None
    if isinstance(array, jax.Array):
        near = array.is_fully_addressable and all(device.platform == "cpu" for device in array.devices())
        if not near and (array.size > WAIT or not array.is_fully_addressable):
            return None
    return np.asarray(array)


def _in_range(array: Any, allowed: Range) -> bool:
    """The smallest and the largest say it of all, without a copy."""
    values = _values(array)
    if values is None or values.size == 0 or values.dtype == bool:
        return True
    if not jnp.issubdtype(values.dtype, jnp.floating) and allowed == ANY:
        return True
    least, most = (np.fmin, np.fmax) if allowed.nan else (np.minimum, np.maximum)
    ends = [float(least.reduce(values, axis=None)), float(most.reduce(values, axis=None))]
    return all((np.isfinite(end) and end in allowed) or (allowed.nan and np.isnan(end)) for end in ends)


def _is_sort(sort: str, array: Any) -> bool:
    """Truth values may be given as 0 and 1, and whole numbers where any will do."""
    if sort == "Bool":
        if array.dtype == bool:
            return True
        values = _values(array)
        return jnp.issubdtype(array.dtype, jnp.integer) and (values is None or bool(np.isin(values, (0, 1)).all()))
    if sort in ("Int", "Integer"):
        return jnp.issubdtype(array.dtype, jnp.integer)
    return sort == "Shaped" or jnp.issubdtype(array.dtype, jnp.integer) or jnp.issubdtype(array.dtype, jnp.floating)


def _sort(hint: type[AbstractArray]) -> str:
    return hint.__name__.split("[")[0]


def _axes(hint: type[AbstractArray]) -> list[str]:
    """Names of the axes; "..." for as many as there are."""
    return ["..." if re.match(r"#?\*|\.\.\.", axis) else axis for axis in hint.dim_str.split()]


def _has_rank(hint: type[AbstractArray], rank: int) -> bool:
    axes = _axes(hint)
    return rank >= len(axes) - 1 if "..." in axes else rank == len(axes)


def _sizes(hint: type[AbstractArray], shape: tuple[int, ...]) -> dict[str, int]:
    """Of the axes that have a name and a size of their own."""
    axes = _axes(hint)
    if "..." in axes:
        first = axes.index("...")
        between = len(shape) - len(axes) + 1
        axes = [*axes[:first], *[""] * between, *axes[first + 1 :]]
    return {axis: size for axis, size in zip(axes, shape, strict=True) if axis.isidentifier()}


def _words(hints: list[type[AbstractArray]]) -> str:
    if not hints:
        return "an array of numbers"
    sort = SORTS.get(_sort(hints[0]), "numbers")
    shapes = dict.fromkeys(f"[{','.join(_axes(hint))}]" for hint in hints)
    return f"an array of {sort} {' or '.join(shapes)}"
