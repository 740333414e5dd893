"""How checkpoints lie on the disk: names, the writer that streams into one, and the reader that restores from it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, Sharding

from jaxsink.atomic import new_directory
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
CHUNK_BYTES = 64 << 20  # arrays are stored in chunks of at most this size


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
    read: Callable[[dict[str, jax.ShapeDtypeStruct]], dict[str, Array]],
) -> Model:
    """Build a model from what `read` returns for its parameters, largest first; each comes with its sharding."""
    leaves, treedef = named_leaves(abstract(config, dtype))
    wanted = {}
    for name, leaf in sorted(leaves, key=lambda item: -item[1].size):
        sharding = on_one_device() if mesh is None else sharding_of(name, len(leaf.shape), config, mesh)
        wanted[name] = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    arrays = read(wanted)
    return jax.tree.unflatten(treedef, [arrays[name] for name, _ in leaves])


def on_one_device() -> Sharding:
    return jax.sharding.SingleDeviceSharding(jax.devices()[0])


@dataclass
class Writer:
    """Collects arrays and hands them to Orbax in groups, which it writes while the next group is made; see `writer`."""

    folder: Path
    manifest: dict[str, Any]
    group: dict[str, np.ndarray] = field(default_factory=dict)
    writing: Any = None  # the group before, on its way to the disk
    finished: bool = False

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
        self.wait()
        if self.group:
            ocp = orbax()
            with self._errors(), ocp.Context(array_options=_saving(ocp)):
                self.writing = ocp.partial.save_async(self.folder / WEIGHTS, self.group)
            self.group = {}

    def wait(self) -> None:
        """Until the group before is on the disk."""
        writing, self.writing = self.writing, None
        if writing is not None:
            with self._errors():
                writing.result()

    def finish(self) -> None:
        """Complete the checkpoint, still beside its target; from here on a `Reader` can check it."""
        if not self.finished:
            self.flush()
            self.wait()
            with self._errors():
                orbax().partial.finalize(self.folder / WEIGHTS)
            (self.folder / MANIFEST).write_text(json.dumps(self.manifest, indent=2) + "\n", encoding="utf-8")
            self.finished = True

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What the system says about the disk reaches us as the text of a ValueError."""
        try:
            yield
        except (OSError, ValueError) as error:
            code = re.search(r"os_error_code='(\d+)'", str(error))
            what = os.strerror(int(code[1])) if code else first_line(error)
            raise JaxsinkError(
                f"cannot write to {self.folder.parent}: {what}; nothing half-written is left."
            ) from error


@contextmanager
def writer(
    path: str | os.PathLike[str],
    config: ModelConfig,
    dtype: str,
    source: dict[str, Any],
    overwrite: bool = False,
) -> Iterator[Writer]:
    """Write a checkpoint; nothing appears at `path` unless the block ends well. `source` may be filled inside it."""
    manifest = {
        "format": FORMAT,
        "jaxsink": __version__,
        "dtype": dtype,
        "parameters": sum(leaf.size for _, leaf in named_leaves(abstract(config))[0]),
        "config": config.to_dict(),
        "source": source,
    }
    with new_directory(Path(os.path.realpath(os.path.expanduser(path))), MANIFEST, overwrite) as folder:
        out = Writer(folder, manifest)
        try:
            yield out
            out.finish()
        finally:
            with suppress(JaxsinkError):  # the block failed: its own error counts
                out.wait()


class Reader:
    """A checkpoint on disk: its manifest, single pieces, or the whole model."""

    def __init__(self, path: Path):
        self.path = Path(os.path.abspath(path))
        manifest = self.path / MANIFEST
        try:
            self.manifest = json.loads(manifest.read_text(encoding="utf-8"))
            if self.manifest["format"] != FORMAT:
                raise JaxsinkError(f"checkpoint format {self.manifest['format']}, where this jaxsink reads {FORMAT}")
            self.config = ModelConfig.from_dict(self.manifest["config"])
            self.dtype = dtype_name(self.manifest["dtype"])
            self.source = dict(self.manifest["source"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError, JaxsinkError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else first_line(error).rstrip(".")
            raise JaxsinkError(f"{manifest} cannot be used ({what}); convert the checkpoint again.") from error

    def pieces(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Restore pieces; `wanted` maps names to ShapeDtypeStructs with a sharding, or to NumPy arrays of that kind."""
        ocp = orbax()
        loading = ocp.options.PyTreeOptions(loading=ocp.options.PyTreeOptions.Loading(partial_load=True))
        try:
            with ocp.Context(pytree_options=loading):
                return ocp.load(self.path / WEIGHTS, wanted)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise JaxsinkError(f"{self.path} is damaged ({first_line(error)}); convert it again.") from error

    def model(self, dtype: str | None, mesh: Mesh | None) -> Model:
        return assemble(self.config, dtype or self.dtype, mesh, self._parameters)

    def _parameters(self, wanted: dict[str, jax.ShapeDtypeStruct]) -> dict[str, Array]:
        """Large parameters one by one, the small ones together."""
        arrays: dict[str, Array] = {}
        group: dict[str, jax.ShapeDtypeStruct] = {}
        for name, leaf in wanted.items():
            if is_layered(name) and _bytes(leaf) > GROUP_BYTES:
                arrays[name] = self._large(name, leaf)
                continue
            if sum(map(_bytes, group.values())) + _bytes(leaf) > GROUP_BYTES:
                arrays |= self._together(group)
                group = {}
            group[name] = leaf
        return arrays | self._together(group)

    def _together(self, wanted: dict[str, jax.ShapeDtypeStruct]) -> dict[str, Array]:
        flat = {name: leaf for name, leaf in wanted.items() if not is_layered(name)}
        names = {name: self._names(name, leaf) for name, leaf in wanted.items() if is_layered(name)}
        parts = self.pieces(flat | {part: _one_layer(wanted[name]) for name in names for part in names[name]})
        stacked = {name: [parts[part] for part in names[name]] for name in names}
        shardings = {name: wanted[name].sharding for name in names}
        stack = jax.jit(
            lambda tree: {name: jnp.stack(layers) for name, layers in tree.items()}, out_shardings=shardings
        )
        return {name: parts[name] for name in flat} | stack(stacked)

    def _large(self, name: str, leaf: jax.ShapeDtypeStruct) -> Array:
        """A stacked parameter, filled a few layers at a time, so that it never exists twice."""
        names, part = self._names(name, leaf), _one_layer(leaf)
        step = max(1, GROUP_BYTES // _bytes(part))
        whole = jax.jit(lambda: jnp.zeros(leaf.shape, leaf.dtype), out_shardings=leaf.sharding)()

        @partial(jax.jit, donate_argnums=0, out_shardings=leaf.sharding)
        def put(whole: Array, start: Array, parts: list[Array]) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(whole, jnp.stack(parts), start, axis=0)

        for start in range(0, len(names), step):
            parts = self.pieces(dict.fromkeys(names[start : start + step], part))
            whole = put(whole, jnp.asarray(start), [parts[n] for n in names[start : start + step]])
        return whole

    def _names(self, name: str, leaf: jax.ShapeDtypeStruct) -> list[str]:
        return [piece_name(name, layer) for layer in range(leaf.shape[0])]


def _bytes(leaf: jax.ShapeDtypeStruct) -> int:
    return leaf.size * leaf.dtype.itemsize


def _one_layer(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    sharding = leaf.sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        spec = jax.sharding.PartitionSpec(*sharding.spec[1:])
        sharding = jax.sharding.NamedSharding(sharding.mesh, spec)
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype, sharding=sharding)


def first_line(error: BaseException) -> str:
    """What a library's error says, short enough for a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def orbax() -> Any:
    """Orbax's v1 interface, imported on first use and without its progress chatter."""
    from absl import logging
    from orbax.checkpoint import v1

    logging.set_verbosity(logging.ERROR)
    return v1


def _saving(ocp: Any) -> Any:
    """Weights hardly compress, and compressing takes longer than writing; a shard is read without the whole array."""
    kind = ocp.options.ArrayOptions.Saving
    storage = kind.StorageOptions(chunk_byte_size=CHUNK_BYTES)
    return ocp.options.ArrayOptions(saving=kind(use_compression=False, storage_options=storage))
