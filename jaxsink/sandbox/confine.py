"""Starts one program in confinement: own namespaces where the kernel allows them, resource limits, an empty environment.

This file runs as `python -I -S -c SOURCE OPTIONS`, in a fresh process with one thread, because a process that has loaded
JAX must not fork. It stays as the parent of what it started: ended by SIGTERM it takes everything below with it.

With namespaces the program is the first process of a PID namespace: it sees no other process, and when it dies all its
children die. It has no network interface. Its file system is an empty, read-only one in which only the system's
libraries and the Python installation appear, read-only too. Root becomes nobody; others keep their user id and lose every
capability.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
KEPT_FLAGS = 1 | 2 | 4 | 8 | 1024 | 2048 | 4096  # as statvfs names them: ro, nosuid, nodev, noexec, noatime, …
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
NOBODY = 65534
SYSTEM_PATHS = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/etc/ld.so.cache", "/dev/null")
ENVIRONMENT = {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *values: Any) -> None:
    """A C function that returns a negative number on failure."""
    given = [value.encode() if isinstance(value, str) else value for value in values]
    if getattr(libc, name)(*given) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    call("mount", source, target, kind, ctypes.c_ulong(flags), data)


def enter_namespaces() -> None:
    """Leave the machine's networks, mounts, processes and message queues; the next child is in the new ones."""
    flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        call("unshare", flags)
        return
    call("unshare", flags | CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def build_view(root: str, python: list[str]) -> None:
    """Make `root` the root of the file system, with nothing in it but what Python needs."""
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    shown: list[str] = []
    for path in sorted({*SYSTEM_PATHS, *python}, key=len):
        if not os.path.lexists(path) or any(path.startswith(f"{parent}/") for parent in shown):
            continue
        target = root + path
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        if os.path.islink(path):
            os.symlink(os.readlink(path), target)
            continue
        if os.path.isdir(path):
            os.makedirs(target, mode=0o755, exist_ok=True)
        else:
            os.close(os.open(target, os.O_CREAT, 0o644))
        mount(path, target, None, MS_BIND | MS_REC)
        kept = os.statvfs(path).f_flag & KEPT_FLAGS & ~MS_BIND
        mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | kept)
        shown.append(path)
    mount(None, root, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir(root)
    call("pivot_root", ".", ".")
    call("umount2", ".", MNT_DETACH)
    os.chdir("/")


def limit(options: dict[str, Any]) -> None:
    """Processor seconds, memory, open files; nothing may be written to a file, and no core is dumped."""
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, options["cpu_seconds"], options["cpu_seconds"] + 1),
        (resource.RLIMIT_AS, options["memory"], options["memory"]),
        (resource.RLIMIT_NOFILE, options["files"], options["files"]),
        (resource.RLIMIT_FSIZE, 0, 0),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        resource.setrlimit(kind, (soft, hard))


def become_program(options: dict[str, Any]) -> None:
    """Turn this process into the confined program; its limit of processes it sets itself, after the start."""
    os.umask(0o022)
    if options["namespaces"]:
        build_view(options["root"], options["python"])
    else:
        os.chdir(options["root"])
    limit(options)
    if options["namespaces"] and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.execve(options["command"][0], options["command"], ENVIRONMENT)


def main(options: dict[str, Any]) -> int:
    """The exit code of the program, as a shell gives it."""
    if options["namespaces"]:
        enter_namespaces()
    program = os.fork()
    if program == 0:
        try:
            become_program(options)
        finally:
            os._exit(125)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(program, signal.SIGKILL))
    for handle in (0, *options["handles"]):
        os.close(handle)
    return os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])


if __name__ == "__main__":
    os._exit(main(json.loads(sys.argv[1])) & 0xFF)
