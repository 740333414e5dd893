"""The two programs that run inside the sandbox: a *candidate* that holds a generated program, and a *judge* that tests it.

They are separate processes. The judge runs the benchmark's checks on stand-ins: when a check calls the solution, the call
goes over a socket to the candidate, and plain data comes back. So the generated program shares no memory with the checks:
it can patch `assert`, `builtins` or `sys.exit`, and return objects that claim to equal everything, but all that ever
reaches a check is numbers, texts and containers of them. Only the judge has the pipe that carries the verdict.

This file runs as `python -I -c SOURCE ROLE` and uses the standard library alone.
"""

from __future__ import annotations

import builtins
import json
import numbers
import os
import resource
import socket
import sys
from itertools import islice
from typing import Any, NoReturn

LARGEST_MESSAGE = 2**22
LONGEST_ITERATION = 10_000
PR_SET_DUMPABLE = 4
STARTED = b" "  # on the way of the verdict: both sides are up, and the program's time begins
CONTAINERS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


class NotPlainError(TypeError):
    """A check looked into a value that is not plain data."""


class Channel:
    """Length-prefixed JSON messages over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, message: Any) -> None:
        raw = json.dumps(message).encode()
        if len(raw) > LARGEST_MESSAGE:
            raise ValueError(f"a value of {len(raw)} bytes is too large to be passed on")
        self.connection.sendall(len(raw).to_bytes(4, "big") + raw)

    def receive(self) -> Any:
        size = int.from_bytes(self._read(4), "big")
        if size > LARGEST_MESSAGE:
            raise ValueError(f"a message of {size} bytes is too large")
        return json.loads(self._read(size))

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self.connection.recv(size - len(parts))
            if not part:
                raise EOFError("the program ended")
            parts += part
        return bytes(parts)


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
        self.channel.send([action, target, encode(values, self._number)])
        kind, content = self.channel.receive()
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


def _error_named(name: str, text: str) -> Exception:
    """The program's exception, if it is one of Python's own: some checks expect a certain one."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
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
            action, target, values = self.channel.receive()
            try:
                if failure is not None:
                    raise failure
                result = self.act(action, target, decode(values, self.objects.__getitem__))
                self.channel.send(["value", encode(result, self.keep)])
            except BaseException as error:
                self.channel.send(["error", [type(error).__name__, _text_of(error)]])


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:500]
    except BaseException:
        return "its message cannot be shown"


def forbid_dangerous_calls() -> None:
    """A second fence, for machines without namespaces: Python itself then refuses files, processes and sockets.

    The hook cannot be taken away again. Its names are its own, so that patched builtins do not reach it.
    """
    refusal, no_module, text, number = PermissionError, ImportError, str, int
    is_a, starts_with = isinstance, str.startswith
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    forbidden = (
        "socket.",
        "subprocess.",
        "shutil.",
        "tempfile.",
        "pty.",
        "resource.",
        "gc.",
        "os.fork",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "os.system",
        "os.kill",
        "signal.pthread_kill",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.mkdir",
        "os.link",
        "os.symlink",
        "os.truncate",
        "os.chmod",
        "os.chown",
        "os.utime",
        "os.setxattr",
        "os.chdir",
    )

    def hook(event: str, details: Any) -> None:
        if starts_with(event, "ctypes."):
            raise no_module(event)  # NumPy can do without, if it is told so in this way
        if starts_with(event, forbidden):
            raise refusal(event)
        if event == "open" and is_a(details[2], number) and details[2] & writing:
            raise refusal("writing a file")
        if event == "open" and is_a(details[0], text) and starts_with(details[0], "/proc/"):
            raise refusal("reading /proc")

    sys.addaudithook(hook)


def hide_from_other_processes() -> None:
    """Without namespaces the candidate could look for the judge in /proc; the kernel then shows it a closed door."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def main(role: str, connection: str, verdict: str) -> None:
    job = json.load(sys.stdin)
    channel = Channel(socket.socket(fileno=int(connection)))
    resource.setrlimit(resource.RLIMIT_NPROC, (job["processes"], job["processes"]))
    if role == "candidate":
        channel.send("ready")
        if job["audit"]:
            forbid_dangerous_calls()
        Candidate(channel).serve(job["program"])
    if not job["namespaces"]:
        hide_from_other_processes()
    channel.receive()
    os.write(int(verdict), STARTED)
    try:
        Judge(channel).run(job["setup"], job["names"], job["checks"])
        report = {"passed": True, "detail": ""}
    except BaseException as error:
        report = {"passed": False, "detail": f"{type(error).__name__}: {_text_of(error)}"}
    os.write(int(verdict), json.dumps(report).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
