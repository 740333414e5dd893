"""Compiled programs on the disk, and the time that compiling takes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax

from jaxsink.runs.caches import cache_directory

VARIABLE = "JAXSINK_COMPILE_CACHE"
SHORTEST = 0.5  # seconds; what compiles faster is not worth a file


def enable_compilation_cache(wanted: bool = True) -> Path | None:
    """Keep compiled programs on the disk, so that the next run with the same shapes starts at once.

    The directory is $JAXSINK_COMPILE_CACHE ("off" for none), else jaxsink/xla among the user's caches. JAX's own setting
    (JAX_COMPILATION_CACHE_DIR) goes first. A directory that cannot be written to means no cache, not an error.
    Returns the directory in use, or None.
    """
    if not wanted:
        jax.config.update("jax_compilation_cache_dir", None)
        return None
    present = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if present:
        return Path(present)
    folder = cache_directory("xla", VARIABLE)
    if folder is None or not is_writable(folder):
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)
    return folder


def is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


class CompileClock:
    """Counts the seconds that JAX spends tracing and compiling while it is open.

    Programs contain others, so that durations overlap: what counts is the time covered by any of them.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._spans: list[tuple[float, float]] = []
        self._begin = clock()

    def __enter__(self) -> CompileClock:
        self._begin = self._clock()
        jax.monitoring.register_event_duration_secs_listener(self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._hear)

    def _hear(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        """Called when something has just ended."""
        if not event.startswith("/jax/core/compile/"):
            return
        end = self._clock()
        begin = max(end - duration_secs, self._begin)
        while self._spans and self._spans[-1][1] > begin:
            begin = min(begin, self._spans.pop()[0])
        self._spans.append((begin, end))

    @property
    def compiling(self) -> float:
        return sum(end - begin for begin, end in self._spans)

    @property
    def running(self) -> float:
        """Seconds since the start, without the compiling."""
        return self._clock() - self._begin - self.compiling
