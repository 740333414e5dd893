"""A Hugging Face hub id as a source, where the network allows it; the revision is pinned to a commit."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

from jaxsink.errors import JaxsinkError
from jaxsink.storage import first_line

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
SETTINGS = ["*.json", "*.jinja", "merges.txt", "tokenizer.model"]
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")


def fetch(repository: str, revision: str | None) -> tuple[Path, str]:
    """(local directory, commit) of a hub repository. Only weights, settings and tokenizer files are fetched."""
    from huggingface_hub import HfApi, snapshot_download

    try:
        info = HfApi().model_info(repository, revision=revision)
        names = [file.rfilename for file in info.siblings or ()]
        weights = next((pattern for pattern in WEIGHTS if fnmatch.filter(names, pattern)), WEIGHTS[0])
        folder = snapshot_download(repository, revision=info.sha, allow_patterns=[*SETTINGS, weights])
        return Path(folder), str(info.sha)
    except Exception as error:  # the client raises its own, its transport's and the system's errors
        raise JaxsinkError(
            f"there is no directory {repository!r}, and it cannot be fetched from the hub ({first_line(error)}); "
            "give a local path."
        ) from error
