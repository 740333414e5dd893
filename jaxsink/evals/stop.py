"""Stopping on SIGTERM: the signal raises a flag, and the work looks at it where it can be left without loss."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EXIT_CODE = 128 + signal.SIGTERM  # 143, as a shell reports it

IsStopped = Callable[[], bool]


class StoppedError(Exception):
    """The work was left because the flag was up; what was finished is on the disk."""


@contextmanager
def stop_on_sigterm() -> Iterator[IsStopped]:
    """Inside, SIGTERM makes the function that is given return True, instead of ending the process."""
    asked = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGTERM, before)


def never() -> bool:
    return False
