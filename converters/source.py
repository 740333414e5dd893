"""Where tensors come from: one small class, and the Hugging Face directory with safetensors files behind it.

A source lists every tensor up front and reads one at a time; nothing keeps the files mapped between two reads, so
memory stays at one tensor, and a disk that fails is an error and not a crash. Damaged files are `JaxsinkError`s that
name the file. The other sources are in torch_source.py and gguf_source.py.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxsink.checkpoints.storage import first_line
from jaxsink.checkpoints.streaming import Buffers
from jaxsink.checks import shown
from jaxsink.errors import JaxsinkError
from jaxsink.runs.files import check_file, read_json

LONGEST_NAME = 255  # bytes of a file name
FLOATS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
NUMPY = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


@dataclass(frozen=True)
class TensorInfo:
    shape: tuple[int, ...]
    dtype: str  # "float32", "bfloat16", "float16", or the file's own name for a type that we do not take
    file: Path

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS.values()


class Source(ABC):
    """A checkpoint to convert."""

    kind: str
    config: dict[str, Any]
    generation: dict[str, Any]
    files: list[Path]  # what the manifest hashes
    tensors: dict[str, TensorInfo]
    read_in_order: frozenset[Path] = frozenset()  # files whose tensors lie in them as they are …
    listener: Callable[[Path, int, np.ndarray], None] | None = None  # … and who hears of them: (file, offset, tensor)

    @abstractmethod
    def read(self, name: str, index: tuple[slice, ...] | None = None) -> np.ndarray:
        """The tensor, or the part of it that `index` names."""

    def read_into(self, name: str, into: np.ndarray) -> None:
        """The whole tensor, into an array of its shape and type; several threads may read at the same time."""
        into[...] = self.read(name)

    def shown(self, name: str) -> str:
        """The name that the file itself has for a tensor."""
        return name


def read_settings(folder: Path) -> tuple[dict[str, Any], dict[str, Any], list[Path]]:
    """(config.json, generation_config.json or {}, the files that are there)."""
    files = [folder / name for name in ("config.json", "generation_config.json") if os.path.lexists(folder / name)]
    config, *generation = [read_json(file) for file in files]
    return config, generation[0] if generation else {}, files


def list_shards(folder: Path, single: str) -> tuple[list[Path], dict[str, Path] | None, list[Path]]:
    """(weight files, tensor -> file as the index has it or None, the index file) of `single` or its sharded form."""
    index = folder / f"{single}.index.json"
    if (folder / single).exists() and index.exists():
        raise JaxsinkError(f"{folder} has both {single} and {index.name}; remove the one that is out of date.")
    if not index.exists():
        return [folder / single], None, []
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise JaxsinkError(f"{index} has no weight_map; download it again.")
    where = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or len(os.fsencode(file)) > LONGEST_NAME:
            raise JaxsinkError(
                f"{index} places tensor {shown(name)} in {shown(file)}, which is not a file of this directory."
            )
        if not (folder / file).is_file():
            raise JaxsinkError(f"{folder / file} is missing; {index.name} names it for tensor {name!r}.")
        where[name] = folder / file
    return sorted(set(where.values())), where, [index]


def check_against_index(found: dict[str, TensorInfo], where: dict[str, Path] | None) -> None:
    """The index must name every tensor of the files, and each where it is."""
    if where is None:
        return
    for name, info in found.items():
        if where.get(name) != info.file:
            raise JaxsinkError(
                f"{info.file} holds tensor {name!r}, but the index of its folder does not list it there."
            )
    for name, file in where.items():
        if name not in found:
            raise JaxsinkError(f"tensor {name!r} is missing from {file}, where the index places it.")


def add_tensor(tensors: dict[str, TensorInfo], name: str, info: TensorInfo) -> None:
    if name in tensors:
        raise JaxsinkError(f"tensor {name!r} is in {tensors[name].file} and again in {info.file}.")
    tensors[name] = info


class SettingsSource(Source):
    """Settings without weights: enough to say what a model is."""

    kind = "settings without weights"

    def __init__(self, folder: Path):
        self.config, self.generation, self.files = read_settings(folder)
        self.tensors = {}

    def read(self, name: str, index: tuple[slice, ...] | None = None) -> np.ndarray:
        raise JaxsinkError(f"tensor {name!r} cannot be read: the weights are not here.")


class SafetensorsSource(Source):
    kind = "safetensors"

    def __init__(self, folder: Path):
        self.config, self.generation, settings = read_settings(folder)
        weights, where, index = list_shards(folder, "model.safetensors")
        self.tensors = {}
        self._offsets: dict[str, int] = {}
        for file in weights:
            for name, (dtype, shape, offset) in read_header(file).items():
                add_tensor(self.tensors, name, TensorInfo(shape, FLOATS.get(dtype, dtype), file))
                self._offsets[name] = offset
        check_against_index(self.tensors, where)
        self.files = [*settings, *index, *weights]
        self.read_in_order = frozenset(weights)
        self._buffers = Buffers()

    def read(self, name: str, index: tuple[slice, ...] | None = None) -> np.ndarray:
        info = self.tensors[name]
        if index is None:
            value = self._buffers.array(info.shape, NUMPY[info.dtype])
            self.read_into(name, value)
            if self.listener is not None:
                self.listener(info.file, self._offsets[name], value)
            return value
        with _open(info.file) as opened:
            return opened.get_slice(name)[index]

    def read_into(self, name: str, into: np.ndarray) -> None:
        read_bytes(self.tensors[name].file, self._offsets[name], into.reshape(-1).view(np.uint8), name)


def read_header(file: Path) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """{tensor: (type, shape, offset in the file)} in the order of the file, which safetensors has checked for us."""
    with _open(file) as opened, file.open("rb") as raw:
        start = 8 + int.from_bytes(raw.read(8), "little")
        header = json.loads(raw.read(start - 8))
        return {
            name: (header[name]["dtype"], tuple(header[name]["shape"]), start + header[name]["data_offsets"][0])
            for name in opened.offset_keys()
        }


def _open(file: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    check_file(file)
    if file.stat().st_size == 0:
        raise JaxsinkError(f"{file} is empty; download it again.")
    try:
        return safe_open(file, framework="numpy")
    except OSError as error:
        raise JaxsinkError(f"cannot read {file}: {error.strerror or first_line(error)}.") from error
    except SafetensorError as error:
        what = first_line(error)
        raise JaxsinkError(f"{file} is not a whole safetensors file ({what}); download it again.") from error


def read_array(file: Path, offset: int, shape: tuple[int, ...], dtype: str, name: str) -> np.ndarray:
    value = np.empty(shape, NUMPY[dtype])
    read_bytes(file, offset, value.reshape(-1).view(np.uint8), name)
    return value


def read_bytes(file: Path, offset: int, into: np.ndarray, name: str) -> None:
    """Read rather than mapped: a mapped file that cannot be read would kill the process."""
    try:
        with file.open("rb", buffering=0) as raw:
            raw.seek(offset)
            left = into.data
            while left.nbytes:
                count = raw.readinto(left)
                if not count:
                    raise JaxsinkError(f"{file} ends within tensor {name!r}; download it again.")
                left = left[count:]
    except OSError as error:
        raise JaxsinkError(f"cannot read tensor {name!r} from {file}: {error.strerror}.") from error
