"""From what a user calls a model (a path, a built-in name, a bucket, a hub id) to a directory of this machine."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from jaxsink.checkpoints import gcs as cloud
from jaxsink.checkpoints import hub
from jaxsink.checkpoints.gcs import is_remote
from jaxsink.runs.files import user_path

NAMES = ("mini-llama", "mini-llada", "mini-dream")
"""The built-in models of word problems; `zoo/builtin.py` says how they are trained and asked."""
TEXT_NAMES = ("shakespeare-arm", "shakespeare-dlm", "shakespeare-adapted")
"""The built-in models of a text, the first seed of those in docs/testbeds.md: checkpoints like any other."""
SHIPPED = (*NAMES, *TEXT_NAMES)
"""Everything of which `zoo/weights/` has a checkpoint."""
WEIGHTS = Path(str(files("jaxsink.zoo") / "weights"))


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
    local = user_path(path)
    if str(path) in SHIPPED and not local.exists():
        return WEIGHTS / str(path)
    return local


def usual_dtype(folder: Path) -> str | None:
    """What a model is loaded as where no type is asked for; None: as it is stored.

    Built-in models are stored as bfloat16, which keeps the package small, and computed with in float32: what they write
    then depends neither on batches nor on devices (docs/numerics.md).
    """
    return "float32" if folder.resolve().parent == WEIGHTS.resolve() else None
