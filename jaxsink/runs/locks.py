"""One process at a time: locks that the system keeps, and drops when their process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jaxsink.errors import JaxsinkError


@contextmanager
def locked(lock: Path, folder: Path, wait: bool = False) -> Iterator[None]:
    """Keep every other process out of a folder. lock: a file that names us as long as we are there, and then goes.

    wait: until it is free, instead of an error.
    """
    try:
        handle = None
        while handle is None:  # None: another process has just ended, and removed the file
            if not lock.parent.exists():
                lock.parent.mkdir(parents=True, exist_ok=True)
            handle = hold(lock, os.O_RDWR | os.O_CREAT, wait)
    except BlockingIOError as error:
        raise JaxsinkError(
            f"{owner(lock)} is writing to {folder}; wait for it to end, or choose another directory."
        ) from error
    except OSError as error:
        raise JaxsinkError(f"cannot write to {lock.parent}: {error.strerror}.") from error
    try:
        with suppress(OSError):  # a full disk is found by what matters more
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)


def owner(lock: Path) -> str:
    """Whoever holds it, by name."""
    with suppress(OSError):  # it may just end
        return lock.read_text(errors="replace")[:200] or "another process"
    return "another process"


def hold(path: Path, flags: int = os.O_RDONLY, wait: bool = False) -> int | None:
    """A handle that locks a file or folder; None if it is gone, BlockingIOError if another process has it."""
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW, 0o644)
    except FileNotFoundError:
        if flags & os.O_CREAT:  # a place where nothing can be made
            raise
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), path.stat()):
            return handle
    except FileNotFoundError:
        pass
    except BlockingIOError:
        os.close(handle)
        raise
    os.close(handle)
    return None
