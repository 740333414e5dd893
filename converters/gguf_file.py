"""The GGUF container: settings and the list of tensors, read strictly, without mapping the file.

Every length in the file is compared with what is left of it, so that a damaged file is one sentence and never a hang;
the quantised blocks themselves are decoded by the `gguf` package.
"""

from __future__ import annotations

import math
import os
import struct
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from jaxsink.errors import JaxsinkError
from jaxsink.runs.files import refuse_special

from .source import read_array, read_bytes

MAGIC, VERSIONS = b"GGUF", (2, 3)
PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
STRING, ARRAY = 8, 9


class DamagedError(Exception):
    """What is wrong with the file, without its name."""


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor is in the file."""

    name: str
    shape: tuple[int, ...]  # [out, in]
    type: Any  # gguf.GGMLQuantizationType
    offset: int
    size: int  # bytes

    @property
    def dtype(self) -> str:
        """What `read` returns: numbers stay as they are stored, quantised blocks become float32."""
        return PLAIN.get(self.type.name, "float32")

    def read(self, path: Path) -> np.ndarray:
        if self.type.name in PLAIN:
            return read_array(path, self.offset, self.shape, self.dtype, self.name)
        from gguf.quants import dequantize

        raw = np.empty(self.size, np.uint8)
        read_bytes(path, self.offset, raw, self.name)
        with np.errstate(all="ignore"):  # damaged scales; numbers that are not finite are found later
            value = dequantize(raw.reshape(self.shape[0], -1), self.type)
        return np.ascontiguousarray(value, np.float32).reshape(self.shape)


def read_gguf(path: Path) -> tuple[dict[str, Any], list[GgufTensor]]:
    """(settings as plain Python values, tensors) of a GGUF file."""
    refuse_special(path)
    try:
        with path.open("rb") as file:
            return _read(Scanner(file))
    except OSError as error:
        raise JaxsinkError(f"cannot read {path}: {error.strerror}.") from error
    except DamagedError as error:
        raise JaxsinkError(f"{path} cannot be read as a GGUF file ({error}).") from error


def _read(scan: Scanner) -> tuple[dict[str, Any], list[GgufTensor]]:
    if scan.bytes(4) != MAGIC:
        raise DamagedError("it does not begin with the letters GGUF")
    version = scan.number("<u4")
    if version not in VERSIONS:
        raise DamagedError(f"version {version} is not supported")
    tensor_count, field_count = scan.count(8), scan.count(8)
    fields: dict[str, Any] = {}
    for _ in range(field_count):
        key = scan.text()
        if key in fields:
            raise DamagedError(f"the setting {key!r} is there twice")
        fields[key] = scan.value(scan.number("<u4"))
    listed = []
    for _ in range(tensor_count):
        name, rank = scan.text(), scan.number("<u4")
        if not 1 <= rank <= 4:
            raise DamagedError(f"tensor {name!r} has {rank} axes")
        shape = tuple(reversed([scan.number("<u8") for _ in range(rank)]))
        listed.append((name, shape, scan.number("<u4"), scan.number("<u8")))
    twice = [name for name, count in Counter(name for name, *_ in listed).items() if count > 1]
    if twice:
        raise DamagedError(f"tensor {twice[0]!r} is there twice")
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise DamagedError(f"'general.alignment' is {alignment!r}")
    start = -(-scan.offset // alignment) * alignment
    tensors = [_tensor(name, shape, kind, start + offset) for name, shape, kind, offset in listed]
    end = start
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        if tensor.offset < end:
            raise DamagedError(f"tensor {tensor.name!r} overlaps another one")
        end = tensor.offset + tensor.size
        if end > scan.size:
            raise DamagedError(f"it ends before tensor {tensor.name!r} does; download it again")
    return fields, tensors


def _tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> GgufTensor:
    known = _quantisation(kind)
    if known is None or isinstance(known, str):
        raise DamagedError(f"tensor {name!r} has the type {known or kind}, which is not supported")
    quantisation, block, block_bytes = known
    if min(shape) < 1 or math.prod(shape) > 1 << 48 or shape[-1] % block:
        raise DamagedError(f"tensor {name!r} of type {quantisation.name} cannot have the shape {list(shape)}")
    return GgufTensor(name, shape, quantisation, offset, math.prod(shape) // block * block_bytes)


@cache
def _quantisation(kind: int) -> tuple[Any, int, int] | str | None:
    """(type, numbers and bytes of a block); the name of a type that cannot be decoded; None for an unknown type."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        quantisation = GGMLQuantizationType(kind)
    except ValueError:
        return None
    block, block_bytes = GGML_QUANT_SIZES[quantisation]
    try:
        if quantisation.name not in PLAIN:
            dequantize(np.zeros((1, block_bytes), np.uint8), quantisation)
    except NotImplementedError:
        return quantisation.name
    return quantisation, block, block_bytes


class Scanner:
    """Reads on through the header; every length is checked against what is left of the file."""

    def __init__(self, file: BinaryIO):
        self.file, self.offset, self.size = file, 0, os.fstat(file.fileno()).st_size

    def bytes(self, count: int) -> bytes:
        data = self.file.read(count) if count <= self.size - self.offset else b""
        if len(data) != count:
            raise DamagedError("it ends within its header; download it again")
        self.offset += count
        return data

    def number(self, kind: str) -> Any:
        """A number or a truth value; float32 becomes the shortest decimal that means it, as a config would have it."""
        value = np.frombuffer(self.bytes(np.dtype(kind).itemsize), kind)[0]
        return float(str(value)) if kind == "<f4" else value.item()

    def count(self, least_bytes: int) -> int:
        """How many items follow, each of which takes at least so many bytes."""
        (value,) = struct.unpack("<Q", self.bytes(8))
        if value * least_bytes > self.size - self.offset:
            raise DamagedError("it ends within its header; download it again")
        return value

    def text(self) -> str:
        return self.bytes(self.count(1)).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        item = self.number("<u4") if kind == ARRAY else -1
        if item == STRING:
            return [self.text() for _ in range(self.count(8))]
        if item in NUMBERS:
            width = np.dtype(NUMBERS[item]).itemsize
            return np.frombuffer(self.bytes(self.count(width) * width), NUMBERS[item]).tolist()
        raise DamagedError(f"a setting has the type {kind if kind != ARRAY else item}, which is not known")
