"""The weights of the built-in models, one checkpoint per folder, and the names that stand for them."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from jaxsink.checkpoints import gcs as cloud
from jaxsink.checkpoints import hub
from jaxsink.checkpoints.gcs import is_remote

NAMES = ("mini-llama", "mini-llada", "mini-dream")


def resolve(path: str | os.PathLike[str], weights: bool = True) -> Path:
    """A path as it is; the name of a built-in model stands for its folder, unless something here has that name.

    A checkpoint in a bucket (gs://…) is fetched, unless this machine has it already, and a model of the Hugging Face hub
    (owner/name) is fetched and converted; weights: whether they are needed.
    """
    if is_remote(path):
        return cloud.fetch(path, weights)
    if hub.is_hub_id(path):
        return hub.fetch(os.fspath(path), weights)
    place = Path(os.path.expanduser(path))
    if str(path) in NAMES and not place.exists():
        return Path(str(files("jaxsink.zoo.weights") / str(path)))
    return place
