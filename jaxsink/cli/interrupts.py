"""Ctrl-C gets through even where Python ignores exceptions.

JAX frees its caches in a callback of the garbage collector, which runs often while a program is compiled. A
KeyboardInterrupt that is raised there is printed ("Exception ignored in …") and forgotten, and the command would go on.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

AGAIN = 0.05  # seconds, by when the callback has ended


@contextmanager
def delivered_interrupts() -> Iterator[None]:
    """Inside, an interrupt that was ignored comes again."""
    before, is_over, waiting = sys.unraisablehook, threading.Event(), threading.get_ident()

    def interrupt_again() -> None:
        if not is_over.wait(AGAIN):
            signal.pthread_kill(waiting, signal.SIGINT)  # wakes a system call too

    def hook(ignored: sys.UnraisableHookArgs) -> None:
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            threading.Thread(target=interrupt_again, daemon=True).start()
        else:
            before(ignored)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        is_over.set()
        sys.unraisablehook = before


def end_process(code: int) -> NoReturn:
    """Now: XLA may still be compiling in its own threads, and an orderly end of Python takes memory from under them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
