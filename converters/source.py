"""Where tensors come from: safetensors files, PyTorch .bin files or a GGUF file, behind one small class.

A source lists every tensor up front and reads one at a time; nothing keeps the files mapped between two reads, so memory
stays at one tensor. Damaged files are `JaxsinkError`s that name the file.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxsink.errors import JaxsinkError

FLOATS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


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

    @abstractmethod
    def read(self, name: str, index: tuple[slice, ...] | None = None) -> np.ndarray:
        """The tensor, or the part of it that `index` names."""


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise JaxsinkError(f"{path} is missing.") from error
    except OSError as error:
        raise JaxsinkError(f"cannot read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise JaxsinkError(f"{path} is not valid JSON ({error}).") from error
    if not isinstance(value, dict):
        raise JaxsinkError(f"{path} must hold a JSON object, not {type(value).__name__}.")
    return value


def list_shards(folder: Path, single: str) -> tuple[list[Path], dict[str, Path] | None, list[Path]]:
    """(weight files, tensor -> file as the index has it or None, the index file) of `single` or its sharded form."""
    index = folder / f"{single}.index.json"
    if (folder / single).exists() and index.exists():
        raise JaxsinkError(f"{folder} has both {single} and {index.name}; remove the one that is out of date.")
    if not index.exists():
        return [folder / single], None, []
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise JaxsinkError(f"{index} has no weight_map.")
    where = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise JaxsinkError(f"{index} places tensor {name!r} in {file!r}, which is not a file of this directory.")
        if not (folder / file).is_file():
            raise JaxsinkError(f"{folder / file} is missing; {index.name} names it for tensor {name!r}.")
        where[name] = folder / file
    return sorted(set(where.values())), where, [index]


def check_against_index(folder: Path, found: dict[str, TensorInfo], where: dict[str, Path] | None) -> None:
    for name in found if where is not None else ():
        if where is not None and where.get(name) != found[name].file:
            raise JaxsinkError(f"{found[name].file} holds tensor {name!r}, but the index of {folder} does not place it there.")
    for name in where or ():
        if name not in found:
            raise JaxsinkError(f"tensor {name!r} is missing from {(where or {})[name]}, where the index places it.")


def add_tensor(tensors: dict[str, TensorInfo], name: str, info: TensorInfo) -> None:
    if name in tensors:
        raise JaxsinkError(f"tensor {name!r} is in {tensors[name].file} and again in {info.file}.")
    tensors[name] = info


class SafetensorsSource(Source):
    kind = "safetensors"

    def __init__(self, folder: Path):
        self.config = read_json(folder / "config.json")
        self.generation = read_json(folder / "generation_config.json") if _exists(folder, "generation_config.json") else {}
        weights, where, index = list_shards(folder, "model.safetensors")
        self.tensors = {}
        for file in weights:
            with _open(file) as opened:
                for name in opened.keys():  # noqa: SIM118 - not a dictionary
                    part = opened.get_slice(name)
                    dtype = part.get_dtype()
                    add_tensor(self.tensors, name, TensorInfo(tuple(part.get_shape()), FLOATS.get(dtype, dtype), file))
        check_against_index(folder, self.tensors, where)
        self.files = [folder / "config.json", *index, *weights]

    def read(self, name: str, index: tuple[slice, ...] | None = None) -> np.ndarray:
        with _open(self.tensors[name].file) as opened:
            return opened.get_tensor(name) if index is None else opened.get_slice(name)[index]


def _exists(folder: Path, name: str) -> bool:
    return (folder / name).exists()


def _open(file: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        if file.stat().st_size == 0:
            raise JaxsinkError(f"{file} is empty; download it again.")
        return safe_open(file, framework="numpy")
    except FileNotFoundError as error:
        raise JaxsinkError(f"{file} is missing.") from error
    except OSError as error:
        raise JaxsinkError(f"cannot read {file}: {error.strerror or error}.") from error
    except SafetensorError as error:
        raise JaxsinkError(f"{file} is not a whole safetensors file ({error}); download it again.") from error


class TorchSource(Source):
    """PyTorch .bin files, read by torch's weights-only loader, which builds tensors and runs nothing."""

    kind = "torch"

    def __init__(self, folder: Path):
        self.config = read_json(folder / "config.json")
        self.generation = read_json(folder / "generation_config.json") if _exists(folder, "generation_config.json") else {}
        weights, where, index = list_shards(folder, "pytorch_model.bin")
        self._loaded: tuple[Path, dict[str, Any]] | None = None
        self.tensors = {}
        for file in weights:
            for name, tensor in self._state(file).items():
                dtype = str(tensor.dtype).removeprefix("torch.")
                add_tensor(self.tensors, name, TensorInfo(tuple(tensor.shape), dtype, file))
        check_against_index(folder, self.tensors, where)
        self.files = [folder / "config.json", *index, *weights]

    def _state(self, file: Path) -> dict[str, Any]:
        """The tensors of one file, mapped rather than read; the last file stays open."""
        if self._loaded is None or self._loaded[0] != file:
            self._loaded = None
            self._loaded = (file, load_torch_file(file))
        return self._loaded[1]

    def read(self, name: str, index: tuple[slice, ...] | None = None) -> np.ndarray:
        import ml_dtypes
        import torch

        tensor = self._state(self.tensors[name].file)[name]
        tensor = (tensor if index is None else tensor[index]).contiguous()
        if tensor.dtype == torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
        return tensor.numpy().copy()


def load_torch_file(file: Path) -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        raise JaxsinkError(
            f"{file} is a PyTorch file, and reading it needs torch: pip install 'jaxsink[convert]', "
            "or get the model as safetensors."
        ) from error
    try:
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError as error:
        raise JaxsinkError(f"{file} is missing.") from error
    except OSError as error:
        raise JaxsinkError(f"cannot read {file}: {error.strerror or error}.") from error
    except Exception as error:  # torch raises many kinds for damaged or hostile files
        what = "holds code, not only tensors" if "WeightsUnpickler" in str(error) or "weights" in str(error).lower() else ""
        what = what or f"cannot be read as a PyTorch file ({_first_line(error)})"
        raise JaxsinkError(f"{file} {what}; it was not loaded.") from error
    if not isinstance(state, dict) or not all(isinstance(t, torch.Tensor) for t in state.values()):
        raise JaxsinkError(f"{file} does not hold a dictionary of tensors.")
    return state


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__
