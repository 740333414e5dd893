"""What a confined process sees: namespaces of its own, a file system with nothing in it but Python, real paths."""

from __future__ import annotations

import ctypes
import os
import re
import site
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress

from jaxsink.sandbox.kernel import KernelError, call

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
NAMESPACES = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
KEPT_FLAGS = 1 | 2 | 4 | 8 | 1024 | 2048  # as statvfs names them: ro, nosuid, nodev, noexec, noatime, nodiratime
MNT_DETACH = 2
JUDGE, NOBODY = 65533, 65534  # what root becomes
NULL = "/dev/null"
SYSTEM = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", NULL)
STAGE = "/proc"  # a directory that is always there, and holds no Python


def shown_paths() -> list[str]:
    """All that a program may read: the libraries of the system and of Python; of nested paths the outermost."""
    python = [f"{os.path.realpath(prefix)}/{name}" for prefix in site.PREFIXES for name in ("lib", "lib64")]
    base = [f"{os.path.realpath(sys.base_prefix)}/{name}" for name in ("lib", "lib64")]
    shown: list[str] = []
    for path in sorted({*SYSTEM, *python, *base}, key=len):
        if os.path.lexists(path) and not any(path.startswith(f"{parent}/") for parent in shown):
            shown.append(path)
    return shown


def settle_imports(names: Mapping[str, str]) -> None:
    """Let Python look for modules below these paths only, without `..` and links, under the names that they have inside."""

    def settled(paths: Iterable[str]) -> list[str]:
        found = [os.path.realpath(path) for path in paths]
        pairs = [(path, shown) for path in found for shown in names if f"{path}/".startswith(f"{shown}/")]
        return list(dict.fromkeys(names[shown] + path.removeprefix(shown) for path, shown in pairs))

    sys.path[:] = settled(sys.path)
    for module in list(sys.modules.values()):
        if isinstance(getattr(module, "__path__", None), list):
            module.__path__[:] = settled(module.__path__)
    sys.path_importer_cache.clear()


def enter_namespaces() -> None:
    """Leave the machine's networks, mounts, processes and message queues; the next child is in the new ones.

    Root may do so at once. Others, and root in most containers, need a user namespace, in which root has three users.
    """
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        with suppress(KernelError):
            call("unshare", NAMESPACES)
            return
    count = f"\n{JUDGE} {JUDGE} 2" if user == 0 else ""
    read, write = os.pipe()
    target, helper = os.getpid(), os.fork()
    if helper == 0:  # stays outside, where it may say who is who inside
        os.close(write)
        ready = os.read(read, 1)
        done = ready and map_users(target, f"{user} {user} 1{count}", f"{group} {group} 1{count}", user != 0)
        os._exit(0 if done else 1)
    try:
        call("unshare", NAMESPACES | CLONE_NEWUSER)
        os.write(write, b" ")
    finally:
        os.close(write)
        os.close(read)
        failed = os.waitpid(helper, 0)[1]
    if failed:
        raise KernelError(
            1, "user namespace: its users cannot be mapped (root needs CAP_SETUID, CAP_SETGID, CAP_SETFCAP)"
        )


def map_users(target: int, users: str, groups: str, deny_groups: bool) -> bool:
    try:
        for name, text in (("setgroups", "deny" if deny_groups else "allow"), ("uid_map", users), ("gid_map", groups)):
            with open(f"/proc/{target}/{name}", "w") as file:
                file.write(text)
    except OSError:
        return False
    return True


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    try:
        call("mount", source, target, kind, ctypes.c_ulong(flags), data)
    except KernelError as error:
        raise KernelError(error.errno, f"{error.strerror} ({target.removeprefix(STAGE) or target})") from error


def mount_points() -> list[str]:
    """Of every file system that is mounted."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return [re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), line.split()[4]) for line in file]


def build_view(shown: Iterable[str]) -> None:
    """Make a new root of the file system in which only these paths appear, read-only with all that is mounted below them."""
    mounted = mount_points()
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", STAGE, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path in shown:
        target = STAGE + path
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        if os.path.islink(path):
            os.symlink(os.readlink(path), target)
            continue
        if os.path.isdir(path):
            os.makedirs(target, mode=0o755, exist_ok=True)
        else:
            os.close(os.open(target, os.O_CREAT, 0o644))
        mount(path, target, None, MS_BIND | MS_REC)
        for inner in (path, *(below for below in mounted if below.startswith(f"{path}/"))):
            make_read_only(STAGE + inner, devices=inner == NULL)
    mount(None, STAGE, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir(STAGE)
    call("pivot_root", ".", ".")
    call("umount2", ".", MNT_DETACH)
    os.chdir("/")


def make_read_only(target: str, devices: bool) -> None:
    if os.path.exists(target):
        kept = os.statvfs(target).f_flag & KEPT_FLAGS | (0 if devices else MS_NODEV)
        mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | kept)
