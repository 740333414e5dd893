"""Draws what the process is doing: a line below all other output on a terminal, plain lines elsewhere.

A thread calls `Reporter.beat` many times a second, so that something moves whatever the work waits for.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TaskID, TimeElapsedColumn
from rich.progress import Task as Row
from rich.table import Column
from rich.text import Text

from jaxsink.runs.progress import duration, human_bytes

PATIENCE = 1.0  # seconds of silence before the first sign of life
EVERY = 5.0  # seconds between two plain lines
MEMORY = 3600.0  # seconds of the past that the time left is estimated from
BAR = 20
STARTING = "starting"


class Reporter:
    """Stages that are inside each other, and how they are shown. `hush` comes before others write to the terminal."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.console, self.clock = console, clock
        self.is_watched = is_watched(console)
        spinner = SpinnerColumn("dots" if has_symbols(console) else "line")
        self.rows = Progress(
            spinner,
            What(),
            Bar(bar_width=BAR),
            TimeElapsedColumn(),
            Left(),
            console=console,
            auto_refresh=False,
            get_time=clock,
            speed_estimate_period=MEMORY,
        )
        self.bodies: dict[TaskID, RenderableType] = {}  # what a terminal shows above the lines
        self.begin = self.heard = clock()
        self.lines = 0  # plain ones so far
        self.at_line_start = True
        self._live: Live | None = None
        self._lock = threading.RLock()  # a signal handler may write while this thread draws

    def add(self, what: str, total: float | None, unit: str, detail: str, body: RenderableType | None) -> TaskID:
        with self._lock:
            for row in self.rows.tasks[:1]:
                row.description = row.description.replace(STARTING, "working")  # whatever comes after this stage
            number = self.rows.add_task(what, total=total, unit=unit, detail=detail)
            if body is not None:
                self.bodies[number] = body
            self._choose_visible()
            return number

    def update(self, number: TaskID, **changes: Any) -> None:
        """done, what, detail, total: those that are not None."""
        names = {"done": "completed", "what": "description"}
        given = {names.get(key, key): value for key, value in changes.items() if value is not None}
        with self._lock:
            self.rows.update(number, **given)

    def remove(self, number: TaskID) -> None:
        with self._lock:
            if not any(row.total is not None for row in self.rows.tasks if row.id != number):
                self._erase()
            self.rows.remove_task(number)
            self.bodies.pop(number, None)
            self._choose_visible()

    def beat(self) -> None:
        """Show the state of the work, if it is time."""
        with self._lock:
            silence = self.clock() - self.heard
            if not self.is_watched:
                if silence >= (EVERY if self.lines else PATIENCE) and is_main():
                    self._print_line()
                return
            if self._live is None and (silence >= PATIENCE or (self.at_line_start and self._has_bar())):
                self._start()
            if self._live is not None:
                self._live.update(Group(*self.bodies.values(), self.rows), refresh=True)

    def hush(self) -> None:
        """Leave the terminal to others."""
        with self._lock:
            self._erase()
            self.heard = self.clock()

    def _erase(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            self.heard = self.clock()

    def _start(self) -> None:
        if not self.at_line_start:
            self.console.file.write("\n")
            self.at_line_start = True
        live = Live(
            console=self.console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        live.start()
        self._live = live

    def _choose_visible(self) -> None:
        """Of stages inside each other: those that have a bar, and the innermost."""
        rows = self.rows.tasks
        for row in rows:
            row.visible = row.total is not None or row is rows[-1]

    def _has_bar(self) -> bool:
        """Whether there is more to see than that we wait."""
        return any(row.total is not None for row in self.rows.tasks)

    def _print_line(self) -> None:
        shown = [row for row in self.rows.tasks if row.visible]
        left = next((seconds for seconds in map(time_left, shown) if seconds is not None), None)
        about = "" if left is None else f", about {duration(left)} left"
        start = "" if self.at_line_start else "\n"
        what = ": ".join(map(described, shown))
        print(f"{start}[{self.clock() - self.begin:5.0f} s{about}] {what}", file=self.console.file, flush=True)
        self.heard, self.at_line_start = self.clock(), True
        self.lines += 1


class Bar(BarColumn):
    """Only where there is something to count."""

    def render(self, task: Row) -> Any:
        return Text() if task.total is None else super().render(task)


class What(ProgressColumn):
    def __init__(self) -> None:
        super().__init__(Column(no_wrap=True, overflow="ellipsis", ratio=1))

    def render(self, task: Row) -> Text:
        return Text(described(task), no_wrap=True, overflow="ellipsis")


class Left(ProgressColumn):
    def render(self, task: Row) -> Text:
        left = time_left(task)
        return Text("" if left is None else f"{duration(left)} left")


def time_left(row: Row) -> float | None:
    """Seconds, by the speed of late; of parts that are not counted in units, by the first of them."""
    if row.total is None or row.finished or not row.completed or row.elapsed is None:
        return None
    if row.time_remaining is not None or row.fields["unit"]:
        return row.time_remaining
    return row.elapsed / row.completed * (row.total - row.completed)


def described(row: Row) -> str:
    """What, how far, and the detail; without times."""
    count = count_text(row.completed, row.total, row.fields["unit"]) if row.total and row.fields["unit"] else ""
    return ", ".join(part for part in (f"{row.description} {count}".strip(), row.fields["detail"]) if part)


def count_text(done: float, total: float, unit: str) -> str:
    if unit == "bytes":
        return f"{human_bytes(done)} of {human_bytes(total)}"
    return f"{done:,.0f} of {total:,.0f} {unit}"


class Heard:
    """A stream that makes the reporter leave the terminal before anything is written."""

    def __init__(self, stream: TextIO, reporter: Reporter) -> None:
        self._stream, self._reporter = stream, reporter

    def write(self, text: str) -> int:
        if text:
            self._reporter.hush()
            self._reporter.at_line_start = text.endswith("\n")
        return self._stream.write(text)

    def writelines(self, lines: Sequence[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def is_main() -> bool:
    """Whether this is the process that prints. Asking JAX before its processes have joined would start it alone."""
    distributed = getattr(sys.modules.get("jax"), "distributed", None)  # JAX may be half imported
    joined = getattr(distributed, "is_initialized", None)
    return joined is None or not joined() or sys.modules["jax"].process_index() == 0


def is_watched(console: Console) -> bool:
    """Whether a person sits at the other end: a terminal that can redraw lines."""
    return console.file.isatty() and console.is_interactive and not console.is_dumb_terminal


def has_symbols(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")
