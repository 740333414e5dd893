"""How checkpoints lie on the disk: the names in them, and the reader that restores models (the writer is in writing.py)."""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, Sharding

from jaxsink.config import ModelConfig
from jaxsink.errors import JaxsinkError
from jaxsink.model import Model, abstract, named_leaves
from jaxsink.parallel import sharding_of
from jaxsink.quantize import BESIDE, INT8, is_rounded, rounded, scale_name

MANIFEST = "jaxsink.json"
WEIGHTS = "weights"
FORMAT = 1
DTYPES = ("float32", "bfloat16", "float16")
IN_MEMORY = (*DTYPES, INT8)
GROUP_BYTES = 256 << 20  # arrays are handed to Orbax in groups of about this size


def dtype_name(dtype: Any, known: tuple[str, ...] = DTYPES) -> str:
    """The name of a type that models may have; in memory (`IN_MEMORY`) there is one more than on the disk."""
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in known:
        raise JaxsinkError(f"models cannot have the type {name}; choose one of {', '.join(known)}.")
    return name


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
    arrays = read_and_round(wanted, read) if dtype == INT8 else read(wanted)
    return jax.tree.unflatten(treedef, [arrays[name] for name, _ in leaves])


def read_and_round(wanted: dict[str, jax.ShapeDtypeStruct], read: Callable[..., dict[str, Array]]) -> dict[str, Array]:
    """Parameters one by one, so that of those that are rounded only one is there unrounded."""
    arrays: dict[str, Array] = {}
    scales = {scale_name(name) for name in wanted if is_rounded(name)}
    for name, leaf in wanted.items():
        if is_rounded(name):
            before = read({name: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(BESIDE), sharding=leaf.sharding)})
            shardings = (leaf.sharding, wanted[scale_name(name)].sharding)
            arrays[name], arrays[scale_name(name)] = jax.jit(rounded, out_shardings=shardings)(before[name])
        elif name not in scales:
            arrays |= read({name: leaf})
    return arrays


def on_one_device() -> Sharding:
    return jax.sharding.SingleDeviceSharding(jax.devices()[0])


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
            self.sampler = read_sampler(self.manifest.get("sampler"), self.config)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, JaxsinkError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else first_line(error).rstrip(".")
            raise JaxsinkError(f"{manifest} cannot be used ({what}); convert the checkpoint again.") from error

    def pieces(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Restore pieces; `wanted` maps names to ShapeDtypeStructs with a sharding, or to NumPy arrays of that kind."""
        ocp = orbax()
        loading = ocp.options.PyTreeOptions(loading=ocp.options.PyTreeOptions.Loading(partial_load=True))
        with without_chatter():
            try:
                with ocp.Context(pytree_options=loading):
                    found = ocp.load(self.path / WEIGHTS, wanted)
            except Exception as error:  # Orbax raises many kinds, bare ones among them
                abandon(error)
                raise JaxsinkError(f"{self.path} is damaged ({first_line(error)}); convert it again.") from error
        missing = [name for name in wanted if not isinstance(found.get(name), (Array, np.ndarray))]
        if missing:
            raise JaxsinkError(f"{self.path} is damaged (it has no {missing[0]!r}); convert it again.")
        return found

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
            if group and sum(map(_bytes, group.values())) + _bytes(leaf) > GROUP_BYTES:
                arrays |= self._together(group)
                group = {}
            group[name] = leaf
        return arrays | (self._together(group) if group else {})

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


def read_sampler(values: Any, config: ModelConfig) -> Any:
    """The sampler that a manifest recommends; None in those that do not."""
    from jaxsink.sampling.recommend import from_dict  # which knows models

    return None if values is None else from_dict(dict(values), config)


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


def abandon(error: BaseException | None) -> None:
    """Let what else was under way fail as well, and forget it, while `without_chatter` listens."""
    time.sleep(0.1)
    with warnings.catch_warnings(action="ignore"):  # "coroutine was never awaited"
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__
        gc.collect()


@contextmanager
def without_chatter() -> Iterator[None]:
    """Orbax logs its progress, and when a read or a write fails, every other one under way prints a traceback as well.

    The error itself reaches us without that.
    """
    from absl import logging as absl_logging

    asyncio, hook = logging.getLogger("asyncio"), sys.unraisablehook
    levels = asyncio.level, absl_logging.get_verbosity()

    def others(unraisable: Any) -> None:
        if not str(unraisable.exc_value).startswith(("Event loop is closed", "Encountered error while reading")):
            hook(unraisable)

    try:
        asyncio.setLevel(logging.CRITICAL + 1)
        absl_logging.set_verbosity(absl_logging.FATAL)
        sys.unraisablehook = others
        yield
    finally:
        asyncio.setLevel(levels[0])
        absl_logging.set_verbosity(levels[1])
        sys.unraisablehook = hook


def orbax() -> Any:
    """Orbax's v1 interface, imported on first use."""
    from orbax.checkpoint import v1

    return v1
