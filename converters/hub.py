"""A Hugging Face hub id as a source, where the network allows it; the revision is pinned to a commit."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxsink.checkpoints.storage import first_line
from jaxsink.errors import JaxsinkError

SETTINGS = ["*.json", "*.jinja", "merges.txt", "tokenizer.model"]
TIMEOUT = 10.0  # seconds until the hub must have answered
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")


def fetch(repository: str, revision: str | None) -> tuple[Path, str]:
    """(local directory, commit) of a hub repository. Only weights, settings and tokenizer files are fetched."""
    from huggingface_hub import HfApi, snapshot_download

    with _errors(repository):
        info = HfApi().model_info(repository, revision=revision, timeout=TIMEOUT)
        names = [file.rfilename for file in info.siblings or ()]
        weights = next((pattern for pattern in WEIGHTS if fnmatch.filter(names, pattern)), WEIGHTS[0])
        folder = snapshot_download(repository, revision=info.sha, allow_patterns=[*SETTINGS, weights])
        return Path(folder), str(info.sha)


def fetch_settings(repository: str, commit: str) -> Path:
    """A local directory with the settings and the tokenizer of a repository, without weights."""
    from huggingface_hub import snapshot_download

    with _errors(repository):
        return Path(snapshot_download(repository, revision=commit, allow_patterns=SETTINGS))


def newest_commit(repository: str) -> str:
    """The commit that the hub has for a repository."""
    from huggingface_hub import HfApi

    with _errors(repository):
        return str(HfApi().model_info(repository, timeout=TIMEOUT).sha)


@contextmanager
def _errors(repository: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the client raises its own, its transport's and the system's errors
        raise JaxsinkError(
            f"there is no directory {repository!r}, and it cannot be fetched from the hub ({first_line(error)}); "
            "give a local path."
        ) from None  # the client's own traceback is long, and says no more
