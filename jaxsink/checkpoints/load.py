"""Checkpoints: an Orbax tree of the weights, a manifest, and the tokenizer files, in one directory.

    model/
      jaxsink.json     manifest: format, version, config, dtype, where the weights come from, the recommended sampler
      weights/         Orbax checkpoint: one array per parameter and layer, `layers.attention.q.weight.07`
      tokenizer.json … as the source had them

One array per layer keeps a conversion's memory at a few tensors, whatever the model. Everything is written beside the
target and renamed at the end (see jaxsink.runs.atomic), so a directory that exists is complete.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxsink.checkpoints.formats import JsonObject, foreign_formats
from jaxsink.checkpoints.integrity import MANIFEST, check_files
from jaxsink.checkpoints.origin import TOKENIZER_FILES, origin_of
from jaxsink.checkpoints.storage import IN_MEMORY, Reader, check_source, dtype_name, is_converted
from jaxsink.checkpoints.storage import WEIGHTS as ARRAYS
from jaxsink.checkpoints.writer import writer
from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.memory import WEIGHTS, explained, tree_bytes
from jaxsink.nn.new_model import abstract
from jaxsink.nn.origin import Origin
from jaxsink.nn.parameters import is_exact, named_leaves
from jaxsink.nn.quantization import INT8, weights_dtype
from jaxsink.nn.transformer import Model
from jaxsink.runs.files import check_file, check_inside, read_json
from jaxsink.runs.progress import human_bytes, stage
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.registry import to_dict
from jaxsink.zoo.names import no_such_model
from jaxsink.zoo.presets import PRESETS
from jaxsink.zoo.recommend import model_sampler, recommended, recommended_entry
from jaxsink.zoo.resolve import resolve, usual_dtype

__all__ = [
    "MANIFEST",
    "Reader",
    "describe",
    "describe_foreign",
    "dtype_name",
    "load",
    "sampler_for",
    "save",
    "writer",
]


@checked(mask_id=at_least(0))
def load(
    path: str | os.PathLike[str],
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    *,
    mask_id: int | None = None,
    ignore_settings: str | Iterable[str] = (),
    verify: bool = True,
) -> Model:
    """A model from a converted checkpoint, from a Hugging Face directory with safetensors files, or a built-in one by name.

    A hub id such as "GSAI-ML/LLaDA-8B-Instruct" is fetched and converted once (see jaxsink.checkpoints.hub).

    Args:
        path: a directory, a .gguf file, gs://bucket/name, a hub id, or the name of a built-in model
        dtype: a name such as "float32" or a JAX dtype; None: as stored, but float32 for built-in models; "int8" rounds the
            weights of the layers, and has all else in bfloat16 (see jaxsink.nn.quantization)
        mesh: restore straight into its shards
        mask_id: the mask token of a diffusion model whose own files do not name it; an error if they name another
        ignore_settings: keys of config.json that jaxsink does not know, and that do not change the model
        verify: compare the arrays, the tokenizer and the manifest of a converted checkpoint with their checksums, while
            they are read

    Examples:
        >>> jaxsink.load("mini-llama", dtype="bfloat16").dtype.name
        'bfloat16'
    """
    asked, path = path, resolve(path)
    if not path.exists():
        raise no_such_model(asked)
    dtype = usual_dtype(path) if dtype is None else dtype_name(dtype, IN_MEMORY)
    needs = partial(weights_bytes, path, dtype, mask_id, ignore_settings)
    with stage(f"loading {path.name}", detail=size_on_disk(path)), explained(f"loading {path.name}", needs):
        if is_converted(path):
            reader = Reader(path, verify)
            if mask_id not in (None, reader.config.mask_id):
                raise JaxsinkError(f"{path} has mask id {reader.config.mask_id}, not {mask_id}: leave mask_id out.")
            return reader.model(dtype, mesh, verify).with_origin(origin_of(path, reader.source, reader.sampler, verify))
        model = foreign_formats(path).load_directory(path, dtype, mesh, mask_id, ignore_settings)
        return model.with_origin(origin_of(path, {}, None))


def size_on_disk(path: Path) -> str:
    """Of a file or of all files in a directory; empty if there is nothing."""
    arrays = path / ARRAYS
    try:
        below = () if arrays.is_symlink() else arrays.rglob("*")  # and not whatever else lies there, or elsewhere
        found = [path, *path.glob("*"), *below]
        total = sum(file.stat().st_size for file in found if file.is_file())
    except OSError:
        total = 0
    return human_bytes(total) if total else ""


def weights_bytes(path: Path, dtype: str | None, mask_id: int | None, ignore_settings: Iterable[str]) -> dict[str, int]:
    """Of a checkpoint's weights, as that type or as stored."""
    if is_converted(path):
        reader = Reader(path, verify=False)
        config, stored = reader.config, reader.dtype
    else:
        config, stored, _ = describe_foreign(path, mask_id, ignore_settings)
    return {WEIGHTS: tree_bytes(abstract(config, dtype or stored or "float32"))}


def describe(
    path: str | os.PathLike[str], mask_id: int | None = None, ignore_settings: Iterable[str] = ()
) -> tuple[ModelConfig, Origin]:
    """(config, origin) of a checkpoint, or of a published model by its name; no weights are read."""
    folder = resolve(path, weights=False)
    if folder.exists():
        return describe_checkpoint(folder, mask_id, ignore_settings)
    if str(path) in PRESETS:
        return PRESETS[str(path)], Origin(names=(str(path),))
    raise no_such_model(path, weights=False)


def describe_checkpoint(
    path: Path, mask_id: int | None = None, ignore_settings: Iterable[str] = ()
) -> tuple[ModelConfig, Origin]:
    """(config, origin) of the checkpoint in a directory or GGUF file."""
    if is_converted(path):
        reader = Reader(path)
        return reader.config, origin_of(path, reader.source, reader.sampler)
    config, _, source = describe_foreign(path, mask_id, ignore_settings)
    return config, origin_of(path, source, None)


def describe_foreign(
    path: Path, mask_id: int | None = None, ignore_settings: Iterable[str] = ()
) -> tuple[ModelConfig, str | None, JsonObject]:
    """(config, dtype, source) of a Hugging Face directory or a GGUF file, without reading its weights.

    A directory with settings only, without weights, has no dtype.
    """
    return foreign_formats(path).describe_directory(path, mask_id, ignore_settings)


@checked()
def save(
    model: Model,
    path: str | os.PathLike[str],
    source: JsonObject | None = None,
    overwrite: bool = False,
    sampler: Sampler | None = None,
) -> None:
    """Write a model as a checkpoint that `load` reads.

    The tokenizer of the checkpoint that the model comes from is copied, and so is the recommended sampler, unless another
    one is given.

    Args:
        model: what is written
        path: a directory that does not exist yet
        source: what jaxsink.json says of where the weights are from
        overwrite: replace an old checkpoint, once the new one is complete
        sampler: the one that the checkpoint recommends; None: the model's own

    Examples:
        >>> jaxsink.save(model, "mine")
        >>> jaxsink.load("mine").config == model.config
        True
    """
    leaves = named_leaves(model.stacked())[0]
    if weights_dtype(model) == INT8:
        raise JaxsinkError(
            "a model with int8 weights is not saved; save the model it was made of, and load that as int8."
        )
    dtypes = {dtype_name(leaf.dtype) for name, leaf in leaves if not is_exact(name)}
    dtype = dtypes.pop() if len(dtypes) == 1 else "float32"  # which holds all the others
    names = model.origin.names
    source = check_source(source or {"kind": "saved", **({"path": names[-1]} if names else {})})
    with writer(path, model.config, dtype, source, overwrite, manifest_sampler(model, sampler)) as out:
        copy_tokenizer(model.origin, out.folder)
        for name, leaf in leaves:
            out.add_parameter(name, np.asarray(leaf))


def manifest_sampler(model: Model, sampler: Sampler | None) -> JsonObject | None:
    """The sampler that the manifest recommends: the caller's, or the one that came with the model."""
    sampler = sampler or model.origin.sampler
    if sampler is None:
        return recommended_entry(model.config, model.origin.names)
    entry = to_dict(sampler)
    sampler.check(model.config)
    return entry


def copy_tokenizer(origin: Origin, folder: Path) -> None:
    """The tokenizer files of the checkpoint that a model comes from, if it has any."""
    if origin.place is None:
        return
    place = Path(origin.place)
    if not place.exists():
        raise JaxsinkError(
            f"{place}, which holds the tokenizer of this model, is gone; bring it back, or save "
            "model.with_origin(jaxsink.Origin()), which has none."
        )
    if place.is_file():
        for name, text in foreign_formats(place).tokenizer_files(place).items():
            (folder / name).write_text(text, encoding="utf-8", errors="replace")
        return
    if origin.verify and is_converted(place):
        check_files(place, read_json(place / MANIFEST))
    for name in TOKENIZER_FILES:
        found = next((one for one in (place / name, place / "tokenizer" / name) if os.path.lexists(one)), None)
        if found is not None:
            if found.parent != place:
                check_inside(found.parent)
            check_file(found)
            shutil.copyfile(found, folder / name)


@checked()
def sampler_for(model: Model | str | os.PathLike[str]) -> Sampler:
    """The sampler that a model recommends.

    It comes from the checkpoint (built-in models, models that `jaxsink train` or `convert` wrote, and what
    `save(model, path, sampler=…)` says), from what was published for a model of that name, or from its family.

    Args:
        model: a loaded model, or the name or path of one, whose weights are not read

    Examples:
        >>> jaxsink.sampler_for("mini-dream").steps
        32
    """
    if isinstance(model, Model):
        return model_sampler(model)
    config, origin = describe(model)
    return origin.sampler or recommended(config, origin.names)
