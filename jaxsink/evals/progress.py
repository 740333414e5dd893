"""How far an evaluation is: a bar with speed and time left on a terminal, plain lines elsewhere; always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def progress(costs: Sequence[int], questions: int) -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """(call before a batch with its description, call after it with its number of questions).

    costs: of each batch in turn, in any unit; time left goes by them, because long prompts take longer.
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
    total, begun, batches, asked = sum(costs), time.monotonic(), 0, 0
    with Progress(*columns, console=console, disable=not console.is_terminal, speed_estimate_period=600) as bar:
        task = bar.add_task("evaluating", total=total)

        def begin(what: str) -> None:
            passed, done = time.monotonic() - begun, sum(costs[:batches])
            speed = f", {asked / passed:.3g} questions/s" if asked else ""
            text = f"{asked} of {questions} questions{speed}, {what}"
            bar.update(task, description=text)
            if not console.is_terminal:
                left = f", about {passed / done * (total - done):.0f} s left" if done else ""
                print(f"[{passed:5.0f} s{left}] {text}", file=sys.stderr, flush=True)

        def end(count: int) -> None:
            nonlocal batches, asked
            bar.advance(task, costs[batches])
            batches, asked = batches + 1, asked + count

        yield begin, end
