"""Checkpoints: an Orbax tree of the weights, a manifest, and the tokenizer files, in one directory.

    model/
      jaxsink.json     manifest: format, version, config, dtype, where the weights come from
      weights/         Orbax checkpoint: one array per parameter and layer, `layers.attention.q.weight.07`
      tokenizer.json … as the source had them

One array per layer keeps a conversion's memory at a few tensors, whatever the model. Everything is written beside the
target and renamed at the end, so a directory that exists is complete.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, Sharding

from jaxsink.config import ModelConfig
from jaxsink.errors import JaxsinkError
from jaxsink.model import Model, abstract
from jaxsink.parallel import sharding_of
from jaxsink.version import __version__

MANIFEST = "jaxsink.json"
WEIGHTS = "weights"
FORMAT = 1
DTYPES = ("float32", "bfloat16", "float16")
GROUP_BYTES = 256 << 20  # arrays are handed to Orbax in groups of about this size


def load(path: str | os.PathLike[str], dtype: Any = None, mesh: Mesh | None = None) -> Model:
    """A model from a converted checkpoint, or from a Hugging Face directory with safetensors files.

    dtype: a name such as "float32" or a JAX dtype; None = as stored. mesh: restore straight into its shards.
    """
    path = Path(path).expanduser()
    dtype = None if dtype is None else dtype_name(dtype)
    if (path / MANIFEST).is_file():
        return Reader(path).model(dtype, mesh)
    if not path.exists():
        raise JaxsinkError(f"there is no checkpoint at {path}; give a converted checkpoint or a Hugging Face directory.")
    readers = entry_points(group="jaxsink.formats")
    if not readers:
        raise JaxsinkError(f"{path} is not a converted checkpoint, and the converters are not installed.")
    return next(iter(readers)).load()(path, dtype, mesh)


def save(model: Model, path: str | os.PathLike[str], source: dict[str, Any] | None = None) -> None:
    """Write a model as a checkpoint that `load` reads."""
    model = model.stacked()
    with writer(path, model.config, str(model.dtype), source or {"kind": "saved"}) as out:
        for name, leaf in named_leaves(model)[0]:
            out.add_parameter(name, np.asarray(leaf))


def dtype_name(dtype: Any) -> str:
    """The name of a floating-point type that models may have."""
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in DTYPES:
        raise JaxsinkError(f"models cannot have the type {name}; choose one of {', '.join(DTYPES)}.")
    return name


def named_leaves(model: Model) -> tuple[list[tuple[str, Any]], Any]:
    """([(name, array)], treedef); names are attribute paths such as "layers.attention.q.weight"."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(model)

    def name(path: tuple[Any, ...]) -> str:
        return ".".join(str(getattr(key, "name", getattr(key, "key", ""))) for key in path).removesuffix(".value")

    return [(name(path), leaf) for path, leaf in leaves], treedef


def is_layered(name: str) -> bool:
    """Layer parameters are stored as one array per layer."""
    return name.startswith("layers.")


def piece_name(name: str, layer: int | None) -> str:
    return name if layer is None else f"{name}.{layer:02d}"


def assemble(
    config: ModelConfig,
    dtype: str,
    mesh: Mesh | None,
    read: Callable[[str, jax.ShapeDtypeStruct, Sharding], Array],
) -> Model:
    """Build a model, largest parameters first, each read straight into its place."""
    leaves, treedef = named_leaves(abstract(config, dtype))
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    arrays: dict[str, Array] = {}
    for name, leaf in sorted(leaves, key=lambda item: -item[1].size):
        arrays[name] = read(name, leaf, device if mesh is None else sharding_of(name, len(leaf.shape), config, mesh))
    return jax.tree.unflatten(treedef, [arrays[name] for name, _ in leaves])


@dataclass
class Writer:
    """Collects arrays and hands them to Orbax in groups; see `writer`."""

    folder: Path
    group: dict[str, np.ndarray] = field(default_factory=dict)

    def add_parameter(self, name: str, value: np.ndarray) -> None:
        """A whole parameter, [L, …] for those of the layers."""
        if is_layered(name):
            for layer, part in enumerate(value):
                self.add(piece_name(name, layer), part)
        else:
            self.add(name, value)

    def add(self, piece: str, value: np.ndarray) -> None:
        self.group[piece] = value
        if sum(array.nbytes for array in self.group.values()) >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.group:
            ocp = orbax()
            with ocp.Context(array_options=_saving(ocp)):
                ocp.partial.save(self.folder / WEIGHTS, self.group)
            self.group = {}

    def finish(self) -> None:
        self.flush()
        orbax().partial.finalize(self.folder / WEIGHTS)


@contextmanager
def writer(
    path: str | os.PathLike[str],
    config: ModelConfig,
    dtype: str,
    source: dict[str, Any],
    overwrite: bool = False,
) -> Iterator[Writer]:
    """Write a checkpoint; nothing appears at `path` unless the block ends well. `source` may be filled inside it."""
    path = Path(os.path.abspath(Path(path).expanduser()))
    if path.exists() and not overwrite:
        raise JaxsinkError(f"{path} exists already; choose another place, or overwrite it (--overwrite).")
    with _exclusive(path.parent / f".{path.name}.partial") as folder:
        out = Writer(folder)
        yield out
        out.finish()
        manifest = {
            "format": FORMAT,
            "jaxsink": __version__,
            "dtype": dtype,
            "parameters": sum(leaf.size for _, leaf in named_leaves(abstract(config))[0]),
            "config": config.to_dict(),
            "source": source,
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        _replace(folder, path)


@contextmanager
def _exclusive(folder: Path) -> Iterator[Path]:
    """An empty folder that only this process writes to; it is gone afterwards, unless it was renamed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise JaxsinkError(f"cannot write to {folder.parent}: {error.strerror}.") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JaxsinkError(f"another process is writing to {folder}; wait for it to end.") from error
        for left in folder.iterdir():  # what an interrupted run left behind
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)


def _replace(folder: Path, path: Path) -> None:
    """Rename the finished folder into place; an old checkpoint there goes only once the new one is complete."""
    if path.exists():
        old = path.parent / f".{path.name}.old"
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
        folder.rename(path)
        shutil.rmtree(old)
    else:
        folder.rename(path)


class Reader:
    """A checkpoint on disk: its manifest, single pieces, or the whole model."""

    def __init__(self, path: Path):
        self.path = Path(os.path.abspath(path))
        try:
            self.manifest = json.loads((path / MANIFEST).read_text())
            if self.manifest["format"] != FORMAT:
                raise JaxsinkError(f"{path} has checkpoint format {self.manifest['format']}, this jaxsink reads {FORMAT}.")
            self.config = ModelConfig.from_dict(self.manifest["config"])
            self.dtype = dtype_name(self.manifest["dtype"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise JaxsinkError(f"{path / MANIFEST} is damaged ({error}); convert the checkpoint again.") from error

    def pieces(self, wanted: dict[str, Any]) -> dict[str, Array]:
        """Restore the named pieces; `wanted` maps each to a ShapeDtypeStruct, with or without a sharding."""
        ocp = orbax()
        loading = ocp.options.PyTreeOptions(loading=ocp.options.PyTreeOptions.Loading(partial_load=True))
        try:
            with ocp.Context(pytree_options=loading):
                return ocp.load(self.path / WEIGHTS, wanted)
        except (OSError, ValueError, KeyError) as error:
            what = str(error).strip().splitlines()[0][:200]
            raise JaxsinkError(f"{self.path} is damaged ({what}); convert the checkpoint again.") from error

    def model(self, dtype: str | None, mesh: Mesh | None) -> Model:
        def read(name: str, leaf: jax.ShapeDtypeStruct, sharding: Sharding) -> Array:
            if not is_layered(name):
                return self.pieces({name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)})[name]
            part = jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype, sharding=_without_first_axis(sharding))
            names = [piece_name(name, layer) for layer in range(leaf.shape[0])]
            parts = self.pieces(dict.fromkeys(names, part))
            return jax.jit(lambda *xs: jnp.stack(xs), out_shardings=sharding)(*[parts[n] for n in names])

        return assemble(self.config, dtype or self.dtype, mesh, read)


def _without_first_axis(sharding: Sharding) -> Sharding:
    if isinstance(sharding, jax.sharding.NamedSharding):
        return jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(*sharding.spec[1:]))
    return sharding


def orbax() -> Any:
    """Orbax's v1 interface, imported on first use and without its progress chatter."""
    from absl import logging
    from orbax.checkpoint import v1

    logging.set_verbosity(logging.ERROR)
    return v1


def _saving(ocp: Any) -> Any:
    """Weights hardly compress, and compressing them takes longer than writing them."""
    return ocp.options.ArrayOptions(saving=ocp.options.ArrayOptions.Saving(use_compression=False))
