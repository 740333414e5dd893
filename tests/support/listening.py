"""Commands as a person runs them: on a terminal or into a pipe, with the time of all they say, and perhaps interrupted."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

QUICK = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAXSINK_COMPILE_CACHE": "off",
    "TERM": "xterm-256color",
    "COLUMNS": "120",
}
LOOK = 0.005  # seconds between two looks at whether it is time to interrupt

Moment = Callable[[str], bool]
"""Is it time, by what was said so far?"""


@dataclass
class Said:
    """What a command said, and when, in seconds from its start; the end counts as the last word."""

    times: list[float] = field(default_factory=list)
    text: str = ""
    code: int | None = None

    def gaps(self) -> list[float]:
        return [after - before for before, after in zip([0.0, *self.times], self.times, strict=False)]


def listen(
    arguments: list[str], folder: Path, is_terminal: bool, interrupt_at: str | Moment | None = None, pause: float = 0
) -> Said:
    """Run `jaxsink …` in the folder; send an interrupt when a text has appeared, or it is time, after a pause."""
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("JAX", "XLA", "TPU"))}
    said, begun, waited = Said(), time.monotonic(), interrupt_at
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxsink", *arguments],
        cwd=folder,
        env={**environment, **QUICK},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    while True:
        if waited is not None and (waited in said.text if isinstance(waited, str) else waited(said.text)):
            time.sleep(pause)
            process.send_signal(signal.SIGINT)
            waited = None
        if waited is not None and not select.select([ours], [], [], LOOK)[0]:
            continue
        try:
            some = os.read(ours, 1 << 16)
        except OSError:  # a terminal whose other end is closed
            some = b""
        said.times.append(time.monotonic() - begun)
        said.text += some.decode(errors="replace")
        if not some:
            break
    os.close(ours)
    said.code = process.wait()
    return said
