"""Checkpoints on the disk: the names in them, and the reader that restores models (the writer is in writer.py)."""

from __future__ import annotations

import gc
import logging
import math
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, ShapeDtypeStruct
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxsink.checkpoints import checksums
from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checkpoints.integrity import FORMAT, MANIFEST, check_file_sums, check_format, check_seal
from jaxsink.checkpoints.stored import DamagedError, StoredArrays, piece_name
from jaxsink.checkpoints.streaming import assemble, is_layered
from jaxsink.checks import at_least, check_value, shown
from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.new_model import abstract
from jaxsink.nn.parameters import is_exact, named_leaves
from jaxsink.nn.quantization import INT8
from jaxsink.nn.transformer import Model
from jaxsink.runs.files import check_file, check_inside, check_tree, read_json
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.registry import from_dict

WEIGHTS = "weights"
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


def is_converted(path: Path) -> bool:
    """A directory of ours; what its manifest is, a file or something else, the `Reader` sees."""
    return os.path.lexists(path / MANIFEST)


class Reader:
    """A checkpoint on disk: its manifest, single pieces, or the whole model.

    verify: is the manifest what was written? Its fields are checked in any case.
    """

    def __init__(self, path: Path, verify: bool = True):
        self.path = Path(os.path.abspath(path))
        manifest = self.path / MANIFEST
        check_file(manifest)
        check_inside(self.path / WEIGHTS)
        try:
            self.manifest = read_json(manifest)
            form = check_format(self.manifest)
            self.config = ModelConfig.from_dict(self.manifest["config"])
            self.dtype = dtype_name(check_value("dtype", self.manifest["dtype"], str))
            self.source = check_source(self.manifest["source"], form)
            self.parameters = check_facts(self.manifest, form)
            self.sampler = read_sampler(self.manifest.get("sampler"), self.config)
            self.checksums = checksums.from_manifest(self.manifest.get("checksums"))
            check_file_sums(self.manifest)
            if verify:
                check_seal(self.manifest)
        except (KeyError, JaxsinkError) as error:
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

    def model(self, dtype: str | None, mesh: Mesh | None, verify: bool = True) -> Model:
        """The whole model; dtype None = as stored. verify: compare what is read with the checksums, if there are any."""
        self.check_arrays()
        try:
            with StoredArrays(self.path / WEIGHTS, self.checksums if verify else None) as arrays:
                return assemble(self.config, dtype or self.dtype, mesh, arrays.read_into)
        except (OSError, ValueError, DamagedError) as error:  # the first two: TensorStore's
            raise self._damaged(first_line(error)) from error

    def check_arrays(self) -> None:
        """Are the arrays there that the configuration asks for, and no others? Orbax knows without reading them."""
        check_tree(self.path / WEIGHTS)
        with without_chatter():
            try:
                found = orbax().metadata(self.path / WEIGHTS).metadata
                if found is None:
                    raise ValueError("its list of arrays cannot be read")
            except Exception as error:  # Orbax raises many kinds
                abandon(error)
                raise self._damaged(first_line(error)) from error
        if self.config.layers > len(found):  # before listing what may be millions of names
            raise self._damaged(f"the config asks for {self.config.layers} layers, and there are {len(found)} arrays")
        wanted = dict(pieces_of(self.config))
        for piece, shape in wanted.items():
            if piece not in found:
                raise self._damaged(f"it has no {piece!r}")
            if tuple(found[piece].shape) != shape:
                raise self._damaged(f"{piece!r} has the shape {list(found[piece].shape)}, and not {list(shape)}")
            stored, wide = str(found[piece].dtype), self.dtype == "float32"  # which holds all others
            stated = "float32" if is_exact(piece.rpartition(".")[0]) else self.dtype
            if stored != stated and (stored not in DTYPES or not wide):
                raise self._damaged(f"{piece!r} has the type {stored}, where the manifest says {stated}")
        extra = [name for name in found if name not in wanted]
        if extra:
            raise self._damaged(f"its config has no place for the array {extra[0]!r}")
        counted = sum(map(math.prod, wanted.values()))
        if self.parameters not in (None, counted):
            raise self._damaged(f"its manifest speaks of {self.parameters} parameters, and its config of {counted}")
        try:
            checksums.check_names(self.checksums, wanted)
        except JaxsinkError as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, what: str) -> JaxsinkError:
        return JaxsinkError(f"{self.path} is damaged ({what}); convert it again.")


def pieces_of(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of every array of such a model's checkpoint."""
    for name, leaf in named_leaves(abstract(config))[0]:
        for layer in range(leaf.shape[0]) if is_layered(name) else (None,):
            yield piece_name(name, layer), leaf.shape[is_layered(name) :]


def read_sampler(values: JsonObject | None, config: ModelConfig) -> Sampler | None:
    """The sampler that a manifest recommends; None in those that do not."""
    return None if values is None else from_dict(check_value("sampler", values, dict), config)


def check_facts(manifest: JsonObject, form: int) -> int | None:
    """How many numbers a manifest speaks of, if it does; and the version that wrote it is one."""
    if form == FORMAT or "jaxsink" in manifest:
        version = check_value("jaxsink", manifest["jaxsink"], str)
        if not re.fullmatch(r"[0-9][\w.+!-]{0,63}", version, re.ASCII):
            raise JaxsinkError(f"jaxsink must be the version that wrote it, not {shown(version)}")
    if form < FORMAT and "parameters" not in manifest:
        return None
    return check_value("parameters", manifest["parameters"], int, at_least(1, 1 << 50))


def check_source(values: object, form: int = FORMAT) -> JsonObject:
    """Where the weights come from: whatever else it holds, texts where texts are shown."""
    source = check_value("source", values, dict)
    for name in ("kind", "path", "revision"):
        absent = name not in source or (source[name] is None and (name == "revision" or (name, form) == ("path", 1)))
        if name == "kind" and absent:
            raise JaxsinkError("source: kind is missing.")
        if not absent and not check_value(f"source: {name}", source[name], str).strip():
            raise JaxsinkError(f"source: {name} is empty.")
    check_value("source: notes", source.get("notes", ()), tuple[str, ...])
    return dict(source)


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
