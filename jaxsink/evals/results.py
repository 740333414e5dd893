"""Results on the disk: one JSON line per question and condition, appended and synced, so that no crash takes them away.

    DIR/manifest.json         what is evaluated, and how
    DIR/results-0001.jsonl    answers and scores of shard 1; one file per shard, each with a single writer
    DIR/speed-0001.jsonl      how long its batches took
    DIR/results.json          the summary

A process that is killed may leave a last line without its end. Readers pass over it, and the next writer cuts it away.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from jaxsink.errors import JaxsinkError

Key = tuple[int, str]  # (index of the question, label of the condition)
RESULTS, SPEED = "results", "speed"


class LineFile:
    """A file of JSON lines that one process at a time appends to; use it in a `with`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = -1

    def __enter__(self) -> LineFile:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self.handle)
            raise JaxsinkError(
                f"another process is writing to {self.path}; wait for it to end, or give each its own --shard."
            ) from error
        os.ftruncate(self.handle, self.path.read_bytes().rfind(b"\n") + 1)
        sync_folder(self.path.parent)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self.handle)

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """All lines at once; they are on the disk when this returns."""
        left = memoryview("".join(json.dumps(line) + "\n" for line in lines).encode())
        while left:
            left = left[os.write(self.handle, left) :]
        os.fsync(self.handle)


def file_of(folder: Path, kind: str, shard: int) -> Path:
    return folder / f"{kind}-{shard:04d}.jsonl"


def read_lines(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    """The whole lines of all shards; a line that is still being written does not count."""
    for path in sorted(folder.glob(f"{kind}-*.jsonl")):
        whole = path.read_bytes().split(b"\n")[:-1]
        for number, raw in enumerate(whole, 1):
            try:
                line = json.loads(raw)
                if not isinstance(line, dict):
                    raise ValueError("no object")
            except ValueError as error:
                raise JaxsinkError(
                    f"line {number} of {path} is damaged ({error}); remove this line and run again."
                ) from error
            yield line


def read_results(folder: Path) -> dict[Key, dict[str, Any]]:
    """Every answer once, by question and condition, in that order."""
    found: dict[Key, dict[str, Any]] = {}
    for line in read_lines(folder, RESULTS):
        try:
            found.setdefault((int(line["index"]), str(line["condition"])), line)
        except (KeyError, TypeError, ValueError) as error:
            raise JaxsinkError(
                f"{folder} has a line without an index or a condition; remove the line {json.dumps(line)[:80]}."
            ) from error
    return dict(sorted(found.items()))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a file whole; several hosts may do so at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """So that a file's name survives a power cut like its contents."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
