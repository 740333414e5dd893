"""Records as labelled tables: `Generation.to_dataframe` (pandas) and `Generation.to_xarray`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from jaxsink.errors import JaxsinkError, install_hint
from jaxsink.nn.batch import count_tokens
from jaxsink.sampling.leaves import Leaf, leaves

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from jaxsink.sampling.generation import Generation
    from jaxsink.text.tokenizer import Tokenizer

Coordinate = tuple[tuple[str, ...], np.ndarray]
Chosen = int | Iterable[int] | None
POSITIONS = ("position", "query", "key")


@dataclass(frozen=True)
class Selection:
    """What to keep along each axis, by the model's numbers; None = all."""

    step: Chosen = None
    layer: Chosen = None
    sequence: Chosen = None
    head: Chosen = None

    def index(self, leaf: Leaf) -> dict[str, np.ndarray]:
        """Indices along each axis of the leaf."""
        return {dim: _find(dim, getattr(self, dim, None), leaf.labels[dim]) for dim in leaf.dims}


def dataframe(
    generation: Generation, names: str | Sequence[str] | None, chosen: Selection, max_rows: int
) -> pd.DataFrame:
    pandas = _library("pandas", "to_dataframe")
    found = leaves(generation, names)
    _check_alike(found)
    index = chosen.index(found[0])
    sizes = {dim: len(numbers) for dim, numbers in index.items()}
    rows = int(np.prod(list(sizes.values())))
    if rows > max_rows:
        product = " × ".join(f"{size} {dim}s" for dim, size in sizes.items())
        raise JaxsinkError(
            f"the table would have {rows:,} rows ({product}), more than max_rows = {max_rows:,}; choose with steps=, "
            "layers=, sequences= and heads=, or raise max_rows."
        )
    grid = dict(zip(index, np.meshgrid(*index.values(), indexing="ij", sparse=True), strict=True))
    exists = _exists(generation, grid, tuple(sizes.values()))

    def column(values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(values, exists.shape)[exists]

    columns: dict[str, np.ndarray | pd.Categorical] = {dim: column(found[0].labels[dim][grid[dim]]) for dim in index}
    if "position" in grid:
        for name, values in _of_positions(generation).items():
            columns[name] = column(values[grid["sequence"], grid["position"]])
        if generation.tokenizer is not None:
            columns["text"] = _texts(pandas, np.asarray(columns["token"]), generation.tokenizer)
    for leaf in found:
        if leaf.name in columns:
            raise JaxsinkError(
                f"a record is called {leaf.name!r}, as a column of every table is; give it another name."
            )
        columns[leaf.name] = leaf.host()[np.ix_(*index.values())][exists]
    return pandas.DataFrame(columns)


def dataset(generation: Generation, names: str | Sequence[str] | None, chosen: Selection) -> xr.Dataset:
    xarray = _library("xarray", "to_xarray")
    found = leaves(generation, names)
    index: dict[str, np.ndarray] = {}
    labels: dict[str, np.ndarray] = {}
    for leaf in found:
        for dim, numbers in chosen.index(leaf).items():
            mine = leaf.labels[dim][numbers]
            if not np.array_equal(labels.setdefault(dim, mine), mine):
                raise JaxsinkError(_unlike(found, f"their {dim}s differ"))
            index[dim] = numbers
    variables = {
        leaf.name: (leaf.dims, leaf.host()[np.ix_(*(chosen.index(leaf)[dim] for dim in leaf.dims))]) for leaf in found
    }
    both = ("sequence", "position")
    sequences = index["sequence"]
    about = _of_positions(generation) | {"mask": np.asarray(generation.mask)}
    coordinates: dict[str, Coordinate] = {name: (both, values[sequences]) for name, values in about.items()}
    if generation.tokenizer is not None:
        texts = [[generation.tokenizer.token(token) for token in row] for row in about["token"][sequences]]
        coordinates["text"] = (both, np.array(texts, object))
    coordinates["steps_taken"] = (("sequence",), np.asarray(generation.steps)[sequences])
    attributes = {"prompt_length": int(generation.prompt_length)}
    labels.setdefault("position", np.arange(np.shape(generation.tokens)[1]))
    return xarray.Dataset(variables, coordinates | labels, attributes)


def _library(name: str, method: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise JaxsinkError(f"{method} needs {name}, which is not installed; {install_hint('pandas')}.") from error


def _find(dim: str, wanted: Chosen, labels: np.ndarray) -> np.ndarray:
    """Indices of the wanted numbers among an axis's labels."""
    if wanted is None:
        return np.arange(len(labels))
    numbers = [wanted] if isinstance(wanted, int | np.integer) else list(wanted)
    where = {int(label): index for index, label in enumerate(labels)}
    for number in numbers:
        if number not in where:
            shown = ", ".join(map(str, labels)) if len(labels) <= 8 else f"{labels[0]}, {labels[1]}, …, {labels[-1]}"
            raise JaxsinkError(f"{dim} {number} was not recorded; there is {shown}.")
    return np.array([where[number] for number in numbers], int)


def _of_positions(generation: Generation) -> dict[str, np.ndarray]:
    """int[B,S] each: what stands at a position."""
    return {
        "token_position": count_tokens(np.asarray(generation.mask)),
        "token": np.asarray(generation.tokens),
        "committed_at": np.asarray(generation.committed_at),
    }


def _exists(generation: Generation, grid: dict[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """bool of the table's shape: steps that a sequence took, and positions with a token at that step."""
    steps = np.asarray(generation.recorded_steps)[grid["step"]]
    exists = np.broadcast_to(steps < np.asarray(generation.steps)[grid["sequence"]], shape)
    real = generation.real_at()
    for dim in POSITIONS:
        if dim in grid:
            exists = exists & real[grid["step"], grid["sequence"], grid[dim]]
    return exists


def _texts(pandas: ModuleType, tokens: np.ndarray, tokenizer: Tokenizer) -> pd.Categorical:
    """The tokens' texts; each is kept once, however long the table."""
    known, codes = np.unique(tokens, return_inverse=True)
    texts, numbers = np.unique([tokenizer.token(token) for token in known], return_inverse=True)
    return pandas.Categorical.from_codes(numbers[codes], texts)


def _check_alike(found: list[Leaf]) -> None:
    first = found[0]
    for leaf in found[1:]:
        same = leaf.dims == first.dims and all(np.array_equal(leaf.labels[d], first.labels[d]) for d in leaf.dims)
        if not same:
            raise JaxsinkError(_unlike(found, "they do not fit one table"))


def _unlike(found: list[Leaf], why: str) -> str:
    return f"{why}: {'; '.join(leaf.shape_text for leaf in found)}; choose some by name with record=."
