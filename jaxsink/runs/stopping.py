"""Stopping on SIGTERM: the signal raises a flag, and the work looks at it where it can be left without loss.

While XLA compiles, or a large model takes its steps, nobody looks for a while, and Python does not even run its handler.
So a thread hears of the signal by a pipe, and ends the process if nobody has looked after a few seconds. That loses the
batch under way, not what was finished: results are on the disk line by line, and readers pass over a line without an end.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EXIT_CODE = 128 + signal.SIGTERM  # 143, as a shell reports it
GRACE = 5.0  # seconds

IsStopped = Callable[[], bool]


class StoppedError(Exception):
    """The work was left because the flag was up; what was finished is on the disk. Its text is for the user."""


@contextmanager
def stop_on_sigterm(last_words: str = "stopped by SIGTERM.") -> Iterator[IsStopped]:
    """Inside, SIGTERM makes the function that is given return True, instead of ending the process.

    If nobody calls it for GRACE seconds after that, the process says `last_words` on stderr and ends with EXIT_CODE.
    """
    asked, seen = threading.Event(), threading.Event()

    def is_stopped() -> bool:
        if asked.is_set():
            seen.set()
        return asked.is_set()

    hears, tells = os.pipe()
    os.set_blocking(tells, False)
    watch = threading.Thread(target=_watch, args=(hears, seen, last_words), daemon=True)
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    other = signal.set_wakeup_fd(tells, warn_on_full_buffer=False)
    watch.start()
    try:
        yield is_stopped
    except StoppedError as error:
        raise StoppedError(last_words) from error
    finally:
        seen.set()
        signal.set_wakeup_fd(other)
        signal.signal(signal.SIGTERM, before)
        os.close(tells)
        watch.join()
        os.close(hears)


def _watch(hears: int, seen: threading.Event, last_words: str) -> None:
    """Until the pipe is closed: numbers of signals come through it as they arrive."""
    while numbers := os.read(hears, 64):
        if signal.SIGTERM in numbers and not seen.wait(GRACE):
            os.write(2, f"jaxsink: {last_words}\n".encode())
            os._exit(EXIT_CODE)


def never() -> bool:
    return False
