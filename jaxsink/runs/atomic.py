"""Directories and files that appear complete or not at all, whatever happens to the process or the machine on the way."""

from __future__ import annotations

import glob
import json
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jaxsink.errors import JaxsinkError
from jaxsink.runs.locks import hold, locked


@contextmanager
def new_directory(path: Path, marker: str, overwrite: bool = False) -> Iterator[Path]:
    """A folder `.NAME.partial` beside `path` to fill; it becomes `path` if the block ends well, and is gone otherwise.

    marker: a file by which our own directories are known; nothing else is ever overwritten.
    """
    check_target(path, marker, overwrite)
    partial, old = path.with_name(f".{path.name}.partial"), path.with_name(f".{path.name}.old")
    parents = [folder for folder in path.parents if not folder.exists()]
    done = False
    try:
        with locked(path.with_name(f"{partial.name}.lock"), path):
            try:
                _finish_replacing(path, old)  # what an interrupted run left undone
                check_target(path, marker, overwrite)  # again: another run may have ended meanwhile
                if partial.exists():
                    shutil.rmtree(partial)
                partial.mkdir()
                yield partial
                _sync(partial)
                if path.exists():
                    path.rename(old)
                partial.rename(path)
                done = True
            finally:
                if not done:
                    shutil.rmtree(partial, ignore_errors=True)
                _finish_replacing(path, old)
    finally:
        for folder in parents if not done else ():
            with suppress(OSError):
                folder.rmdir()


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A file beside `path` to write; it replaces `path` if the block ends well, and is gone otherwise.

    Several processes, also of several hosts, may do so at the same time; what killed ones left here is removed.
    """
    check_replaceable(path)
    partial = _unfinished(path)
    mine = partial.name.removesuffix(f"{os.getpid()}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f"{glob.escape(mine)}*.partial"):
        if not _is_alive(left.name.removeprefix(mine).removesuffix(".partial")):
            left.unlink(missing_ok=True)
    try:
        with named_errors(path):
            yield partial
            sync(partial)
            check_replaceable(path)  # again: it may have been made meanwhile
            partial.rename(path)
            sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def check_replaceable(path: Path) -> None:
    """Only a regular file is ever replaced, or a link to one: /dev/null must stay what it is, for everybody."""
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "a device, pipe or socket"
            raise JaxsinkError(f"{path} is {kind}, which is never replaced by a file; choose another name.")


def check_writable(path: Path) -> None:
    """Before the work whose result goes there: whether `new_file` can write it, which only trying tells."""
    check_replaceable(path)
    folder = next((parent for parent in path.parents if os.path.lexists(parent)), path)
    trial = folder / _unfinished(path).name
    try:
        os.close(os.open(trial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        trial.unlink()
    except FileExistsError:  # it is being written
        pass
    except OSError as error:
        raise JaxsinkError(f"{path} cannot be written ({error.strerror}); choose another place.") from error


def _unfinished(path: Path) -> Path:
    """What a file is called while this process writes it."""
    return path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.partial")


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """What the system says about a full or broken disk names no file, or one that nobody knows."""
    try:
        yield
    except OSError as error:
        if error.errno is None or (error.filename not in (None, "") and not str(error.filename).endswith(".partial")):
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def write_text(path: Path, text: str) -> None:
    """Replace a file whole."""
    with new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Replace a file whole."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sync(path: Path) -> None:
    """A file, or a folder with its names, onto the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:  # it is another user's
        return True
    return True


def check_target(path: Path, marker: str, overwrite: bool) -> None:
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise JaxsinkError(
            f"{path} exists already; choose another name, or overwrite it (--overwrite; in Python overwrite=True)."
        )
    if not path.is_dir() or (any(path.iterdir()) and not (path / marker).is_file()):
        raise JaxsinkError(f"{path} is not a checkpoint of jaxsink, so it is not overwritten; choose another name.")


@contextmanager
def scratch_directory(purpose: str) -> Iterator[Path]:
    """A folder among the system's temporary files, gone at the end; before, those that killed processes left are removed."""
    root, prefix = Path(tempfile.gettempdir()), f"jaxsink-{purpose}-"
    for left in root.glob(f"{prefix}*"):
        with suppress(OSError):  # a living process or another user has it
            if (handle := hold(left)) is not None:
                try:
                    shutil.rmtree(left)
                finally:
                    os.close(handle)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        with suppress(OSError):  # another process may just look whether anybody owns it, and remove it
            if (handle := hold(folder)) is not None:
                break
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _finish_replacing(path: Path, old: Path) -> None:
    """The old directory comes back if the new one did not take its place, and goes if it did."""
    if old.exists():
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(path)


def _sync(folder: Path) -> None:
    """Everything in the folder onto the disk, so that no power cut after the rename can leave a hole in it."""
    for directory, _, files in os.walk(folder):
        for name in (*files, "."):
            sync(Path(directory, name))
