"""Checkpoints: an Orbax tree of the weights, a manifest, and the tokenizer files, in one directory.

    model/
      jaxsink.json     manifest: format, version, config, dtype, where the weights come from
      weights/         Orbax checkpoint: one array per parameter and layer, `layers.attention.q.weight.07`
      tokenizer.json … as the source had them

One array per layer keeps a conversion's memory at a few tensors, whatever the model. Everything is written beside the
target and renamed at the end (see jaxsink.atomic), so a directory that exists is complete.
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxsink.config import ModelConfig
from jaxsink.errors import JaxsinkError
from jaxsink.model import Model
from jaxsink.models import resolve
from jaxsink.progress import human_bytes, stage
from jaxsink.quantize import INT8, weights_dtype
from jaxsink.storage import IN_MEMORY, MANIFEST, Reader, dtype_name, named_leaves
from jaxsink.writing import writer

__all__ = ["MANIFEST", "Reader", "describe_foreign", "dtype_name", "load", "named_leaves", "save", "writer"]


def load(path: str | os.PathLike[str], dtype: Any = None, mesh: Mesh | None = None) -> Model:
    """A model from a converted checkpoint, from a Hugging Face directory with safetensors files, or a built-in one by name.

    dtype: a name such as "float32" or a JAX dtype; None = as stored; "int8" rounds the weights of the layers, and has all
    else in bfloat16 (see jaxsink.quantize). mesh: restore straight into its shards.
    """
    path = resolve(path)
    dtype = None if dtype is None else dtype_name(dtype, IN_MEMORY)
    with stage(f"loading {path.name}", detail=size_on_disk(path)):
        if (path / MANIFEST).is_file():
            return Reader(path).model(dtype, mesh)
        if not path.exists():
            raise JaxsinkError(f"there is no checkpoint at {path}; give a converted one or a Hugging Face directory.")
        return foreign_formats(path).load_directory(path, dtype, mesh)


def size_on_disk(path: Path) -> str:
    """Of a file or of all files in a directory; empty if there is nothing."""
    total = sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
    return human_bytes(total) if total else ""


def foreign_formats(path: Path) -> Any:
    """The module that reads other people's checkpoints; it is a plug-in, because it knows us and we not it."""
    found = list(entry_points(group="jaxsink.formats"))
    if not found:
        raise JaxsinkError(f"{path} is not a converted checkpoint, and the converters are not installed.")
    return found[0].load()


def describe_foreign(path: Path) -> tuple[ModelConfig, str, dict[str, Any]]:
    """(config, dtype, source) of a Hugging Face directory or a GGUF file, without reading its weights."""
    return foreign_formats(path).describe_directory(path)


def save(
    model: Model, path: str | os.PathLike[str], source: dict[str, Any] | None = None, overwrite: bool = False
) -> None:
    """Write a model as a checkpoint that `load` reads; `overwrite` replaces an old one, once the new is complete."""
    leaves = named_leaves(model.stacked())[0]
    if weights_dtype(model) == INT8:
        raise JaxsinkError(
            "a model with int8 weights is not saved; save the model it was made of, and load that as int8."
        )
    dtypes = {dtype_name(leaf.dtype) for _, leaf in leaves}
    dtype = dtypes.pop() if len(dtypes) == 1 else "float32"  # which holds all the others
    with writer(path, model.config, dtype, source or {"kind": "saved"}, overwrite) as out:
        for name, leaf in leaves:
            out.add_parameter(name, np.asarray(leaf))
