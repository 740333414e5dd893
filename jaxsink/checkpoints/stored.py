"""The arrays of a checkpoint, read into place by TensorStore, which is what Orbax writes them with, and verified."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from jaxtyping import Shaped

from jaxsink.checkpoints.checksums import checksum
from jaxsink.checkpoints.streaming import Buffers, Index
from jaxsink.errors import JaxsinkError


def piece_name(name: str, layer: int | None) -> str:
    """What a parameter, or one layer of it, is called in a checkpoint."""
    return name if layer is None else f"{name}.{layer:02d}"


class DamagedError(Exception):
    """What was read is not what was written."""


class StoredArrays:
    """checksums: by array; None reads without a look at them."""

    def __init__(self, weights: Path, checksums: Mapping[str, str] | None):
        import tensorstore

        manifest = next(weights.glob("*/manifest.ocdbt"), None)
        if manifest is None:
            raise JaxsinkError(f"{weights.parent} is damaged (it has no list of arrays); convert it again.")
        self.base = f"file://{quote(str(manifest.parent))}/"
        self.context = tensorstore.Context({"cache_pool": {"total_bytes_limit": 0}})
        self.checksums = checksums
        self.verified: set[str] = set()
        self.buffers = Buffers()

    def read_into(self, parameter: str, layer: int | None, index: Index, into: Shaped[np.ndarray, "..."]) -> None:
        """A checksum is that of a whole array as it is stored.

        So where a part or another type is wanted, the first to come reads the whole; all others read what they need.
        """
        piece = piece_name(parameter, layer)
        store = self._open(piece)
        stored_type = store.dtype.numpy_dtype
        if self.checksums is None or piece in self.verified:
            _copy(store[index], into)
        elif store.shape == into.shape and stored_type == into.dtype:
            _copy(store, into)
            self._verify(piece, into)
        else:
            whole = self.buffers.array(store.shape, stored_type)
            _copy(store, whole)
            self._verify(piece, whole)
            _copy(_as_store(whole)[index], into)

    def _open(self, piece: str) -> Any:
        import tensorstore

        kvstore = {"driver": "ocdbt", "base": self.base, "path": f"{piece}/"}
        return tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, open=True, context=self.context).result()

    def _verify(self, piece: str, value: Shaped[np.ndarray, "..."]) -> None:
        assert self.checksums is not None
        found, wanted = checksum(value), self.checksums[piece]
        if found != wanted:
            raise DamagedError(
                f"the numbers of {piece!r} are not those that were written: checksum {found}, not {wanted}"
            )
        self.verified.add(piece)


def _as_store(value: Shaped[np.ndarray, "..."]) -> Any:
    import tensorstore

    return tensorstore.array(value, copy=False, write=True)


def _copy(store: Any, into: Shaped[np.ndarray, "..."]) -> None:
    """All of a store, in the type of `into`."""
    import tensorstore

    target = _as_store(into)
    target.write(tensorstore.cast(store, target.dtype)).result()
