"""Reading what others wrote: only from regular files, of a size that can be, and of the checkpoint that is meant.

A pipe or a device keeps a reader waiting for ever, or never ends. A link that leads out of a checkpoint would make us read,
and copy, what its author wants to see of this machine.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jaxsink.checks import shown
from jaxsink.errors import JaxsinkError

LARGEST_TEXT = 256 << 20
"""Bytes of a JSON or text file; the largest tokenizers of today have 35 MB."""
HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
"""How JSON writes the halves of a rare character; one alone is no text, and can neither be printed nor written."""


def user_path(path: str | os.PathLike[str]) -> Path:
    """What a person calls a file or directory, there or not: ~ is a home, and a name that no system can have an error."""
    try:
        found = Path(
            os.path.expanduser(path)
        )  # a home that is not there stays a name, which pathlib's own makes an error
        with suppress(FileNotFoundError, NotADirectoryError):
            found.lstat()
    except (OSError, ValueError) as error:  # a name that is too long, a folder that is closed to us, a zero byte
        what = error.strerror if isinstance(error, OSError) else error
        raise JaxsinkError(f"cannot use {shown(os.fspath(path))}: {what}.") from error
    return found


def check_file(path: Path) -> None:
    """A regular file of a checkpoint that can be read, and that lies where its name says."""
    check_regular(path)
    check_inside(path)


def check_regular(path: Path) -> None:
    """A regular file that can be read."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            path.open("rb").close()
            return
    except FileNotFoundError as error:
        raise JaxsinkError(f"{path} is missing.") from error
    except OSError as error:
        raise JaxsinkError(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:  # a zero byte in a name
        raise JaxsinkError(f"cannot read {path}: {error}.") from error
    raise JaxsinkError(f"cannot read {path}: it is {'a directory' if stat.S_ISDIR(mode) else 'no regular file'}.")


def refuse_special(path: Path) -> None:
    """No pipe and no device, before somebody's text or data is read; what is missing, the reader itself will say."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise JaxsinkError(f"cannot read {path}: it is no regular file.")


def check_inside(path: Path) -> None:
    """Links may lead to other files of the directory, or of a hub cache to that model's blobs, and nowhere else."""
    target, home = Path(os.path.realpath(path)), Path(os.path.realpath(path.parent))
    home = next((folder for folder in (home, *home.parents) if folder.name.startswith("models--")), home)
    if not target.is_relative_to(home):
        raise JaxsinkError(
            f"{path} is a link to {target}, outside its directory, so it is not read; put the file itself there."
        )


def check_tree(folder: Path) -> None:
    """Nothing but directories and regular files, at whatever depth; and the folder itself lies where its name says."""
    check_inside(folder)
    if os.path.lexists(folder) and not folder.is_dir():
        raise JaxsinkError(f"cannot read {folder}: it is no directory.")
    for directory, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(directory, name)
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise JaxsinkError(f"cannot read {path}: it is {'a link' if path.is_symlink() else 'no regular file'}.")


def read_bytes(path: Path, largest: int = LARGEST_TEXT) -> bytes:
    """What a regular file holds."""
    check_regular(path)
    try:
        size = path.stat().st_size
        if size > largest:
            raise JaxsinkError(f"{path} has {size} bytes, more than the {largest} that such a file may have.")
        return path.read_bytes()
    except OSError as error:
        raise JaxsinkError(f"cannot read {path}: {error.strerror}.") from error


def read_text(path: Path) -> str:
    """The text of a regular file."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise JaxsinkError(f"{path} is not valid text ({error.reason} at byte {error.start}).") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint or a run."""
    check_file(path)
    return parse_json(path, read_bytes(path))


def parse_json(path: Path, data: bytes) -> dict[str, Any]:
    """The object in a text of that file."""
    try:
        text = data.decode("utf-8")
        value = json.loads(text)
        if HALF_CHARACTER.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise JaxsinkError(f"{path} is not valid JSON ({first_words(error)}); download it again.") from error
    if not isinstance(value, dict):
        raise JaxsinkError(f"{path} must hold a JSON object, not {type(value).__name__}.")
    return value


@contextmanager
def interpreting(path: Path) -> Iterator[None]:
    """Around code that takes what a file says for what it should be: wrong kinds of values become a sentence."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, ArithmeticError) as error:
        missing = f"{error} is missing" if isinstance(error, KeyError) else first_words(error)
        raise JaxsinkError(
            f"{path} does not hold what jaxsink wrote there ({missing}); bring back the files as they were, or begin anew."
        ) from error


def first_words(error: BaseException) -> str:
    """What an error says, short enough for a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
