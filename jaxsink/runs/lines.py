"""Results as JSON lines that are appended and synced, each with its checksum, so that no crash takes them away.

    with LineFile(folder / "results-0001.jsonl") as results:
        results.append([{"index": 3, "text": "…"}])        # on the disk when this returns
    read_lines(folder, "results")                           # those of all parts

A process that is killed may leave a last line without its end. Readers pass over it, and the next writer cuts it away. A
whole line that was damaged or changed is found by its checksum and named; it is never used.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxsink.errors import JaxsinkError
from jaxsink.parallel.hosts import is_main
from jaxsink.runs.atomic import check_replaceable, named_errors, sync
from jaxsink.runs.files import first_words, read_bytes

CHECKED = re.compile(rb'(\{.*), "crc32": "([0-9a-f]{8})"\}', re.DOTALL)


class LineFile:
    """A file of JSON lines to append to, by one process at a time; use it in a `with`.

    On several hosts that compute together, only the first writes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = -1

    def __enter__(self) -> LineFile:
        if not is_main():
            return self
        self.path.parent.mkdir(parents=True, exist_ok=True)
        check_replaceable(self.path)
        self.handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self.handle, self.path.read_bytes().rfind(b"\n") + 1)
        sync(self.path.parent)
        return self

    def __exit__(self, *error: object) -> None:
        if self.handle >= 0:
            os.close(self.handle)

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """All lines at once; they are on the disk when this returns."""
        if self.handle < 0:
            return
        left = memoryview(b"".join(map(encoded, lines)))
        with named_errors(self.path):
            while left:
                left = left[os.write(self.handle, left) :]
            os.fsync(self.handle)


class Line(NamedTuple):
    """A line as it was written, and where it stands."""

    value: dict[str, Any]
    file: Path
    number: int

    def __str__(self) -> str:
        return f"line {self.number} of {self.file}"


def encoded(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value).encode()
    return b'%s, "crc32": "%08x"}\n' % (text[:-1], zlib.crc32(text))


def read_lines(folder: Path, kind: str) -> Iterator[Line]:
    """The whole lines of all parts (`KIND-0001.jsonl`, …); a line that is still being written does not count."""
    for path in sorted(folder.glob(f"{kind}-*.jsonl")):
        for number, raw in enumerate(read_bytes(path, largest=1 << 34).split(b"\n")[:-1], 1):
            found = CHECKED.fullmatch(raw)
            if found is None or int(found[2], 16) != zlib.crc32(found[1] + b"}"):
                raise JaxsinkError(
                    f"line {number} of {path} is damaged or was changed; remove this line and run again: only what it held "
                    "is computed anew."
                )
            try:
                yield Line(json.loads(found[1] + b"}"), path, number)
            except (ValueError, RecursionError) as error:
                raise JaxsinkError(f"line {number} of {path} is no JSON ({first_words(error)}); remove it.") from error
