"""The arrays of a generation's record with their names and axes, whatever was recorded: the basis of tables and plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax import Array

from jaxsink.errors import JaxsinkError
from jaxsink.nn.recorder import Recorder
from jaxsink.parallel.hosts import to_host

if TYPE_CHECKING:
    from jaxsink.sampling.generation import Generation

AnyArray = Array | np.ndarray  # of a device, or read from a file
FRONT = ("step", "layer", "sequence")
HEAD_AND_POSITION = (*FRONT, "head", "position")


@dataclass(frozen=True)
class Kept:
    """What a recorder is called, and the layers and heads that it kept (None = all). Unlike it, this can be pickled."""

    name: str
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None

    @classmethod
    def of(cls, recorder: Recorder) -> Kept:
        return cls(recorder.name, recorder.layers, recorder.heads)


@dataclass(frozen=True)
class Leaf:
    """One array of a record. labels: the numbers along each axis, as the model counts its layers and heads."""

    name: str
    recorder: str
    values: AnyArray
    dims: tuple[str, ...]
    labels: dict[str, np.ndarray]

    def host(self) -> np.ndarray:
        return np.asarray(to_host(self.values))

    @property
    def shape_text(self) -> str:
        return f"{self.name} ({', '.join(f'{d} {n}' for d, n in zip(self.dims, self.values.shape, strict=True))})"


def names_of(generation: Generation) -> list[str]:
    """What the arrays of the record are called. A part of a dictionary is called by its keys: "split.masked"."""
    return [path or kept.name for kept, path, _ in _arrays(generation)]


def leaves(generation: Generation, names: str | Sequence[str] | None = None) -> list[Leaf]:
    """The arrays of the record, or those of these names."""
    found = {path or kept.name: (kept, values) for kept, path, values in _arrays(generation)}
    wanted = list(found) if names is None else [names] if isinstance(names, str) else list(names)
    for name in wanted:
        if name not in found:
            raise JaxsinkError(f"nothing was recorded as {name!r}; there is {', '.join(found)}.")
    return [_leaf(generation, name, *found[name]) for name in wanted]


def _leaf(generation: Generation, name: str, kept: Kept, values: AnyArray) -> Leaf:
    batch, length = np.shape(generation.tokens)
    dims = _dims(name, values.shape, batch, length)
    labels = {dim: np.arange(size, dtype=np.int32) for dim, size in zip(dims, values.shape, strict=True)}
    labels["step"] = np.asarray(generation.recorded_steps, np.int32)
    if kept.layers is not None:
        labels["layer"] = np.array(kept.layers, np.int32)
    if kept.heads is not None and "head" in dims:
        labels["head"] = np.array(kept.heads, np.int32)
    return Leaf(name, kept.name, values, dims, labels)


def _arrays(generation: Generation) -> list[tuple[Kept, str, AnyArray]]:
    """(what is known of the recorder, keys joined by dots, array)."""
    flatten = jax.tree_util.tree_flatten_with_path
    if not jax.tree.leaves(generation.record):
        raise JaxsinkError("this generation has no record; give generate(…, record=jaxsink.record.received()).")
    if generation.recorders is None:  # put together by hand
        return [(Kept("value"), _keys(path), values) for path, values in flatten(generation.record)[0]]
    known, treedef = flatten(generation.recorders)
    return [
        (kept, _keys((*front, *path)), values)
        for (front, kept), part in zip(known, treedef.flatten_up_to(generation.record), strict=True)
        for path, values in flatten(part)[0]
    ]


def _keys(path: tuple[object, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _dims(name: str, shape: tuple[int, ...], batch: int, length: int) -> tuple[str, ...]:
    """The names of a record's axes, known by the number of sequences and of positions."""
    is_position = tuple(size == length for size in shape[3:])
    known = {
        (): (),
        (True,): ("position",),
        (False,): ("head",),
        (False, True): ("head", "position"),
        (True, False): ("position", "item"),
        (False, False): ("head", "item"),
        (False, True, True): ("head", "query", "key"),
    }
    if is_position not in known or len(shape) < 3 or shape[2] != batch:
        raise JaxsinkError(
            f"the axes of {name}, {list(shape)}, cannot be told apart ({batch} sequences of {length} positions); read the "
            "array itself from generation.record."
        )
    return (*FRONT, *known[is_position])
