"""The arrays of a checkpoint, read into place by TensorStore, which is what Orbax writes them with, and verified."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any
from urllib.parse import quote

import numpy as np
from jaxtyping import Shaped

from jaxsink.checkpoints.checksums import Checksums
from jaxsink.checkpoints.streaming import Buffers, Index
from jaxsink.errors import JaxsinkError

SUMMING = 2
"""Arrays summed up at the same time."""

WAITING = 4
"""Arrays that wait for it at most."""


def piece_name(name: str, layer: int | None) -> str:
    """What a parameter, or one layer of it, is called in a checkpoint."""
    return name if layer is None else f"{name}.{layer:02d}"


class DamagedError(Exception):
    """What was read is not what was written."""


class StoredArrays:
    """checksums: None reads without a look at them.

    What was read is summed up while the next arrays are read, so that with few layers too neither waits for the other.
    Leaving the block waits for all sums, and raises what the first wrong one says.
    """

    def __init__(self, weights: Path, checksums: Checksums | None):
        import tensorstore

        manifest = next(weights.glob("*/manifest.ocdbt"), None)
        if manifest is None:
            raise JaxsinkError(f"{weights.parent} is damaged (it has no list of arrays); convert it again.")
        self.base = f"file://{quote(str(manifest.parent))}/"
        self.context = tensorstore.Context({"cache_pool": {"total_bytes_limit": 0}})
        self.checksums = checksums
        self.verified: set[str] = set()
        self.buffers = Buffers()
        self.pool = ThreadPoolExecutor(SUMMING)
        self.places = BoundedSemaphore(WAITING)
        self.sums: list[Future[None]] = []

    def __enter__(self) -> StoredArrays:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.pool.shutdown(wait=kind is None, cancel_futures=kind is not None)
        if kind is None:
            for one in self.sums:
                one.result()

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
        """Later, but soon: the array stays in memory until then."""
        self.verified.add(piece)
        self.places.acquire()
        self.sums.append(self.pool.submit(self._compare, piece, value))

    def _compare(self, piece: str, value: Shaped[np.ndarray, "..."]) -> None:
        self.places.release()
        assert self.checksums is not None
        found, wanted = self.checksums.of(value), self.checksums.arrays[piece]
        if found != wanted:
            raise DamagedError(
                f"the numbers of {piece!r} are not those that were written: checksum {found}, not {wanted}"
            )


def _as_store(value: Shaped[np.ndarray, "..."]) -> Any:
    import tensorstore

    return tensorstore.array(value, copy=False, write=True)


def _copy(store: Any, into: Shaped[np.ndarray, "..."]) -> None:
    """All of a store, in the type of `into`."""
    import tensorstore

    target = _as_store(into)
    target.write(tensorstore.cast(store, target.dtype)).result()
