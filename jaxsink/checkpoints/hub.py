"""Models of the Hugging Face hub by their id: converted once, and kept where checkpoints of buckets are kept.

    jaxsink.load("GSAI-ML/LLaDA-8B-Instruct")

A copy belongs to a commit: when the hub has a newer one, that is fetched beside it. Without a network the newest copy
serves.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from jaxsink.checkpoints.formats import foreign_formats
from jaxsink.checkpoints.gcs import checkpoint_cache
from jaxsink.errors import JaxsinkError
from jaxsink.runs.locks import locked

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_id(path: str | os.PathLike[str]) -> bool:
    """Whether this has the form owner/name and nothing here is called so."""
    return HUB_ID.fullmatch(os.fspath(path)) is not None and not os.path.lexists(path)


def fetch(repository: str, weights: bool = True) -> Path:
    """The directory of this machine with the converted model; where no weights are needed, maybe only its settings."""
    from jaxsink.checkpoints.storage import MANIFEST

    try:
        commit = _commit(repository)
    except JaxsinkError:
        kept = [folder for folder in checkpoint_cache().glob(f"{_stem(repository)}-*") if (folder / MANIFEST).is_file()]
        if not kept:
            raise
        return max(kept, key=lambda folder: folder.stat().st_mtime)
    folder = checkpoint_cache() / f"{_stem(repository)}-{commit[:12]}"
    if (folder / MANIFEST).is_file():
        return folder
    converters = foreign_formats(repository)
    if not weights:
        return converters.fetch_settings(repository, commit)
    with suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(folder.parent, os.W_OK):
        raise JaxsinkError(f"cannot keep checkpoints in {folder.parent}; set JAXSINK_CHECKPOINTS to another directory.")
    with locked(folder.with_name(f".{folder.name}.lock"), folder, wait=True):  # who comes second finds the work done
        if not (folder / MANIFEST).is_file():
            converters.convert_from_hub(repository, commit, folder)
    return folder


@lru_cache(maxsize=32)
def _commit(repository: str) -> str:
    """Asked once, so that a process sees one version of a model."""
    return foreign_formats(repository).newest_commit(repository)


def _stem(repository: str) -> str:
    return repository.replace("/", "--")
