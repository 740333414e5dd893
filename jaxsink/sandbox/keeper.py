"""The process that starts the judge and the candidate of one run, confines both, and ends them.

It runs as `python -c "… keeper.main()" ROOT OPTIONS`, fresh and with one thread, because a process that has loaded JAX must
not fork. The tree, with the kernel's promise to kill each when the one above it ends:

    harness ─ keeper ┬ steward ─ judge         (stewards only at the level namespaces: a judge or candidate is the first
                     └ steward ─ candidate      process of a PID namespace, so nothing in it outlives it)

All start here by fork alone, so nothing inside needs an interpreter, a file or a directory of its own. The keeper waits
until the harness closes its standard input, by will or by dying.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from jaxsink.sandbox import exchange, landlock, seccomp, view
from jaxsink.sandbox.kernel import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    KernelError,
    control,
    die_with_parent,
    drop_capabilities,
    fork_tied,
)

USERS = {"judge": view.JUDGE, "candidate": view.NOBODY}
LIFELINE = 0


@dataclass(frozen=True)
class Confinement:
    """As the harness asks for it. handles: of each role, a socket to the harness."""

    level: str
    cpu_seconds: int
    memory: int
    files: int
    handles: Mapping[str, int]


def main() -> None:
    wanted = Confinement(**json.loads(sys.argv[1]))
    die_with_parent(LIFELINE)
    control(PR_SET_CHILD_SUBREAPER, 1)  # whoever loses its parent below comes to this process, and is waited for
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if the machine runs out of memory, the run goes on without the program
    shown = view.shown_paths()
    view.settle_imports({path: path for path in shown})
    ties = [start(role, wanted, shown) for role in wanted.handles]
    for handle in wanted.handles.values():
        os.close(handle)
    while os.read(LIFELINE, 1):
        pass
    for child, _ in ties:
        os.kill(child, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def start(role: str, wanted: Confinement, shown: list[str]) -> tuple[int, int]:
    """Start one side; (its process, the pipe that it is tied by)."""
    tie = fork_tied()
    if tie[0] == 0:
        report_failure(wanted.handles[role], lambda: become(role, wanted, shown, tie[1]))
    return tie


def report_failure(handle: int, work: Callable[[], None]) -> NoReturn:
    """What fails before a program runs is said to the harness."""
    try:
        work()
    except BaseException as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        with suppress(OSError):
            exchange.Channel(handle).send(json.dumps({"failed": text}).encode())
    finally:
        os._exit(1)


def become(role: str, wanted: Confinement, shown: list[str], tie: int) -> None:
    """Turn this process, or at the level namespaces its child, into the judge or the candidate."""
    handle = wanted.handles[role]
    os.setsid()
    os.dup2(1, 0)
    keep_open(handle, tie)
    if wanted.level == "namespaces":
        die_with_parent(tie)
        view.enter_namespaces()
        die_with_parent(tie)  # again: new credentials may have undone it
        child, inner = fork_tied()
        if child:
            os.close(handle)
            os.waitpid(child, 0)
            return
        os.close(tie)
        os.setsid()  # a group of its own, apart from its steward's
        report_failure(handle, lambda: serve(role, wanted, shown, inner))
    serve(role, wanted, shown, tie)


def serve(role: str, wanted: Confinement, shown: list[str], tie: int) -> None:
    """Give up everything that a computation does not need, and do what the role asks for."""
    os.chdir("/")
    os.umask(0o022)
    if wanted.level == "namespaces":
        view.build_view(shown)
    elif not landlock.version():
        raise KernelError(38, "landlock: the kernel does not have it")
    folders = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in shown}
    limit(wanted)
    drop_user(USERS[role])
    control(PR_SET_DUMPABLE, 0)  # closes /proc/PID to others of the same user
    die_with_parent(tie)
    os.close(tie)
    control(PR_SET_NO_NEW_PRIVS, 1)
    if landlock.version():
        landlock.restrict(folders.values())
    settle_folders(folders)
    seccomp.install()
    exchange.serve(role, exchange.Channel(wanted.handles[role]))


def keep_open(*handles: int) -> None:
    """Close all but the standard ones, which lead nowhere, and these."""
    before = 2
    for handle in sorted(handles):
        os.closerange(before + 1, handle)
        before = handle
    os.closerange(before + 1, os.sysconf("SC_OPEN_MAX"))


def limit(wanted: Confinement) -> None:
    """Processor seconds, memory, open files; no children, no file may grow, nothing is locked or queued, no core."""
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, wanted.cpu_seconds, wanted.cpu_seconds + 1),
        (resource.RLIMIT_AS, wanted.memory, wanted.memory),
        (resource.RLIMIT_NOFILE, wanted.files, wanted.files),
        (resource.RLIMIT_NPROC, 1, 1),
        (resource.RLIMIT_FSIZE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        most = resource.getrlimit(kind)[1]
        hard = hard if most == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(kind, (min(soft, hard), hard))


def drop_user(user: int) -> None:
    """Root becomes somebody with no rights; others stay who they are."""
    if os.geteuid() == 0:
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        except OSError as error:
            raise KernelError(
                error.errno, "setuid: root cannot become nobody (it needs CAP_SETUID, CAP_SETGID)"
            ) from error
    drop_capabilities()


def settle_folders(folders: Mapping[str, int]) -> None:
    """Where only root may go to the folder of its Python, what was opened before leads there."""
    closed = {path: handle for path, handle in folders.items() if not os.access(path, os.R_OK)}
    if closed:
        control(PR_SET_DUMPABLE, 1)  # for its own /proc/self/fd; judge and candidate are different users then
        view.settle_imports({path: f"/proc/self/fd/{closed[path]}" if path in closed else path for path in folders})
    close_all(handle for path, handle in folders.items() if path not in closed)


def close_all(handles: Iterable[int]) -> None:
    for handle in handles:
        os.close(handle)
