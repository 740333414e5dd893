"""sha256 of the source files for the manifest, computed beside the conversion from the bytes that it reads anyway."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxsink.errors import JaxsinkError

BLOCK = 1 << 20


class FileHash:
    """The hash of one file up to a position."""

    def __init__(self, file: Path):
        self.file = file
        self.digest, self.position = hashlib.sha256(), 0

    def add(self, offset: int, data: np.ndarray) -> None:
        """Bytes that were read at an offset; those before them that nobody gave are read here."""
        if offset > self.position:
            self.read(offset)
        if offset == self.position:
            self.digest.update(data.data)
            self.position += data.nbytes

    def read(self, end: int | None = None) -> None:
        """On to a position, or to the end of the file."""
        block = memoryview(bytearray(BLOCK))
        with self.file.open("rb", buffering=0) as opened:
            opened.seek(self.position)
            while end is None or self.position < end:
                count = opened.readinto(block if end is None else block[: end - self.position])
                if not count:
                    return
                self.digest.update(block[:count])
                self.position += count

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.file.name, "bytes": self.position, "sha256": self.digest.hexdigest()}


class FileHashes:
    """Hashes files in a thread of its own, as far as it is given their bytes, and the rest at the end.

    given: files whose bytes come by `add`, in about the order of the file; all others are read at once.
    """

    def __init__(self, files: list[Path], given: frozenset[Path] = frozenset()):
        self.hashes = {file: FileHash(file) for file in files}
        self.given = given
        self.parts: queue.Queue[tuple[Path, int, np.ndarray] | None] = queue.Queue(maxsize=1)
        self.error: OSError | None = None
        self.stopped = False
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> FileHashes:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopped = True
        self._end()

    def add(self, file: Path, offset: int, data: np.ndarray) -> None:
        """Bytes of a file, which must not change any more; waits while those before them are hashed."""
        self.parts.put((file, offset, data.reshape(-1).view(np.uint8)))

    def result(self) -> list[dict[str, Any]]:
        self._end()
        if self.error is not None:
            raise JaxsinkError(f"cannot read {self.error.filename}: {self.error.strerror}.")
        return [found.to_dict() for found in self.hashes.values()]

    def _end(self) -> None:
        if self.thread.is_alive():
            self.parts.put(None)
        self.thread.join()

    def _run(self) -> None:
        self._read(file for file in self.hashes if file not in self.given)
        while (part := self.parts.get()) is not None:
            file, *read = part
            if not self.stopped and self.error is None:
                self._try(partial(self.hashes[file].add, *read))
        self._read(self.given)

    def _read(self, files: Iterable[Path]) -> None:
        for file in files:
            if self.stopped or self.error is not None:
                return
            self._try(self.hashes[file].read)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            self.error = error
