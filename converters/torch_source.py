"""PyTorch .bin files, read by torch's weights-only loader, which builds tensors and runs nothing."""

from __future__ import annotations

import errno
import pickle
import re
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from jaxsink.checkpoints.storage import first_line
from jaxsink.errors import JaxsinkError, install_hint
from jaxsink.runs.files import check_file

from .source import NUMPY, Source, TensorInfo, add_tensor, check_against_index, list_shards, read_settings


class TorchSource(Source):
    kind = "torch"

    def __init__(self, folder: Path):
        self.config, self.generation, settings = read_settings(folder)
        weights, where, index = list_shards(folder, "pytorch_model.bin")
        self._lock = threading.Lock()  # one file is open at a time
        self._loaded: tuple[Path, dict[str, Any]] | None = None
        self.tensors = {}
        for file in weights:
            for name, tensor in self._state(file).items():
                dtype = str(tensor.dtype).removeprefix("torch.")
                add_tensor(self.tensors, name, TensorInfo(tuple(tensor.shape), dtype, file))
        check_against_index(self.tensors, where)
        self.files = [*settings, *index, *weights]

    def _state(self, file: Path) -> dict[str, Any]:
        """The tensors of one file, mapped rather than read; the last file stays open."""
        if self._loaded is None or self._loaded[0] != file:
            self._loaded = None
            self._loaded = (file, load_torch_file(file))
        return self._loaded[1]

    def read(self, name: str, index: tuple[slice, ...] | None = None) -> np.ndarray:
        import torch

        with self._lock:
            tensor = self._state(self.tensors[name].file)[name]
            tensor = (tensor if index is None else tensor[index]).contiguous()
            if tensor.dtype == torch.bfloat16:
                return tensor.view(torch.int16).numpy().view(NUMPY["bfloat16"]).copy()
            return tensor.numpy().copy()


def load_torch_file(file: Path) -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        raise JaxsinkError(
            f"{file} is a PyTorch file, and reading it needs torch; {install_hint('convert')}, "
            "or get the model as safetensors."
        ) from error
    check_file(file)
    try:
        with file.open("rb") as opened:
            is_zip = opened.read(4) == b"PK\3\4"  # files from before PyTorch 1.6 are not, and cannot be mapped
        with warnings.catch_warnings(action="ignore"):  # advice to PyTorch's developers
            state = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
    except OSError as error:
        if error.errno != errno.EINVAL:  # which is how PyTorch fails to seek in a damaged file
            raise JaxsinkError(f"cannot read {file}: {error.strerror or first_line(error)}.") from error
        raise JaxsinkError(f"{file} is damaged; download it again.") from error
    except Exception as error:  # torch raises many kinds for damaged files
        called = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if called:
            what = f"would call {called[1]} when loaded, and was not loaded; get the model as safetensors"
        else:
            what = "is damaged, or no file of PyTorch weights; download it again"
        raise JaxsinkError(f"{file} {what}.") from error
    if not isinstance(state, dict) or not all(_is_plain(name, tensor) for name, tensor in state.items()):
        raise JaxsinkError(f"{file} does not hold a dictionary of plain tensors.")
    return state


def _is_plain(name: Any, tensor: Any) -> bool:
    import torch

    return isinstance(name, str) and isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided
