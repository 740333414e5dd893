"""Runs a generated program against its checks, and says whether it passed; nothing runs without explicit leave.

    verdict = run_checks(program, Checks(names=("add",), code="assert add(1, 2) == 3"), allow_code_execution=True)
    verdict.passed

Two confined processes take part (see exchange.py): the candidate holds the program, the judge runs the checks on stand-ins
and alone can write the verdict. There is no token to steal and no marker to print: the program never shares a process, a
pipe or a file with what decides. confine.py says how each process is confined: a process group of its own, limits
on processor time, memory, files and processes, an empty environment, no output, a wall-clock limit, and, where the kernel
allows namespaces, no network, no other processes, and a read-only file system with nothing in it but Python.

Not defended against:
- holes in the kernel or in CPython. For programs by someone who attacks this very sandbox use a virtual machine.
- without namespaces (containers often forbid them; `isolation()` tells): files that the user may read can be read. Writing,
  sockets and other processes are then refused by limits and by an audit hook inside Python, which native code
  that comes with the program could go around; and for root the kernel does not limit the number of processes.
- a program that knows the benchmark by heart and answers from memory. It sees the arguments of a check, never the expected
  result, but nothing here can tell remembering from solving.
- a solution that returns objects of its own where a check compares: it fails, although it might be right.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jaxsink.errors import JaxsinkError

Layer = Literal["namespaces", "audit"]
Reason = Literal["passed", "failed", "timed out", "crashed"]
START_PATIENCE = 60.0  # seconds for two Python processes to start, on a busy machine too
END_PATIENCE = 2.0  # seconds for a confined process to go when asked to
LONGEST_REPORT = 2**16


@dataclass(frozen=True)
class Limits:
    """What a program may use. `seconds` is wall-clock time of program and checks together, without the start of the
    processes; memory is in bytes.

    processes: how many its user may have, itself included; 1 means no children and no threads.
    layers: fences on top of limits, process group and timeout. "namespaces" are used where the kernel allows them.
    """

    seconds: float = 10.0
    cpu_seconds: int = 8
    memory: int = 2**30
    files: int = 64
    processes: int = 1
    layers: tuple[Layer, ...] = ("namespaces", "audit")


@dataclass(frozen=True)
class Checks:
    """Trusted code that tests a program. `setup` runs first; then `names`, taken from the program, are put in place;
    then `code` runs, and the program has passed if nothing was raised."""

    names: tuple[str, ...]
    code: str
    setup: str = ""


@dataclass(frozen=True)
class Verdict:
    """What came of it; `isolation` is what held the program: "namespaces" or "limits"."""

    passed: bool
    reason: Reason
    detail: str
    isolation: Literal["namespaces", "limits"]


def run_checks(
    program: str, checks: Checks, *, allow_code_execution: bool = False, limits: Limits | None = None
) -> Verdict:
    """Run `program`, then the checks on what it defines."""
    if allow_code_execution is not True:
        raise JaxsinkError(
            "generated programs are not run without leave; read in jaxsink/sandbox/runner.py what the sandbox does, then "
            "pass allow_code_execution=True (--allow-code-execution)."
        )
    limits = limits or Limits()
    namespaces = isolation() == "namespaces" and "namespaces" in limits.layers
    return _run(program, checks, limits, namespaces)


@cache
def isolation() -> Literal["namespaces", "limits"]:
    """What this machine can offer, found out by a trial."""
    if sys.platform != "linux":
        raise JaxsinkError(f"generated programs can be confined on Linux only, and this is {sys.platform}.")
    with suppress(JaxsinkError):
        if _run("x = 1", Checks(("x",), "assert x == 1"), Limits(), namespaces=True).passed:
            return "namespaces"
    return "limits"


def _run(program: str, checks: Checks, limits: Limits, namespaces: bool) -> Verdict:
    held: Literal["namespaces", "limits"] = "namespaces" if namespaces else "limits"
    shared = {"namespaces": namespaces, "audit": "audit" in limits.layers, "processes": limits.processes}
    with ExitStack() as stack:
        inner, outer = (stack.enter_context(end) for end in socket.socketpair())
        read, write = os.pipe()
        stack.callback(os.close, read)
        with os.fdopen(write, "wb") as report:
            job = {**shared, "program": program}
            _start(stack, "candidate", job, (inner.fileno(),), limits, namespaces)
            job = {**shared, "setup": checks.setup, "names": list(checks.names), "checks": checks.code}
            _start(stack, "judge", job, (outer.fileno(), report.fileno()), limits, namespaces)
        inner.close()
        outer.close()
        started = _read(read, START_PATIENCE, 1)
        raw = _read(read, limits.seconds, LONGEST_REPORT) if started else None
    if not started:
        raise JaxsinkError(
            f"the sandbox ({held}) could not start a program; see that {sys.executable} runs with {limits.memory:,} bytes "
            f"of memory and {limits.files} open files (Limits)."
        )
    if raw is None:
        return Verdict(False, "timed out", f"no verdict within {limits.seconds:g} seconds", held)
    if not raw:
        return Verdict(False, "crashed", "the judge ended without a verdict", held)
    found = json.loads(raw)
    passed = found["passed"] is True
    return Verdict(passed, "passed" if passed else "failed", str(found["detail"]), held)


def _start(
    stack: ExitStack, role: str, job: Mapping[str, Any], handles: tuple[int, ...], limits: Limits, namespaces: bool
) -> None:
    """Start one side in an empty directory of its own; the stack ends it and removes the directory."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxsink-", ignore_cleanup_errors=True)))
    root, task = folder / "root", folder / "job.json"
    root.mkdir()
    task.write_text(json.dumps(job))
    numbers = [str(handle) for handle in (*handles, -1)][:2]
    options = {
        **asdict(limits),
        "namespaces": namespaces,
        "root": os.fspath(root),
        "python": sorted({sys.base_prefix, sys.prefix}),
        "command": [sys.executable, "-I", "-B", "-c", _source("exchange"), role, *numbers],
        "handles": handles,
    }
    with task.open("rb") as stdin:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", _source("confine"), json.dumps(options)],
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            pass_fds=handles,
            start_new_session=True,
        )
    task.unlink()  # the judge's holds the expected results, which no program is to find on the disk
    stack.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a confined process and all below it: first by its own parent, which knows them, then by force."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    end = time.monotonic() + END_PATIENCE
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and time.monotonic() < end:
        time.sleep(0.002)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the group keeps its number until its leader is waited for
    process.wait()


def _read(handle: int, seconds: float, most: int) -> bytes | None:
    """What comes through a pipe, to its end or to `most` bytes; None if the time is up before."""
    deadline = time.monotonic() + seconds
    parts = b""
    while (left := deadline - time.monotonic()) > 0:
        if select.select([handle], [], [], left)[0]:
            part = os.read(handle, most - len(parts))
            parts += part
            if not part or len(parts) == most:
                return parts
    return None


@cache
def _source(name: str) -> str:
    """A file of this package as text: inside the sandbox there is no jaxsink to import it from."""
    return Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
