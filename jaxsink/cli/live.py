"""What people see while a model writes: the prompt, the canvas being filled, and where the attention goes.

It is drawn above the line of jaxsink.runs.progress, on stderr, and is gone when the run ends.
"""

from __future__ import annotations

import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.text import Text

from jaxsink.nn.recorder import Recorder
from jaxsink.recording.attention import received
from jaxsink.recording.reductions import sink_share
from jaxsink.runs.progress import Task, stage
from jaxsink.runs.reporter import has_symbols
from jaxsink.sampling.respond import Job
from jaxsink.text.tokenizer import Tokenizer

FRAME = 1 / 15  # seconds between two updates, at least
PLAIN = 2.0  # without a terminal
GLOW = 0.4  # seconds that a fresh token stands out
MASK, FRESH, SPECIAL, PROMPT = "dim", "bold green", "dim", "cyan"
SINK, FRESH_SINK = "black on yellow", "bold black on yellow"
MANY, FEW = 0.25, 0.05  # of all heads have a sink there
LIVE = "live"  # the recorder whose values the display reads: f32[B,S] per layer, as reduce.sink_share() gives them
CONTEXT = 3  # tokens before one that decide how it reads: a character has at most four bytes


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
    """Turns the state of a run into lines for a screen of a given size: the prompt, and below it the response so far.

    first, start: positions of the first token that is shown, and of the first that is to be filled. inline: gaps inside a
    text are filled, which stays one text.
    """

    def __init__(
        self,
        console: Console,
        pieces: Pieces,
        start: int,
        mask_id: int | None,
        first: int | None = None,
        inline: bool = False,
    ) -> None:
        self.console, self.pieces, self.start, self.mask_id = console, pieces, start, mask_id
        self.first, self.inline = start if first is None else first, inline
        self.top = 0  # first line shown
        self.block = "░" if has_symbols(console) else "."

    def text(
        self, tokens: np.ndarray, committed: np.ndarray, fresh: np.ndarray, sinks: np.ndarray | None = None
    ) -> Text:
        """int[S] and bool[S] of one sequence as styled text; masks as blocks, about as wide as the words to come.

        sinks: f32[S], in which share of all heads a position is a sink.
        """
        width, height = self.console.size
        block = f" {3 * self.block}" if 4 * (len(tokens) - self.start) <= width * (height - 2) else self.block
        prompt: list[tuple[str, str]] = []
        response = prompt if self.inline else []
        before = tuple(int(i) for i in tokens[max(0, self.first - CONTEXT) : self.first])
        for index in range(self.first, len(tokens)):
            token, is_new = int(tokens[index]), committed[index] >= 0
            if not is_new and self.mask_id is None and index >= self.start:
                break  # not there yet
            if not is_new and token == self.mask_id:
                text, style = block, MASK
            else:
                text, style = self.pieces.read(before, token)
                style = FRESH if fresh[index] else style if is_new or style else PROMPT
                before = (*before, token)[-CONTEXT:]
            if sinks is not None:
                style = sink_style(float(sinks[index]), style)
            (prompt if index < self.start else response).append((text, style))
        break_ = [("\n", "")] if prompt and not self.inline else []
        return Text.assemble(*joined(prompt), *break_, *([] if self.inline else joined(response)), tab_size=4)

    def lines(self, text: Text) -> tuple[list[Text], str]:
        """The lines to show, and which they are if the screen is too small for all; it follows the fresh tokens."""
        width, height = self.console.size
        lines = list(text.wrap(self.console, width, overflow="fold")) if text.plain.strip() else []
        room = max(1, height - 2)
        if len(lines) <= room:
            self.top = 0
            return lines, ""
        news = [
            number
            for number, line in enumerate(lines)
            if any(str(span.style).startswith("bold") for span in line.spans)
        ]
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


def sink_style(share: float, style: str) -> str:
    """The style of a token that is a sink in this share of all layers and heads."""
    if share >= MANY:
        return FRESH_SINK if style == FRESH else SINK
    return f"{style} underline".strip() if share >= FEW else style


class Display:
    """A listener for `generate` that counts, and draws the canvas if it has one: rich asks it what to draw.

    total: steps at most. ran: seconds spent on steps so far, for the rate. delay: seconds to rest after each call.
    """

    def __init__(
        self,
        canvas: Canvas | None,
        total: int,
        ran: Callable[[], float],
        delay: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.canvas, self.total, self.delay = canvas, total, delay
        self.task = Task()
        self._ran, self._clock = ran, clock
        self._tokens = self._committed = self._first_seen = np.zeros(0)
        self._sinks: np.ndarray | None = None
        self._drawn = -FRAME

    def __call__(self, step: int, tokens: Any, committed_at: Any, record: Any = None) -> None:
        now = self._clock()
        self._tokens, self._committed = np.asarray(tokens[0]), np.asarray(committed_at[0])
        if not len(self._first_seen):
            self._first_seen = np.full(self._committed.shape, np.inf)
        self._first_seen[(self._committed >= 0) & np.isinf(self._first_seen)] = now
        if isinstance(record, dict) and LIVE in record:
            share = np.asarray(record[LIVE])[-1, :, 0].mean(axis=0)
            self._sinks = share if share.any() else self._sinks  # none: the sequence has ended
        done = int((self._committed >= 0).sum())
        self.task.update(step, "writing", self.detail(done))
        if now - self._drawn >= FRAME or step >= self.total:
            self._drawn = now
            self.task.draw()
        if self.delay:
            time.sleep(self.delay)

    def __rich__(self) -> Group:
        if self.canvas is None or not len(self._tokens):
            return Group()
        fresh = np.isfinite(self._first_seen) & (self._clock() - self._first_seen < GLOW)
        lines, where = self.canvas.lines(self.canvas.text(self._tokens, self._committed, fresh, self._sinks))
        return Group(*lines, Text(where, style="dim"))

    def detail(self, done: int) -> str:
        ran = self._ran()
        rate = f"{done / ran:.{0 if done > 100 * ran else 1}f} tokens/s" if done and ran > 1e-3 else ""
        sinks = "" if self._sinks is None else f"{int((self._sinks >= FEW).sum())} sinks"
        return ", ".join(part for part in (rate, sinks) if part)


@dataclass(frozen=True)
class Watch:
    """Shows a text while `jaxsink.respond` has it written; console: None where nobody watches."""

    console: Console | None
    delay: float = 0.0

    @cached_property
    def draws(self) -> bool:
        """The canvas too, not the steps alone."""
        return self.console is not None and sys.stdout.isatty()

    @property
    def frame(self) -> float:
        if self.draws and self.delay:
            return 0.0
        return PLAIN if self.console is None else FRAME

    @property
    def record(self) -> Mapping[str, Recorder]:
        return {LIVE: received().then(sink_share())} if self.draws else {}

    @contextmanager
    def follow(self, job: Job, ran: Callable[[], float]) -> Iterator[Display]:
        canvas = None
        if self.draws:
            assert self.console is not None
            mask_id = None if job.sampler.is_autoregressive else job.found.config.mask_id
            start, inline = job.padding + job.start, job.start < len(job.ids)
            canvas = Canvas(self.console, Pieces(job.tokenizer), start, mask_id, job.padding, inline)
        display = Display(canvas, job.total, ran, self.delay if self.draws else 0.0)
        with stage("compiling", total=job.total, unit="steps", body=display) as display.task:
            yield display
