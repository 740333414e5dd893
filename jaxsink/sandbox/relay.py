"""The harness's ends of the two sockets, and what passes between judge and candidate."""

from __future__ import annotations

import hmac
import json
import socket
import time
from typing import Any

from jaxsink.sandbox.exchange import LARGEST_MESSAGE, QUESTION, SIGNATURE, VERDICT, sign

Found = dict[str, Any]


class TimeUpError(Exception):
    """The deadline passed."""


class EndedError(Exception):
    """The process at the other end is gone, or sends what no process of ours does."""


class Line:
    """A socket to one side. `inner` is the end that the side gets."""

    def __init__(self) -> None:
        self.outer, self.inner = socket.socketpair()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.outer.close()
        self.inner.close()

    def send(self, message: bytes, deadline: float) -> None:
        left = memoryview(len(message).to_bytes(4, "big") + message)
        while left:
            self._wait_until(deadline)
            try:
                left = left[self.outer.send(left, socket.MSG_NOSIGNAL) :]
            except TimeoutError as error:
                raise TimeUpError from error
            except OSError as error:
                raise EndedError from error

    def receive(self, deadline: float) -> bytes:
        size = int.from_bytes(self._read(4, deadline), "big")
        if size > LARGEST_MESSAGE:
            raise EndedError
        return self._read(size, deadline)

    def _read(self, size: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            self._wait_until(deadline)
            try:
                part = self.outer.recv(min(size - len(parts), 2**16))
            except TimeoutError as error:
                raise TimeUpError from error
            except OSError as error:
                raise EndedError from error
            if not part:
                raise EndedError
            parts += part
        return bytes(parts)

    def _wait_until(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeUpError
        self.outer.settimeout(left)


def judged(judge: Line, candidate: Line, key: bytes, deadline: float) -> Found:
    """Pass each question of the judge to the candidate and its answer back, until there is a verdict with the right sign.

    An answer is read only after a question, and nothing that a candidate sends is ever read as a verdict.
    """
    while True:
        message = judge.receive(deadline)
        kind, content = message[:1], message[1:]
        if kind == VERDICT:
            signature, body = content[:SIGNATURE], content[SIGNATURE:]
            if not hmac.compare_digest(signature, sign(key, body)):
                raise EndedError
            return json.loads(body)
        if kind != QUESTION:
            raise EndedError
        judge.send(answer(candidate, content, deadline), deadline)


def answer(candidate: Line, question: bytes, deadline: float) -> bytes:
    """Nothing, if the candidate is gone."""
    try:
        candidate.send(question, deadline)
        return candidate.receive(deadline)
    except EndedError:
        return b""
