"""What the process is doing, for the person who waits. Always on stderr, so that stdout holds results and nothing else.

    with reporting():                                            # the command line does this around every command
        with stage("loading llada"):
            ...
        with stage("training", total=600, unit="steps") as task:
            task.update(done=10, detail="loss 2.31")

On a terminal a line with a spinner, a bar and the time left is shown below all other output, and disappears at the end.
Elsewhere plain lines come, the first after a second, then one every few seconds. Without `reporting` a stage costs nothing
and says nothing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import TaskID

    from jaxsink.runs.reporter import Reporter

FRAME = 0.1  # seconds between two beats
BytesProgress = Callable[[str, int, int], None]  # (what, bytes done, bytes in all)

_reporter: Reporter | None = None  # of this process, while something reports
_share: Share | None = None  # the part under way, which an inner `progress` shares out


@dataclass(frozen=True)
class Task:
    """One stage of the work; without a reporter nothing happens."""

    reporter: Reporter | None = None
    number: TaskID | None = None

    def update(
        self, done: float | None = None, what: str | None = None, detail: str | None = None, total: float | None = None
    ) -> None:
        """Change what is given."""
        if self.reporter is not None and self.number is not None:
            self.reporter.update(self.number, done=done, what=what, detail=detail, total=total)

    def restart(self) -> None:
        """Count from nothing, with a new clock."""
        if self.reporter is not None and self.number is not None:
            self.reporter.rows.reset(self.number)

    def draw(self) -> None:
        """Show the state at once, on a terminal; plain lines keep their pace."""
        if self.reporter is not None and self.reporter.is_watched:
            self.reporter.beat()


@contextmanager
def reporting() -> Iterator[None]:
    """Inside, stages are shown; inside another `reporting` it changes nothing."""
    global _reporter
    if _reporter is not None:
        yield
        return
    from rich.console import Console

    from jaxsink.runs.reporter import Heard, Reporter

    reporter = _reporter = Reporter(Console(file=sys.stderr))
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    heard = {name: Heard(stream, reporter) for name, stream in before.items() if name == "stderr" or stream.isatty()}
    for name, stream in heard.items():
        setattr(sys, name, stream)
    ended = threading.Event()
    heart = threading.Thread(target=_beat, args=(reporter, ended), name="progress", daemon=True)
    heart.start()
    try:
        yield
    finally:
        ended.set()
        heart.join()
        reporter.hush()
        _reporter = None
        for name, stream in heard.items():
            if getattr(sys, name) is stream:
                setattr(sys, name, before[name])


def _beat(reporter: Reporter, ended: threading.Event) -> None:
    with suppress(OSError, ValueError):  # whoever reads our stderr has gone
        while not ended.wait(FRAME):
            reporter.beat()


@contextmanager
def stage(
    what: str, total: float | None = None, unit: str = "", detail: str = "", body: RenderableType | None = None
) -> Iterator[Task]:
    """Name what happens inside. total: how much there is to do, in `unit`s; body: what a terminal shows above the line."""
    reporter = _reporter
    if reporter is None:
        yield Task()
        return
    task = Task(reporter, reporter.add(what, total, unit, detail, body))
    try:
        yield task
    finally:
        assert task.number is not None
        reporter.remove(task.number)


@dataclass(frozen=True)
class Share:
    """A stretch of a task: what it is of, where it begins, and how long it is."""

    task: Task
    what: str
    first: float
    size: float


@contextmanager
def progress(costs: Sequence[int]) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """(call before each part with its description, call after it).

    costs: of the parts in turn, in any unit; the time left goes by them, because parts differ. Inside a part of another
    `progress`, the parts share out that one, so that its time left goes on.
    """
    if _share is not None:
        with _sharing_out(_share, costs) as told:
            yield told
        return
    with (
        reporting(),
        stage("preparing", total=sum(costs) or None) as task,
        _sharing_out(Share(task, "", 0, sum(costs)), costs) as told,
    ):
        yield told


@contextmanager
def _sharing_out(whole: Share, costs: Sequence[int]) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    global _share
    outer, left = _share, iter(costs)
    scale, done = whole.size / (sum(costs) or 1), 0.0

    def begin(what: str) -> None:
        global _share
        text = f"{whole.what}: {what}" if whole.what else what
        whole.task.update(what=text)
        _share = Share(whole.task, text, whole.first + done, scale * next(left))

    def end() -> None:
        global _share
        nonlocal done
        assert _share is not None
        done, _share = done + _share.size, outer
        whole.task.update(whole.first + done)

    try:
        yield begin, end
    finally:
        _share = outer


@contextmanager
def bytes_progress() -> Iterator[BytesProgress]:
    """For work on files."""
    with stage("reading", unit="bytes") as task:
        last = ""

        def progress(what: str, done: int, total: int) -> None:
            nonlocal last
            if what != last:
                task.restart()
                last = what
            task.update(done, what, total=total)

        yield progress


def duration(seconds: float) -> str:
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    return f"{seconds // 60}:{seconds % 60:02d}" if seconds < 3600 else f"{seconds // 3600}:{seconds // 60 % 60:02d} h"


def human_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"
