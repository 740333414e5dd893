"""Where things are kept that can be made again: compiled programs, and checkpoints from elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

OFF = ("", "0", "no", "off", "false")


def cache_directory(name: str, variable: str) -> Path | None:
    """The folder that the environment variable names, else `jaxsink/NAME` among the user's caches; None if it says "off"."""
    named = os.environ.get(variable)
    if named is None:
        return platformdirs.user_cache_path("jaxsink", appauthor=False) / name
    return None if named.strip().lower() in OFF else Path(os.path.expanduser(named)).absolute()
