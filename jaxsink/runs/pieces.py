"""Long work in pieces: each piece's result is a file that is written once and whole, so a rerun goes on where it stopped.

    pieces = Pieces(folder)
    for name, batch in batches:
        pieces.do(name, lambda: {"tokens": …, "sinks": …})       # computed unless its file is there
    pieces.load(name)["tokens"]

On several hosts all processes compute together, results are gathered once, and the first process writes the file.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxsink.errors import JaxsinkError
from jaxsink.parallel.hosts import is_main, to_host
from jaxsink.runs.atomic import new_file


class Pieces:
    """Finished pieces of one run, as `NAME.npz` files in a folder; equal results give equal files."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.npz"

    def done(self, name: str) -> bool:
        """Whether the piece is finished; all processes get the first one's answer, so that none computes alone."""
        finished = self.path(name).is_file()
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            finished = bool(multihost_utils.broadcast_one_to_all(np.array(finished)))
        return finished

    def do(self, name: str, compute: Callable[[], dict[str, Any]]) -> bool:
        """Compute and keep the piece, unless it is finished; True if there was something to do."""
        if self.done(name):
            return False
        arrays = to_host(compute())
        if is_main():
            with new_file(self.path(name)) as partial, partial.open("wb") as file:
                np.savez_compressed(file, **arrays)
        return True

    def load(self, name: str) -> dict[str, np.ndarray]:
        try:
            with self.path(name).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return dict(arrays)
        except FileNotFoundError as error:
            raise JaxsinkError(
                f"{self.path(name)} does not exist: this piece is not finished; run it again."
            ) from error
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise JaxsinkError(f"{self.path(name)} is damaged ({error}); remove it and run again.") from error
