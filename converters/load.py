"""Open a checkpoint of any kind, and load it straight into a model without converting it first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxsink.config import ModelConfig
from jaxsink.errors import JaxsinkError
from jaxsink.loading import Index, assemble
from jaxsink.model import Model
from jaxsink.storage import MANIFEST, dtype_name

from .plan import Piece, Plan, cast, check_finite, check_tied_copy, make_plan, read_piece
from .source import SafetensorsSource, Source


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
    if names & {"model.safetensors", "model.safetensors.index.json"}:
        return SafetensorsSource(path)
    if names & {"pytorch_model.bin", "pytorch_model.bin.index.json"}:
        from .torch_source import TorchSource

        return TorchSource(path)
    raise JaxsinkError(f"{path} has no weights: neither model.safetensors nor pytorch_model.bin, whole or sharded.")


def load_directory(path: Path, dtype: str | None, mesh: Mesh | None) -> Model:
    """A Hugging Face directory (or GGUF file) as a model; each device reads only its own shards."""
    source = open_source(path)
    plan = make_plan(source, path)
    check_tied_copy(plan, source)
    dtype = dtype or plan.dtype
    pieces = {(piece.parameter, piece.layer): piece for piece in plan.pieces}

    def read_into(parameter: str, layer: int | None, index: Index, into: np.ndarray) -> None:
        read_part(plan, source, pieces[parameter, layer], index, into)

    return assemble(plan.config, dtype, mesh, read_into)


def describe_directory(path: Path) -> tuple[ModelConfig, str, dict[str, Any]]:
    """(config, dtype, source) without reading the weights."""
    source = open_source(path)
    plan = make_plan(source, path)
    return plan.config, plan.dtype, {"kind": source.kind, "path": str(path)}


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
