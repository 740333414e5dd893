"""Runs a generated program against its checks, and says whether it passed; nothing runs without explicit leave.

    verdict = run_checks(program, Checks(names=("add",), code="assert add(1, 2) == 3"), allow_code_execution=True)
    verdict.passed

Two confined processes take part (see exchange.py): the candidate holds the program, the judge runs the checks on stand-ins.
Each has one socket, to this process, and the judge alone has the key that signs the verdict; keeper.py says how both are
started, confined and ended. There are two levels, and the weaker one is taken only if it is asked for:

namespaces  processes, network, users and mounts of its own; a read-only file system with nothing in it but Python
limits      the machine's own, but Landlock lets it read nothing but Python

At both, a seccomp filter refuses all calls that a computation does not need: no file is opened for writing, and there are no
sockets, children, threads, signals to others, shared memory, keys or new namespaces; root becomes nobody; processor time,
memory and open files have limits. docs/sandbox.md has the attacks that were tried, and what is not defended against.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from jaxsink.checks import above, at_least, check_call, check_fields
from jaxsink.errors import JaxsinkError
from jaxsink.sandbox.levels import LEVELS, Level
from jaxsink.sandbox.relay import EndedError, Line, TimeUpError, judged

Reason = Literal["passed", "failed", "timed out", "crashed"]
START_PATIENCE = 60.0  # seconds for a Python process to start, on a busy machine too
END_PATIENCE = 20.0  # seconds for killed processes to be gone, on a busy machine too
ENVIRONMENT = {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from jaxsink.sandbox.keeper import main; main()"
ROOT = Path(__file__).resolve().parents[2]
HELP = {
    "namespaces": "let this user make them (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0; docker run --security-opt seccomp=unconfined, or --cap-add SYS_ADMIN), "
    'or give --sandbox limits (sandbox="limits"), which is weaker: docs/sandbox.md',
    "limits": "run on Linux 5.13 or later with landlock among its security modules (lsm=landlock,…), seccomp, and either "
    "an unprivileged user or root that may change its user",
}
_running: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()


@dataclass(frozen=True)
class Limits:
    """What a program may use. `seconds` is wall-clock time of program and checks together, without the start of the
    processes; memory is in bytes. It never has children or threads."""

    seconds: float = 10.0
    cpu_seconds: int = 8
    memory: int = 2**30
    files: int = 64

    def __post_init__(self) -> None:
        ranges = {"seconds": above(0, 1e6), "cpu_seconds": at_least(1, 1e6), "memory": at_least(1, 2**50)}
        check_fields(self, "Limits", {**ranges, "files": at_least(16, 2**20)})


@dataclass(frozen=True)
class Checks:
    """Trusted code that tests a program. `setup` runs first; then `names`, taken from the program, are put in place;
    then `code` runs, and the program has passed if nothing was raised."""

    names: tuple[str, ...]
    code: str
    setup: str = ""

    def __post_init__(self) -> None:
        check_fields(self, "Checks")


@dataclass(frozen=True)
class Verdict:
    """What came of it; `sandbox` is the level that held the program."""

    passed: bool
    reason: Reason
    detail: str
    sandbox: Level


def run_checks(
    program: str,
    checks: Checks,
    *,
    allow_code_execution: bool = False,
    sandbox: Level = "namespaces",
    limits: Limits | None = None,
) -> Verdict:
    """Run `program`, then the checks on what it defines."""
    if allow_code_execution is not True:
        raise JaxsinkError(
            "generated programs are not run without leave; read in docs/sandbox.md what the sandbox does, then pass "
            "allow_code_execution=True (--allow-code-execution)."
        )
    given = {"program": program, "checks": checks, "sandbox": sandbox, "limits": limits}
    check_call("run_checks", given, {"program": str, "checks": Checks, "sandbox": str, "limits": Limits | None})
    check_sandbox(sandbox)
    return _run(program, checks, limits or Limits(), sandbox)


@cache
def check_sandbox(level: Level) -> None:
    """See by a trial that programs can be confined at this level here; else say what is missing. No level stands in for
    another."""
    if level not in LEVELS:
        raise JaxsinkError(f"--sandbox takes {' or '.join(LEVELS)}, not {level!r}.")
    if sys.platform != "linux":
        raise JaxsinkError(f"generated programs can be confined on Linux only, and this is {sys.platform}.")
    try:
        trial = _run("x = 1", Checks(("x",), "assert x == 1"), Limits(), level)
    except JaxsinkError as error:
        found = str(error).removesuffix(".")
        raise JaxsinkError(f"{found}; {HELP[level]}.") from error
    if not trial.passed:
        raise JaxsinkError(f"the sandbox ({level}) does not work here ({trial.detail}); {HELP[level]}.")


def kill_all() -> None:
    """End all programs that run now, whose verdicts nobody waits for any more."""
    with _lock:
        for keeper in _running:
            keeper.kill()


def _run(program: str, checks: Checks, limits: Limits, level: Level) -> Verdict:
    key = secrets.token_bytes(32)
    with Line() as judge, Line() as candidate, _keeper(judge, candidate, limits, level):
        deadline = time.monotonic() + START_PATIENCE
        for side in (judge, candidate):
            _see_ready(side, deadline, limits, level)
        deadline = time.monotonic() + limits.seconds
        job = {"setup": checks.setup, "names": checks.names, "checks": checks.code, "key": key.hex()}
        try:
            judge.send(json.dumps(job).encode(), deadline)
            with suppress(EndedError):
                candidate.send(json.dumps({"program": program}).encode(), deadline)
            found = judged(judge, candidate, key, deadline)
        except TimeUpError:
            return Verdict(False, "timed out", f"no verdict within {limits.seconds:g} seconds", level)
        except EndedError:
            return Verdict(False, "crashed", "the judge ended without a verdict", level)
    passed = found["passed"] is True
    return Verdict(passed, "passed" if passed else "failed", str(found["detail"]), level)


def _see_ready(side: Line, deadline: float, limits: Limits, level: Level) -> None:
    try:
        found = json.loads(side.receive(deadline))
    except (TimeUpError, EndedError) as error:
        raise JaxsinkError(
            f"the sandbox ({level}) could not start a program; see that {sys.executable} runs with {limits.memory:,} bytes "
            f"of memory and {limits.files} open files (Limits)."
        ) from error
    if "failed" in found:
        raise JaxsinkError(f"the sandbox ({level}) cannot be set up here: {found['failed']}.")


@contextmanager
def _keeper(judge: Line, candidate: Line, limits: Limits, level: Level) -> Iterator[None]:
    """Around a run: the process that holds both sides. When this returns, none of its processes is left."""
    handles = {"judge": judge.inner.fileno(), "candidate": candidate.inner.fileno()}
    allowed = {name: value for name, value in asdict(limits).items() if name != "seconds"}
    options = json.dumps({"level": level, "handles": handles, **allowed})
    process = subprocess.Popen(
        [_python(), "-s", "-P", "-B", "-c", START, os.fspath(ROOT), options],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
        cwd="/",
        pass_fds=list(handles.values()),
        start_new_session=True,
    )
    with _lock:
        _running.add(process)
    judge.inner.close()
    candidate.inner.close()
    try:
        yield
    finally:
        with _lock:
            _running.discard(process)
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The keeper ends all when its input closes, and the kernel all when it is killed."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(END_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _python() -> str:
    """The interpreter, without `..` and links in its folder; a link of its own is what makes an environment of it."""
    folder, name = os.path.split(sys.executable)
    return os.path.join(os.path.realpath(folder), name)
