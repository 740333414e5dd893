"""The strict match of a source against its family's table: every tensor has one place, every place one tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import ml_dtypes
import numpy as np

from jaxsink.checkpoint import is_layered, named_leaves, piece_name
from jaxsink.config import ModelConfig
from jaxsink.errors import JaxsinkError
from jaxsink.model import abstract

from .families import family_of
from .source import Source
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


@dataclass(frozen=True)
class Plan:
    """What goes where. `dtype` is the narrowest type that holds every tensor of the source unchanged."""

    family: Family
    config: ModelConfig
    dtype: str
    pieces: tuple[Piece, ...]
    tied_copy: str | None  # a tensor that must repeat the embedding

    def bytes(self, dtype: str) -> int:
        return sum(int(np.prod(piece.shape)) for piece in self.pieces) * jax.numpy.dtype(dtype).itemsize


def make_plan(source: Source, where: str, ignore_settings: frozenset[str] = frozenset()) -> Plan:
    family = family_of(source.config, where)
    settings = Settings(source.config, where, ignore_settings)
    config = family.configure(settings)
    settings.finish()
    more_eos = Settings(source.generation, f"{where} (generation_config.json)").ids("eos_token_id")
    config = config.replace(eos_ids=tuple(dict.fromkeys((*config.eos_ids, *(i for i in more_eos if i < config.vocab)))))

    pieces = tuple(list_pieces(family, config, source))
    tied_copy = family.tied_head if config.tied and family.tied_head in source.tensors else None
    check_names(family, config, source, pieces, tied_copy, where)
    for piece in pieces:
        check_tensors(piece, config, source)
    if tied_copy is not None and source.tensors[tied_copy].shape != (config.vocab, config.width):
        raise JaxsinkError(f"tensor {tied_copy!r} should repeat the embedding, but has another shape.")
    return Plan(family, config, common_dtype(source, pieces), pieces, tied_copy)


def list_pieces(family: Family, config: ModelConfig, source: Source) -> Iterator[Piece]:
    prefix = next((p for p in family.prefixes if any(name.startswith(p) for name in source.tensors)), "")
    for parameter, leaf in named_leaves(abstract(config))[0]:
        rule = family.table[parameter]
        pattern = rule.source if isinstance(rule, From) else rule
        for layer in range(config.layers) if is_layered(parameter) else (None,):
            shape = leaf.shape if layer is None else leaf.shape[1:]
            experts = range(shape[0]) if "{expert}" in pattern else (None,)
            sources = tuple(pattern.format(prefix=prefix, layer=layer, expert=expert) for expert in experts)
            yield Piece(parameter, layer, tuple(shape), sources, rule)


def check_names(
    family: Family, config: ModelConfig, source: Source, pieces: tuple[Piece, ...], tied_copy: str | None, where: str
) -> None:
    wanted = Counter(name for piece in pieces for name in piece.sources)
    missing = [name for name in wanted if name not in source.tensors]
    if missing:
        raise JaxsinkError(f"tensor {missing[0]!r} is missing from {where}{_more(missing)}.")
    harmless = {
        pattern.format(prefix=prefix, layer=layer)
        for pattern in family.harmless_tensors
        for prefix in family.prefixes
        for layer in range(config.layers)
    }
    extra = [name for name in source.tensors if name not in wanted and name not in harmless and name != tied_copy]
    if extra:
        raise JaxsinkError(f"tensor {extra[0]!r} of {where} has no place in a {family.name} model{_more(extra)}.")


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def check_tensors(piece: Piece, config: ModelConfig, source: Source) -> None:
    expected = piece.shape[1:] if len(piece.sources) > 1 else piece.shape
    if isinstance(piece.rule, From):
        expected = piece.rule.shape(expected)
    for name in piece.sources:
        info = source.tensors[name]
        if not info.is_float:
            raise JaxsinkError(f"tensor {name!r} in {info.file} has the type {info.dtype}; weights must be floating point.")
        if info.shape != expected:
            raise JaxsinkError(
                f"tensor {name!r} in {info.file} has the shape {list(info.shape)}, where the config asks for {list(expected)}."
            )


def common_dtype(source: Source, pieces: tuple[Piece, ...]) -> str:
    used = {source.tensors[name].dtype for piece in pieces for name in piece.sources}
    return used.pop() if len(used) == 1 else "float32"


def read_piece(plan: Plan, source: Source, piece: Piece, dtype: str) -> np.ndarray:
    """The array of one piece, in our layout and type; damaged numbers are errors."""
    parts = [take_tensor(plan, source, piece.rule, name) for name in piece.sources]
    value = np.stack(parts) if len(parts) > 1 or piece.shape != parts[0].shape else parts[0]
    if value.shape != piece.shape:
        raise JaxsinkError(f"tensor {piece.sources[0]!r} became {value.shape} instead of {piece.shape}.")
    return np.ascontiguousarray(cast(value, dtype, piece.sources[0]))


def take_tensor(plan: Plan, source: Source, rule: str | From, name: str) -> np.ndarray:
    value = source.read(name)
    if not all_finite(value):
        raise JaxsinkError(f"tensor {name!r} in {source.tensors[name].file} holds NaN or infinite numbers.")
    return rule.take(value, plan.config) if isinstance(rule, From) else value


def all_finite(value: np.ndarray) -> bool:
    """Without a float copy: the exponent of a NaN or an infinity is all ones."""
    exponent = {"float32": (np.uint32, 0x7F800000), "float16": (np.uint16, 0x7C00), "bfloat16": (np.uint16, 0x7F80)}
    view, ones = exponent[value.dtype.name]
    bits = np.ascontiguousarray(value).reshape(-1).view(view)
    step = 1 << 22
    return not any(((bits[i : i + step] & ones) == ones).any() for i in range(0, bits.size, step))


def cast(value: np.ndarray, dtype: str, name: str) -> np.ndarray:
    target = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    if value.dtype == target:
        return value
    with np.errstate(over="ignore"):
        result = value.astype(target)
    if not all_finite(result):
        raise JaxsinkError(f"tensor {name!r} has numbers too large for {dtype}; choose float32 or bfloat16.")
    return result
