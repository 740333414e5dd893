"""Stopping on SIGTERM or Ctrl-C: the signal raises a flag, and the work looks at it where it can be left without loss.

While XLA compiles, or a large model takes its steps, nobody looks for a while, and Python does not even run its handler.
So a thread hears of the signal by a pipe, and ends the process if nobody has looked after a few seconds. That loses the
batch under way, not what was finished: results are on the disk line by line, and readers pass over a line without an end.

A KeyboardInterrupt would be raised anywhere, in the middle of JAX's own code too, which does not always survive it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

EXIT_CODE = 128 + signal.SIGTERM  # 143, as a shell reports it
INTERRUPTED = 128 + signal.SIGINT  # 130
GRACE = 5.0  # seconds
CLEAR = "\r\x1b[2K\x1b[?25h"  # ends a line of progress on a terminal: erased, and the cursor shown again
PATIENCE = 60.0  # seconds after Ctrl-C, of somebody who can press it again

IsStopped = Callable[[], bool]


class StoppedError(Exception):
    """The work was left because the flag was up; what was finished is on the disk. Its text is for the user."""

    code = EXIT_CODE


@contextmanager
def stop_on_sigterm(
    last_words: str = "stopped by SIGTERM.", when_interrupted: str | None = None
) -> Iterator[IsStopped]:
    """Inside, SIGTERM makes the function that is given return True, instead of ending the process.

    If nobody calls it for GRACE seconds after that, the process says `last_words` on stderr and ends with EXIT_CODE.

    when_interrupted: the last words after Ctrl-C, which then does the same; nobody looking for PATIENCE seconds, or a second
    Ctrl-C, ends the process. None leaves Ctrl-C as it is.
    """
    asked, seen, begun = threading.Event(), threading.Event(), threading.Event()
    ends = {int(signal.SIGTERM): (last_words, EXIT_CODE, GRACE)}
    if when_interrupted is not None:
        ends[int(signal.SIGINT)] = (when_interrupted, INTERRUPTED, PATIENCE)
    first: list[int] = []

    def ask(number: int, frame: object = None) -> None:
        first.append(number)
        asked.set()

    def is_stopped() -> bool:
        begun.set()
        if asked.is_set():
            seen.set()
        return asked.is_set()

    hears, tells = os.pipe()
    os.set_blocking(tells, False)
    watch = threading.Thread(target=_watch, args=(hears, seen, begun, ends, ask), daemon=True)
    before = {number: signal.signal(number, ask) for number in ends}
    other = signal.set_wakeup_fd(tells, warn_on_full_buffer=False)
    watch.start()
    try:
        yield is_stopped
    except StoppedError as error:
        words, code, _ = ends[first[0] if first else int(signal.SIGTERM)]
        stopped = StoppedError(words)
        stopped.code = code
        raise stopped from error
    finally:
        seen.set()
        signal.set_wakeup_fd(other)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(tells)
        watch.join()
        os.close(hears)


def _watch(
    hears: int,
    seen: threading.Event,
    begun: threading.Event,
    ends: Mapping[int, tuple[str, int, float]],
    ask: Callable[[int], None],
) -> None:
    """Until the pipe is closed: numbers of signals come through it as they arrive.

    begun: the work has looked before, so that there is something to lose; until then nobody waits long after Ctrl-C.
    """
    waits: dict[int, threading.Timer] = {}

    def end(number: int) -> None:
        words, code, _ = ends[number]
        os.write(2, f"{CLEAR if os.isatty(2) else ''}jaxsink: {words}\n".encode())
        os._exit(code)

    def end_unless_seen(number: int) -> None:
        if not seen.is_set():
            end(number)

    while numbers := os.read(hears, 64):
        for number in numbers:
            if number == signal.SIGINT and number in waits:
                end(number)
            if number in ends and number not in waits:
                ask(number)
                if number == signal.SIGINT:
                    os.write(2, b"jaxsink: stopping as soon as nothing is lost; Ctrl-C again stops at once.\n")
                patience = ends[number][2] if begun.is_set() else min(GRACE, ends[number][2])
                waits[number] = threading.Timer(patience, end_unless_seen, (number,))
                waits[number].daemon = True
                waits[number].start()
    for timer in waits.values():
        timer.cancel()
        timer.join()


def never() -> bool:
    return False
