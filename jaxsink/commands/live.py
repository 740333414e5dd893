"""What people see while a model writes: the canvas being filled, a line of progress, a spinner for long waits.

All of it goes to stderr and is gone when the run ends, so that stdout holds the result and nothing else.
"""

from __future__ import annotations

import threading
import time
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from itertools import takewhile
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from jaxsink.tokenizer import Tokenizer

FRAME = 1 / 15  # seconds between two updates, at least
GLOW = 0.4  # seconds that a fresh token stands out
PATIENCE = 2.0  # seconds before a spinner appears
MASK, FRESH, SPECIAL = "dim", "bold green", "dim"
CONTEXT = 3  # tokens before one that decide how it reads: a character has at most four bytes
BAR = 20


def printable(text: str) -> str:
    """The text without control characters (a model can write escape codes), but with its line breaks and tabs."""
    return "".join("�" if unicodedata.category(c) == "Cc" and c not in "\n\t" else c for c in text)


class Pieces:
    """The text that a token adds to the tokens before it; the ids themselves where there is no tokenizer."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self.read = lru_cache(maxsize=1 << 16)(self._read)

    def _read(self, before: tuple[int, ...], token: int) -> tuple[str, str]:
        """(text, style). A token that ends amid a character adds nothing; the one that completes it adds it."""
        tokenizer = self._tokenizer
        if tokenizer is None:
            return f" {token}", ""
        if not tokenizer.decode([token]):
            return ("·" if tokenizer.decode([token], skip_special=False) else f"<{token}>"), SPECIAL
        old, new = tokenizer.decode(before), tokenizer.decode((*before, token))
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
        added = new[same:]
        return ("" if added.endswith("�") else printable(added)), ""


class Canvas:
    """Turns the state of a run into lines for a screen of a given size."""

    def __init__(self, console: Console, pieces: Pieces, start: int, mask_id: int | None) -> None:
        self.console, self.pieces, self.start, self.mask_id = console, pieces, start, mask_id
        self.top = 0  # first line shown
        self.block = "░" if has_symbols(console) else "."

    def text(self, tokens: np.ndarray, committed: np.ndarray, fresh: np.ndarray) -> Text:
        """int[S] and bool[S] of one row as styled text; masks as blocks, about as wide as the words to come."""
        width, height = self.console.size
        block = f" {3 * self.block}" if 4 * (len(tokens) - self.start) <= width * (height - 2) else self.block
        parts: list[tuple[str, str]] = []
        before = tuple(int(i) for i in tokens[max(0, self.start - CONTEXT) : self.start])
        for index in range(self.start, len(tokens)):
            token = int(tokens[index])
            if committed[index] < 0 and self.mask_id is None:
                break  # not written yet
            if committed[index] < 0 and token == self.mask_id:
                parts.append((block, MASK))
                continue
            text, style = self.pieces.read(before, token)
            parts.append((text, FRESH if fresh[index] else style))
            before = (*before, token)[-CONTEXT:]
        return Text.assemble(*joined(parts), tab_size=4)

    def lines(self, text: Text) -> tuple[list[Text], str]:
        """The lines to show, and which they are if the screen is too small for all; it follows the fresh tokens."""
        width, height = self.console.size
        lines = list(text.wrap(self.console, width, overflow="fold")) if text.plain.strip() else []
        room = max(1, height - 2)
        if len(lines) <= room:
            self.top = 0
            return lines, ""
        news = [number for number, line in enumerate(lines) if any(span.style == FRESH for span in line.spans)]
        if news:
            self.top = min(self.top, news[0]) if news[-1] < self.top + room else news[-1] - room + 1
        self.top = max(0, min(self.top, len(lines) - room))
        return lines[self.top : self.top + room], f"lines {self.top + 1}-{self.top + room} of {len(lines)}"


def joined(parts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Neighbours of the same style as one, which is much faster to lay out."""
    out: list[tuple[str, str]] = []
    for text, style in parts:
        if out and out[-1][1] == style:
            out[-1] = (out[-1][0] + text, style)
        else:
            out.append((text, style))
    if out:
        out[0] = (out[0][0].lstrip(" "), out[0][1])
    return out


class Display:
    """A listener for `generate`: the canvas and a line of progress, or (canvas=None) the line alone.

    total: steps at most. positions: how many are to be filled. ran: seconds spent on steps so far, for the rates.
    """

    def __init__(
        self,
        console: Console,
        canvas: Canvas | None,
        total: int,
        positions: int,
        ran: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console, self.canvas, self.total, self.positions = console, canvas, total, positions
        self._ran, self._clock = ran, clock
        self._live: Live | None = None
        self._wait = Waiting(console, "compiling")
        self._first_seen: np.ndarray | None = None
        self._last, self._calls = -FRAME, 0

    def __enter__(self) -> Display:
        self._wait.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._wait.stop()
        if self._live is not None:
            self._live.stop()

    def __call__(self, step: int, tokens: Any, committed_at: Any) -> None:
        now = self._clock()
        self._calls += 1
        if now - self._last < FRAME and step < self.total and self._calls > 2:
            return
        self._last = now
        frame = self.frame(step, tokens[0], committed_at[0], now)
        if self._live is None:
            self._wait.stop()
            self._live = Live(console=self.console, auto_refresh=False, transient=True, vertical_overflow="crop")
            self._live.start()
        self._live.update(frame, refresh=True)

    def frame(self, step: int, tokens: np.ndarray, committed: np.ndarray, now: float) -> Group:
        if self._first_seen is None:
            self._first_seen = np.full(committed.shape, np.inf)
        self._first_seen[(committed >= 0) & np.isinf(self._first_seen)] = now
        lines, where = [], ""
        if self.canvas is not None:
            lines, where = self.canvas.lines(self.canvas.text(tokens, committed, now - self._first_seen < GLOW))
            lines.append(Text())
        return Group(*lines, self.progress(step, int((committed >= 0).sum()), where))

    def progress(self, step: int, done: int, where: str) -> Text:
        """As many parts as fit into the width."""
        share = min(1.0, max(step / self.total, done / self.positions))
        ran = self._ran()
        rate = done / ran if ran > 1e-3 else 0.0
        filled = int(BAR * share)
        full, empty, more = "━─…" if has_symbols(self.console) else "#-:"
        parts = [
            Text(f"step {step}/{self.total}"),
            Text.assemble((full * filled, "green"), (empty * (BAR - filled), "dim")),
            Text(f"{rate:.{0 if rate > 100 else 1}f} tokens/s" if rate else ""),
            Text(f"{duration(ran / share * (1 - share))} left" if rate and share else ""),
            Text(where, style="dim"),
        ]
        if self._calls == 1 and step < self.total:  # the later chunks are another program than the first
            parts[2:4] = [Text(f"compiling {more}", style="dim")]
        line = Text(no_wrap=True, overflow="ellipsis")
        for part in filter(None, parts):
            if not line or line.cell_len + 2 + part.cell_len <= self.console.width:
                line.append("  " if line else "").append_text(part)
        return line


def duration(seconds: float) -> str:
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    return f"{seconds // 60}:{seconds % 60:02d}" if seconds < 3600 else f"{seconds // 3600}:{seconds // 60 % 60:02d} h"


class Waiting:
    """A spinner with the time it has taken, for a wait that lasts: it appears after two seconds."""

    def __init__(self, console: Console, what: str, after: float = PATIENCE) -> None:
        self._console, self._what, self._after = console, what, after
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._spinner: Progress | None = None
        self._begin = 0.0

    def __enter__(self) -> Waiting:
        self._begin = time.monotonic()
        if is_watched(self._console):
            self._timer = threading.Timer(self._after, self._show)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        with self._lock:
            timer, self._timer = self._timer, None
            spinner, self._spinner = self._spinner, None
            if timer is not None:
                timer.cancel()
            if spinner is not None:
                spinner.stop()

    def _show(self) -> None:
        with self._lock:
            if self._timer is None:  # the wait is over already
                return
            spinner, more = ("dots", "…") if has_symbols(self._console) else ("line", ":")
            text = TextColumn("{task.description} " + more, markup=False)
            columns = (SpinnerColumn(spinner), text, TimeElapsedColumn())
            self._spinner = Progress(*columns, console=self._console, transient=True, refresh_per_second=8)
            self._spinner.add_task(self._what, total=None)
            self._spinner.tasks[0].start_time = self._begin
            self._spinner.start()


def is_watched(console: Console) -> bool:
    """Whether a person sits at the other end: a terminal that can redraw lines."""
    return console.file.isatty() and console.is_interactive and not console.is_dumb_terminal


def has_symbols(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")
