"""The two sides of a run: a *candidate* that holds a generated program, and a *judge* that tests it.

They are separate processes that share no memory and no descriptor: each has one socket, to the harness, which passes the
messages on. The judge runs the benchmark's checks on stand-ins: when a check calls the solution, the call goes to the
candidate, and plain data comes back. So the generated program can patch `assert`, `builtins` or `sys.exit`, and return
objects that claim to equal everything, but all that ever reaches a check is numbers, texts and containers of them. The
judge signs its verdict with a key that the harness gave to it alone.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import numbers
import os
from itertools import islice
from typing import Any, NoReturn

LARGEST_MESSAGE = 2**22
LONGEST_ITERATION = 10_000
QUESTION, VERDICT = b"?", b"!"  # how a message of the judge begins
SIGNATURE = 32  # bytes
CONTAINERS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


class NotPlainError(TypeError):
    """A check looked into a value that is not plain data."""


class Channel:
    """Length-prefixed messages over an open socket."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def send(self, message: bytes) -> None:
        if len(message) > LARGEST_MESSAGE:
            raise ValueError(f"a value of {len(message)} bytes is too large to be passed on")
        left = memoryview(len(message).to_bytes(4, "big") + message)
        while left:
            left = left[os.write(self.handle, left) :]

    def receive(self) -> bytes:
        return self._read(int.from_bytes(self._read(4), "big"))

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = os.read(self.handle, min(size - len(parts), 2**16))
            if not part:
                raise EOFError("the harness ended")
            parts += part
        return bytes(parts)


def sign(key: bytes, message: bytes) -> bytes:
    return hashlib.blake2b(message, key=key, digest_size=SIGNATURE).digest()


def encode(value: Any, keep: Any) -> Any:
    """A value as JSON: plain data as it is, containers with a tag, anything else as a number from `keep(value)`."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):  # NumPy's integers too
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    if isinstance(value, dict):
        return {"dict": [[encode(key, keep), encode(item, keep)] for key, item in value.items()]}
    for tag, kind in CONTAINERS.items():
        if isinstance(value, kind):
            return {tag: [encode(item, keep) for item in value]}
    return {"object": keep(value)}


def decode(data: Any, find: Any) -> Any:
    """What `encode` wrote; `find(number)` gives what was not plain."""
    if not isinstance(data, dict):
        return data
    ((tag, content),) = data.items()
    if tag in CONTAINERS:
        return CONTAINERS[tag](decode(item, find) for item in content)
    if tag == "dict":
        return {decode(key, find): decode(item, find) for key, item in content}
    if tag == "complex":
        return complex(*content)
    return bytes.fromhex(content) if tag == "bytes" else find(content)


class Remote:
    """The judge's stand-in for something of the candidate: it can be called, read and iterated, and equals nothing."""

    def __init__(self, judge: Judge, number: int) -> None:
        object.__setattr__(self, "_place", (judge, number))

    def _ask(self, action: str, *values: Any) -> Any:
        judge, number = object.__getattribute__(self, "_place")
        return judge.ask(action, number, *values)

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self._ask("call", values, named)

    def __getattr__(self, name: str) -> Any:
        return self._ask("read", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("write", name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __iter__(self) -> Any:
        return iter(self._ask("iterate"))

    def _refuse(self, *_: Any) -> NoReturn:
        raise NotPlainError("the program gave an object where the check needs plain data")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __contains__ = __hash__ = _refuse  # pyright: ignore


class Judge:
    """Runs the checks. Whatever they do with the solution is asked of the candidate."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def ask(self, action: str, target: int | str, *values: Any) -> Any:
        self.channel.send(QUESTION + json.dumps([action, target, encode(values, self._number)]).encode())
        answer = self.channel.receive()
        if not answer:
            raise EOFError("the program ended")
        kind, content = json.loads(answer)
        if kind == "value":
            return decode(content, lambda number: Remote(self, int(number)))
        raise _error_named(*map(str, content))

    @staticmethod
    def _number(value: Any) -> int:
        if isinstance(value, Remote):
            return object.__getattribute__(value, "_place")[1]
        raise NotPlainError(f"a check passes on a {type(value).__name__}, which is not plain data")

    def run(self, setup: str, names: list[str], checks: str) -> None:
        space: dict[str, Any] = {"__name__": "checks"}
        exec(compile(setup, "<setup>", "exec"), space)
        for name in names:
            space[name] = self.ask("name", name)
        exec(compile(checks, "<checks>", "exec"), space)

    def serve(self, job: dict[str, Any]) -> None:
        try:
            self.run(job["setup"], job["names"], job["checks"])
            report = {"passed": True, "detail": ""}
        except BaseException as error:
            report = {"passed": False, "detail": f"{type(error).__name__}: {_text_of(error)}"}
        body = json.dumps(report).encode()
        self.channel.send(VERDICT + sign(bytes.fromhex(job["key"]), body) + body)


def _error_named(name: str, text: str) -> Exception:
    """The program's exception, if it is one of Python's own: some checks expect a certain one.

    An end of iteration is not passed on: raised by a check's `all(map(…))` it would look like the end of the cases.
    """
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and name not in ("StopIteration", "StopAsyncIteration"):
        try:
            return kind(text)
        except TypeError:
            pass
    return RuntimeError(f"{name}: {text}")


class Candidate:
    """Holds the generated program's names and objects, and does to them what the judge asks."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.objects: list[Any] = []
        self.space: dict[str, Any] = {"__name__": "candidate"}

    def keep(self, value: Any) -> int:
        self.objects.append(value)
        return len(self.objects) - 1

    def act(self, action: str, target: int | str, values: tuple[Any, ...]) -> Any:
        if isinstance(target, str):
            if target not in self.space:
                raise NameError(f"the program defines no {target!r}")
            return self.space[target]
        thing = self.objects[target]
        if action == "call":
            return thing(*values[0], **values[1])
        if action == "iterate":
            return list(islice(thing, LONGEST_ITERATION))
        if action == "write":
            return setattr(thing, *values)
        return getattr(thing, values[0]) if action == "read" else thing[values[0]]

    def serve(self, program: str) -> NoReturn:
        failure: BaseException | None = None
        try:
            exec(compile(program, "<program>", "exec"), self.space)
        except BaseException as error:
            failure = error
        while True:
            action, target, values = json.loads(self.channel.receive())
            try:
                if failure is not None:
                    raise failure
                result = self.act(action, target, decode(values, self.objects.__getitem__))
                self._answer("value", encode(result, self.keep))
            except BaseException as error:
                self._answer("error", [type(error).__name__, _text_of(error)])

    def _answer(self, kind: str, content: Any) -> None:
        self.channel.send(json.dumps([kind, content]).encode())


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:500]
    except BaseException:
        return "its message cannot be shown"


def serve(role: str, channel: Channel) -> None:
    """Say that all is set up, and do what the harness then sends: it may send it only now."""
    channel.send(json.dumps({"ready": role}).encode())
    job = json.loads(channel.receive())
    if role == "judge":
        Judge(channel).serve(job)
    else:
        Candidate(channel).serve(job["program"])
