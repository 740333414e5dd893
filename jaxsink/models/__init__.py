"""The weights of the built-in models, one checkpoint per folder, and the names that stand for them."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from jaxsink.cloud import fetch, is_remote

NAMES = ("mini-llama", "mini-llada", "mini-dream")


def resolve(path: str | os.PathLike[str], weights: bool = True) -> Path:
    """A path as it is; the name of a built-in model stands for its folder, unless something here has that name.

    A checkpoint in a bucket (gs://…) is fetched, unless this machine has it already; weights: whether they are needed.
    """
    if is_remote(path):
        return fetch(path, weights)
    place = Path(os.path.expanduser(path))
    if str(path) in NAMES and not place.exists():
        return Path(str(files("jaxsink.models") / str(path)))
    return place
