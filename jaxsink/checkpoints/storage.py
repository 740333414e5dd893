"""Checkpoints on the disk: the names in them, and the reader that restores models (the writer is in writer.py)."""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jax.numpy as jnp
import numpy as np
from jax import Array, ShapeDtypeStruct
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Shaped

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checkpoints.streaming import Index, assemble, is_layered
from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.quantization import INT8
from jaxsink.nn.transformer import Model, abstract
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.registry import from_dict

MANIFEST = "jaxsink.json"
WEIGHTS = "weights"
FORMAT = 1
DTYPES = ("float32", "bfloat16", "float16")
IN_MEMORY = (*DTYPES, INT8)


def dtype_name(dtype: DTypeLike, known: tuple[str, ...] = DTYPES) -> str:
    """The name of a type that models may have; in memory (`IN_MEMORY`) there is one more than on the disk."""
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in known:
        raise JaxsinkError(f"models cannot have the type {name}; choose one of {', '.join(known)}.")
    return name


def piece_name(name: str, layer: int | None) -> str:
    """What a parameter, or one layer of it, is called in a checkpoint."""
    return name if layer is None else f"{name}.{layer:02d}"


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

    def pieces(self, wanted: Mapping[str, ShapeDtypeStruct | np.ndarray]) -> dict[str, Array | np.ndarray]:
        """Restore pieces; `wanted` maps names to shapes with a sharding, or to NumPy arrays of that shape and type."""
        ocp = orbax()
        loading = ocp.options.PyTreeOptions(loading=ocp.options.PyTreeOptions.Loading(partial_load=True))
        with without_chatter():
            try:
                with ocp.Context(pytree_options=loading):
                    found = ocp.load(self.path / WEIGHTS, wanted)
            except Exception as error:  # Orbax raises many kinds, bare ones among them
                abandon(error)
                raise self._damaged(first_line(error)) from error
        missing = [name for name in wanted if not isinstance(found.get(name), (Array, np.ndarray))]
        if missing:
            raise self._damaged(f"it has no {missing[0]!r}")
        return found

    def model(self, dtype: str | None, mesh: Mesh | None) -> Model:
        """The whole model; dtype None = as stored."""
        self._check_shapes()
        arrays = StoredArrays(self.path / WEIGHTS)
        try:
            return assemble(self.config, dtype or self.dtype, mesh, arrays.read_into)
        except (OSError, ValueError) as error:  # TensorStore's
            raise self._damaged(first_line(error)) from error

    def _check_shapes(self) -> None:
        """Orbax knows what is there, without reading it."""
        with without_chatter():
            try:
                found = orbax().metadata(self.path / WEIGHTS).metadata
                if found is None:
                    raise ValueError("its list of arrays cannot be read")
            except Exception as error:  # Orbax raises many kinds
                abandon(error)
                raise self._damaged(first_line(error)) from error
        for name, leaf in named_leaves(abstract(self.config))[0]:
            for layer in range(leaf.shape[0]) if is_layered(name) else (None,):
                piece, shape = piece_name(name, layer), leaf.shape[is_layered(name) :]
                if piece not in found:
                    raise self._damaged(f"it has no {piece!r}")
                if tuple(found[piece].shape) != shape:
                    raise self._damaged(f"{piece!r} has the shape {list(found[piece].shape)}, and not {list(shape)}")

    def _damaged(self, what: str) -> JaxsinkError:
        return JaxsinkError(f"{self.path} is damaged ({what}); convert it again.")


def read_sampler(values: JsonObject | None, config: ModelConfig) -> Sampler | None:
    """The sampler that a manifest recommends; None in those that do not."""
    return None if values is None else from_dict(dict(values), config)


class StoredArrays:
    """The arrays of a checkpoint, read into place by TensorStore, which is what Orbax writes them with."""

    def __init__(self, weights: Path):
        import tensorstore

        manifest = next(weights.glob("*/manifest.ocdbt"), None)
        if manifest is None:
            raise JaxsinkError(f"{weights.parent} is damaged (it has no list of arrays); convert it again.")
        self.base = f"file://{quote(str(manifest.parent))}/"
        self.context = tensorstore.Context({"cache_pool": {"total_bytes_limit": 0}})

    def read_into(self, parameter: str, layer: int | None, index: Index, into: Shaped[np.ndarray, "..."]) -> None:
        import tensorstore

        kvstore = {"driver": "ocdbt", "base": self.base, "path": f"{piece_name(parameter, layer)}/"}
        store = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, open=True, context=self.context).result()
        target = tensorstore.array(into, copy=False, write=True)
        target.write(tensorstore.cast(store[index], target.dtype)).result()


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

    def others(unraisable: sys.UnraisableHookArgs) -> None:
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
