"""Open a checkpoint of any kind, and load it straight into a model without converting it first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxsink.checkpoints.storage import MANIFEST, dtype_name, first_line
from jaxsink.checkpoints.streaming import Index, assemble
from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.transformer import Model
from jaxsink.runs.files import check_file, read_json

from .families import family_of
from .hub import fetch_settings, newest_commit
from .plan import Piece, Plan, cast, check_finite, check_tied_copy, make_plan, read_config, read_piece
from .source import SafetensorsSource, SettingsSource, Source

__all__ = [
    "convert_from_hub",
    "describe_directory",
    "fetch_settings",
    "load_directory",
    "newest_commit",
    "open_source",
    "tokenizer_files",
]


def open_source(path: Path) -> Source:
    """A Hugging Face directory or a GGUF file."""
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
        names = {child.name for child in path.iterdir()} if is_folder else set()
    except OSError as error:
        raise JaxsinkError(f"cannot read {path}: {error.strerror}.") from error
    if is_file and path.suffix == ".gguf":
        from .gguf_source import GgufSource

        return GgufSource(path)
    if is_file:
        raise JaxsinkError(f"{path} is a file; give the checkpoint's directory, or a .gguf file.")
    if not is_folder:
        raise JaxsinkError(f"there is no checkpoint at {path}.")
    if MANIFEST in names:
        raise JaxsinkError(f"{path} is a checkpoint of jaxsink already; jaxsink.load reads it.")
    if "config.json" not in names:
        raise JaxsinkError(f"{path} has no config.json, so it is not a Hugging Face checkpoint.")
    family_of(read_json(path / "config.json"), str(path / "config.json"))  # before anything is asked of the weights
    if names & {"model.safetensors", "model.safetensors.index.json"}:
        return SafetensorsSource(path)
    if names & {"pytorch_model.bin", "pytorch_model.bin.index.json"}:
        from .torch_source import TorchSource

        return TorchSource(path)
    raise JaxsinkError(f"{path} has no weights: neither model.safetensors nor pytorch_model.bin, whole or sharded.")


def load_directory(
    path: Path,
    dtype: str | None,
    mesh: Mesh | None,
    mask_id: int | None = None,
    ignore_settings: Iterable[str] = (),
) -> Model:
    """A Hugging Face directory (or GGUF file) as a model; each device reads only its own shards."""
    source = open_source(path)
    plan = make_plan(source, path, ignore_settings, mask_id)
    check_tied_copy(plan, source)
    dtype = dtype or plan.dtype
    pieces = {(piece.parameter, piece.layer): piece for piece in plan.pieces}

    def read_into(parameter: str, layer: int | None, index: Index, into: np.ndarray) -> None:
        read_part(plan, source, pieces[parameter, layer], index, into)

    return assemble(plan.config, dtype, mesh, read_into)


def describe_directory(
    path: Path, mask_id: int | None = None, ignore_settings: Iterable[str] = ()
) -> tuple[ModelConfig, str | None, dict[str, Any]]:
    """(config, dtype, source) without reading the weights; the source's "notes" say what its files disagree about.

    Settings alone will do, and then there is no dtype.
    """
    if (path / "config.json").is_file() and not any(path.glob("*.safetensors*")) and not any(path.glob("*.bin*")):
        settings = SettingsSource(path)
        _, config, notes = read_config(settings, path, ignore_settings, mask_id)
        return config, None, described(settings, path, notes)
    source = open_source(path)
    plan = make_plan(source, path, ignore_settings, mask_id)
    return plan.config, plan.dtype, described(source, path, plan.notes)


def described(source: Source, path: Path, notes: Sequence[str]) -> dict[str, Any]:
    return {"kind": source.kind, "path": str(path), **({"notes": list(notes)} if notes else {})}


def tokenizer_files(path: Path) -> dict[str, str]:
    """The tokenizer inside a GGUF file, as the contents of tokenizer.json and tokenizer_config.json."""
    from .gguf_file import read_gguf
    from .gguf_tokenizer import build

    check_file(path)
    fields, _ = read_gguf(path)
    try:
        return build(fields)
    except (JaxsinkError, TypeError, ValueError) as error:  # the latter two: values of the wrong kind
        raise JaxsinkError(f"the tokenizer in {path} cannot be used: {first_line(error).rstrip('.')}.") from error


def convert_from_hub(repository: str, commit: str, target: Path) -> None:
    """Fetch and convert a model of the hub."""
    from .convert import convert

    convert(repository, target, revision=commit)


def read_part(plan: Plan, source: Source, piece: Piece, index: Index, into: np.ndarray) -> None:
    """Part of a piece, in the type of `into`; a plain tensor is read only as far as it is needed, and in place."""
    dtype, name = dtype_name(into.dtype), piece.sources[0]
    if not isinstance(piece.rule, str) or piece.is_split:
        into[...] = read_piece(plan, source, piece, dtype)[index]
    elif into.shape == piece.shape and source.tensors[name].dtype == dtype:
        source.read_into(name, into)
        check_finite(into, name, source)
    else:
        value = source.read(name, index)
        check_finite(value, name, source)
        into[...] = cast(value, dtype, name)
