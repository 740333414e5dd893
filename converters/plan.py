"""The strict match of a source against its family's table: every tensor is one parameter, every parameter one tensor."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxsink.checkpoints.checksums import all_finite
from jaxsink.checkpoints.stored import piece_name
from jaxsink.checkpoints.streaming import is_layered
from jaxsink.errors import JaxsinkError, a_model
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.new_model import abstract
from jaxsink.nn.parameters import is_exact, named_leaves

from .families import family_of
from .source import FLOATS, NUMPY, Source
from .special_ids import complete_ids
from .table import Family, From, Settings


@dataclass(frozen=True)
class Piece:
    """One array of the checkpoint: a parameter, or one layer's part of it, and the tensors that fill it."""

    parameter: str
    layer: int | None
    shape: tuple[int, ...]
    sources: tuple[str, ...]  # one, or one per expert
    rule: str | From

    @property
    def name(self) -> str:
        return piece_name(self.parameter, self.layer)

    def dtype(self, dtype: str) -> str:
        """Its own type in a model of the given one."""
        return "float32" if is_exact(self.parameter) else dtype

    @property
    def is_split(self) -> bool:
        """One source tensor per expert."""
        return "{expert}" in (self.rule.source if isinstance(self.rule, From) else self.rule)


@dataclass(frozen=True)
class Plan:
    """What goes where. `dtype` is the narrowest type that holds every tensor of the source unchanged."""

    family: Family
    config: ModelConfig
    dtype: str
    pieces: tuple[Piece, ...]
    tied_copy: str | None  # a tensor that must repeat the embedding
    notes: tuple[str, ...] = ()  # what the files disagree about, and which one is believed

    @property
    def parameters(self) -> int:
        return sum(math.prod(piece.shape) for piece in self.pieces)

    def bytes(self, dtype: str) -> int:
        return self.parameters * np.dtype(NUMPY[dtype]).itemsize


def read_config(
    source: Source, path: Path, ignore_settings: Iterable[str] = (), mask_id: int | None = None
) -> tuple[Family, ModelConfig, tuple[str, ...]]:
    """What the settings alone say about a model, and notes on what its files disagree about."""
    where = str(path / "config.json" if path.is_dir() else path)
    family = family_of(source.config, where)
    ignored = frozenset([ignore_settings] if isinstance(ignore_settings, str) else ignore_settings)
    settings = Settings(source.config, where, ignored)
    try:
        config = family.configure(settings)
        settings.finish()
        config, notes = complete_ids(family, config, source, path, mask_id)
    except JaxsinkError as error:  # those of ModelConfig do not know the file
        message = str(error)
        raise JaxsinkError(f"{where}: {message[8:]}" if message.startswith("config: ") else message) from error
    return family, config, tuple(notes)


def make_plan(source: Source, path: Path, ignore_settings: Iterable[str] = (), mask_id: int | None = None) -> Plan:
    """Everything that can be checked without reading the weights."""
    where = str(path / "config.json" if path.is_dir() else path)
    family, config, notes = read_config(source, path, ignore_settings, mask_id)
    experts = config.experts.count if config.experts else 1
    if config.layers * experts > len(source.tensors):  # before listing what may be millions of names
        raise JaxsinkError(
            f"{where} asks for {config.layers} layers, and {path} has only {len(source.tensors)} tensors."
        )
    pieces = tuple(list_pieces(family, config, source))
    tied_copy = family.tied_head if config.tied and family.tied_head in source.tensors else None
    check_names(family, config, source, pieces, tied_copy, path)
    for piece in pieces:
        check_tensors(piece, config, source)
    if tied_copy is not None:
        check_tensor(tied_copy, (config.vocab, config.width), source)
    order = {name: number for number, name in enumerate(source.tensors)}
    pieces = tuple(sorted(pieces, key=lambda piece: order[piece.sources[0]]))  # as the files have them
    return Plan(family, config, common_dtype(source, pieces), pieces, tied_copy, notes)


def list_pieces(family: Family, config: ModelConfig, source: Source) -> Iterator[Piece]:
    prefix = next((p for p in family.prefixes if any(name.startswith(p) for name in source.tensors)), "")
    for parameter, leaf in named_leaves(abstract(config))[0]:
        rule, first = rule_of(family, config, parameter)
        pattern = rule.source if isinstance(rule, From) else rule
        for layer in range(leaf.shape[0]) if is_layered(parameter) else (None,):
            shape, number = (leaf.shape, None) if layer is None else (leaf.shape[1:], first + layer)
            experts = range(shape[0]) if "{expert}" in pattern else (None,)
            sources = tuple(pattern.format(prefix=prefix, layer=number, expert=expert) for expert in experts)
            yield Piece(parameter, layer, tuple(shape), sources, rule)


def rule_of(family: Family, config: ModelConfig, parameter: str) -> tuple[str | From, int]:
    """(where a parameter comes from, the number of the first layer that it has a part of).

    Where a stack begins with dense layers, "layers.0" are these, and "layers.1" the ones with experts.
    """
    _, _, rest = parameter.partition("layers.")
    number, _, name = rest.partition(".")
    if not number.isdigit():
        return family.table[parameter], 0
    first = sum(segment.layers for segment in config.segments[: int(number)])
    table = family.table if config.segments[int(number)].experts else {**family.table, **family.dense}
    return table[f"layers.{name}"], first


def check_names(
    family: Family, config: ModelConfig, source: Source, pieces: tuple[Piece, ...], tied_copy: str | None, path: Path
) -> None:
    wanted = Counter(name for piece in pieces for name in piece.sources)
    missing = [name for name in wanted if name not in source.tensors]
    if missing:
        raise JaxsinkError(f"tensor {source.shown(missing[0])!r} is missing from {path}{_more(missing)}.")
    harmless = {
        pattern.format(prefix=prefix, layer=layer)
        for pattern in family.harmless_tensors
        for prefix in family.prefixes
        for layer in range(config.layers)
    }
    extra = [name for name in source.tensors if name not in wanted and name not in harmless and name != tied_copy]
    if extra:
        raise JaxsinkError(
            f"tensor {source.shown(extra[0])!r} of {path} is no parameter of {a_model(family.name)}{_more(extra)}."
        )


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def check_tensors(piece: Piece, config: ModelConfig, source: Source) -> None:
    expected = piece.shape[1:] if piece.is_split else piece.shape
    if isinstance(piece.rule, From):
        expected = piece.rule.shape(expected)
        expected = expected if piece.rule.rows is None else (piece.rule.rows(config), *expected[1:])
    for name in piece.sources:
        check_tensor(name, expected, source)


def check_tensor(name: str, expected: tuple[int, ...], source: Source) -> None:
    info = source.tensors[name]
    if not info.is_float:
        raise JaxsinkError(
            f"tensor {source.shown(name)!r} in {info.file} has the type {info.dtype}; "
            f"weights must be {', '.join(FLOATS.values())}."
        )
    if info.shape != expected:
        have, want = list(info.shape), list(expected)
        raise JaxsinkError(
            f"tensor {source.shown(name)!r} in {info.file} has the shape {have}, where the config asks for {want}."
        )


def common_dtype(source: Source, pieces: tuple[Piece, ...]) -> str:
    used = {source.tensors[name].dtype for piece in pieces for name in piece.sources if not is_exact(piece.parameter)}
    return used.pop() if len(used) == 1 else "float32"


def read_piece(plan: Plan, source: Source, piece: Piece, dtype: str) -> np.ndarray:
    """The array of one piece, in our layout and type; damaged numbers are errors."""
    dtype = piece.dtype(dtype)
    parts = [cast(take_tensor(plan, source, piece.rule, name), dtype, name) for name in piece.sources]
    value = np.ascontiguousarray(np.stack(parts) if piece.is_split else parts[0])
    assert value.shape == piece.shape, (piece, value.shape)
    return value


def take_tensor(plan: Plan, source: Source, rule: str | From, name: str) -> np.ndarray:
    value = source.read(name)
    check_finite(value, name, source)
    return rule.take(value, plan.config) if isinstance(rule, From) else value


def check_finite(value: np.ndarray, name: str, source: Source) -> None:
    if not all_finite(value):
        file = source.tensors[name].file
        raise JaxsinkError(f"tensor {source.shown(name)!r} in {file} holds NaN or infinite numbers.")


def check_tied_copy(plan: Plan, source: Source) -> None:
    """Where the head is the embedding, a head that is stored all the same must be equal to it."""
    if plan.tied_copy is None:
        return
    embedding = next(piece.sources[0] for piece in plan.pieces if piece.parameter == "embedding")
    rows = max(1, (64 << 20) // (4 * plan.config.width))
    for start in range(0, plan.config.vocab, rows):
        part = (slice(start, min(start + rows, plan.config.vocab)), slice(None))
        head, base = (source.read(name, part).astype(np.float32) for name in (plan.tied_copy, embedding))
        if not np.array_equal(head, base, equal_nan=True):  # NaN has its own message
            file = source.tensors[plan.tied_copy].file
            raise JaxsinkError(
                f"tensor {plan.tied_copy!r} in {file} differs from the embedding, but the config ties them."
            )


def cast(value: np.ndarray, dtype: str, name: str) -> np.ndarray:
    target = np.dtype(NUMPY[dtype])
    if value.dtype == target:
        return value
    with np.errstate(over="ignore"):
        result = value.astype(target)
    if not all_finite(result):
        raise JaxsinkError(f"tensor {name!r} has numbers too large for {dtype}; choose float32 or bfloat16.")
    return result
