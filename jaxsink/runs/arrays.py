"""Results as arrays: each a file that is written once and whole, so that a rerun goes on where it stopped.

On several hosts all processes compute together, results are gathered once, and the first process writes the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import PyTree

from jaxsink.errors import JaxsinkError
from jaxsink.parallel.hosts import from_main, is_main, to_host
from jaxsink.runs.atomic import new_file

Arrays = dict[str, np.ndarray]
DIGEST = "sha256"  # the name of the array that holds it


def is_kept(path: Path) -> bool:
    """Whether the file is there; all processes get the first one's answer, so that none computes alone."""
    return from_main(path.is_file())


def keep(path: Path, compute: Callable[[], Mapping[str, PyTree]]) -> bool:
    """Compute the arrays and write them, unless the file is there; equal arrays give equal files. True if it computed."""
    if is_kept(path):
        return False
    arrays = {name: np.asarray(value) for name, value in to_host(dict(compute())).items()}
    if is_main():
        with new_file(path) as partial, partial.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays, **{DIGEST: np.array(digest(arrays))})
    return True


def read(path: Path) -> Arrays:
    """The arrays of a file; one that was damaged or changed is named."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as opened:
            arrays = dict(opened)
        found = str(arrays.pop(DIGEST, ""))
    except FileNotFoundError as error:
        raise JaxsinkError(f"{path} does not exist: it is not computed yet; run it again.") from error
    except Exception as error:  # whatever a damaged header makes the readers of zip, numpy and Python stumble over
        raise JaxsinkError(f"{path} is damaged ({error}); remove it and run again.") from error
    if found != digest(arrays):
        raise JaxsinkError(f"{path} was changed after it was written; remove it and run again.")
    return arrays


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    total = hashlib.sha256()
    for name, value in sorted(arrays.items()):
        total.update(f"{name} {value.dtype} {value.shape}".encode())
        total.update(np.ascontiguousarray(value).tobytes())
    return total.hexdigest()
