"""From what a user calls a model (a path, a built-in name, a bucket, a hub id) to a directory of this machine."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from jaxsink.checkpoints import gcs as cloud
from jaxsink.checkpoints import hub
from jaxsink.checkpoints.gcs import is_remote

NAMES = ("mini-llama", "mini-llada", "mini-dream")
"""The built-in models; `zoo/weights/` has one checkpoint of each."""


def resolve(path: str | os.PathLike[str], weights: bool = True) -> Path:
    """The directory of a model.

    A path stays as it is. A built-in name stands for its checkpoint, unless a file or directory here has that name. A
    checkpoint in a bucket (gs://…) is fetched, unless this machine has it already, and a model of the Hugging Face hub
    (owner/name) is fetched and converted. weights=False: its settings and tokenizer are enough.
    """
    if is_remote(path):
        return cloud.fetch(path, weights)
    if hub.is_hub_id(path):
        return hub.fetch(os.fspath(path), weights)
    local = Path(os.path.expanduser(path))
    if str(path) in NAMES and not local.exists():
        return Path(str(files("jaxsink.zoo") / "weights" / str(path)))
    return local
