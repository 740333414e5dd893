"""Is an array what was written? Checksums at the speed of memory, and a search for numbers that no model has.

A checksum is XXH3 of all bytes, 64 bits: one that knows their order. NumPy and zlib have none that does and is as fast.
Sums of words are blind to order. Weighted by position they still lose two flips of the highest bit, which no odd factor
moves. Sums of rows and of columns cost more, and a CRC of all bytes much more (benchmarks/checksums.py).

Checkpoints that were written before keep their kind, and are verified by it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import xxhash
from jaxtyping import Shaped, UInt8

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.errors import JaxsinkError

BLOCK_BYTES = 4096
"""Of the first kind."""


def bytes_of(value: Shaped[np.ndarray, "..."]) -> UInt8[np.ndarray, " bytes"]:
    """In the order in which they are stored."""
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def xxh3(value: Shaped[np.ndarray, "..."]) -> str:
    """Sixteen digits that follow from the bytes of an array and their order."""
    return xxhash.xxh3_64_hexdigest(bytes_of(value).data)


def crc_of_sums(value: Shaped[np.ndarray, "..."]) -> str:
    """The first kind: within 4 KB it is blind to words that changed places, and to changes that add up to nothing."""
    stored = bytes_of(value)
    whole = stored.size - stored.size % BLOCK_BYTES
    sums = stored[:whole].view("<u8").reshape(-1, BLOCK_BYTES // 8).sum(axis=1, dtype="<u8")
    return f"{zlib.crc32(stored[whole:].data, zlib.crc32(sums.data)):08x}"


@dataclass(frozen=True)
class Kind:
    """How a checksum is made, and how many hexadecimal digits it has."""

    of: Callable[[Shaped[np.ndarray, "..."]], str]
    digits: int


KINDS = {"xxh3-64": Kind(xxh3, 16), "crc32 of 4 KB sums": Kind(crc_of_sums, 8)}
NEWEST = "xxh3-64"
"""What is written."""


@dataclass(frozen=True)
class Checksums:
    """kind: a name in KINDS; arrays: the checksum of each array of a checkpoint."""

    arrays: Mapping[str, str]
    kind: str = NEWEST

    def of(self, value: Shaped[np.ndarray, "..."]) -> str:
        """The checksum of an array, of this kind."""
        return KINDS[self.kind].of(value)

    def to_manifest(self) -> JsonObject:
        """As a manifest has them."""
        return {"kind": self.kind, "arrays": dict(sorted(self.arrays.items()))}


def checksum(value: Shaped[np.ndarray, "..."]) -> str:
    """Of the newest kind."""
    return KINDS[NEWEST].of(value)


def from_manifest(values: object) -> Checksums | None:
    """What `Checksums.to_manifest` wrote; None in manifests that are older than checksums."""
    if values is None:
        return None
    if not isinstance(values, dict) or not isinstance(values.get("arrays"), dict):
        raise JaxsinkError("its checksums are not a kind and one for each array")
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise JaxsinkError(f"its checksums are of the kind {kind!r}, and this jaxsink knows {', '.join(KINDS)}")
    check_digits(values["arrays"], kind)
    return Checksums(values["arrays"], kind)


def check_digits(checksums: Mapping[str, object], kind: str) -> None:
    """Has each as many digits as this kind has?"""
    count = KINDS[kind].digits
    for name, digits in checksums.items():
        if not isinstance(digits, str) or not re.fullmatch(f"[0-9a-f]{{{count}}}", digits):
            raise JaxsinkError(f"the checksum of {name!r} is {digits!r}, not {count} hexadecimal digits")


def check_names(checksums: Checksums | None, pieces: Iterable[str]) -> None:
    """Every array has a checksum, if any has."""
    missing = [] if checksums is None else [piece for piece in pieces if piece not in checksums.arrays]
    if missing:
        raise JaxsinkError(f"its manifest has no checksum of {missing[0]!r}")


def all_finite(value: Shaped[np.ndarray, "..."]) -> bool:
    """Without a float copy: the exponent of a NaN or an infinity is all ones."""
    exponent = {"float32": (np.uint32, 0x7F800000), "float16": (np.uint16, 0x7C00), "bfloat16": (np.uint16, 0x7F80)}
    view, ones = exponent[value.dtype.name]
    magnitude, step = view(ones | (ones & -ones) - 1), 1 << 17  # all but the sign; as much as the cache holds
    bits = np.ascontiguousarray(value).reshape(-1).view(view)
    return all((bits[i : i + step] & magnitude).max() < ones for i in range(0, bits.size, step))
