"""How far long work is: a bar with the time left on a terminal, plain lines elsewhere; always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from jaxsink.parallel.hosts import is_main


@contextmanager
def progress(costs: Sequence[int]) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """(call before each part with its description, call after it).

    costs: of the parts in turn, in any unit; the time left goes by them, because parts differ.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    total, begun, parts = sum(costs), time.monotonic(), 0
    with Progress(*columns, console=console, disable=not console.is_terminal, speed_estimate_period=600) as bar:
        task = bar.add_task("", total=total)

        def begin(what: str) -> None:
            bar.update(task, description=what)
            if not console.is_terminal and is_main():
                passed, done = time.monotonic() - begun, sum(costs[:parts])
                left = f", about {passed / done * (total - done):.0f} s left" if done else ""
                print(f"[{passed:5.0f} s{left}] {what}", file=sys.stderr, flush=True)

        def end() -> None:
            nonlocal parts
            bar.advance(task, costs[parts])
            parts += 1

        yield begin, end
