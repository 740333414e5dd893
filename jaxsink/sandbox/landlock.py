"""Landlock: the kernel lets a process read below certain paths, and refuses every other file, for good."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable

from jaxsink.sandbox.kernel import KernelError, system_call

CREATE, ADD, RESTRICT = 444, 445, 446  # on every machine
ASK_VERSION, PATH_BENEATH = 1, 1
READ_FILE, READ_DIR = 1 << 2, 1 << 3


class Ruleset(ctypes.Structure):
    """What is refused unless a rule allows it: bits of file accesses, of TCP, of signals and abstract sockets."""

    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """Of the kernel's Landlock; 0 without."""
    try:
        return system_call("landlock", CREATE, None, 0, ASK_VERSION)
    except KernelError:
        return 0


def everything(known: int) -> tuple[Ruleset, int]:
    """All that this version can refuse, and the size of what says so."""
    bits = 13 if known < 2 else 14 if known < 3 else 15 if known < 5 else 16
    rules = Ruleset((1 << bits) - 1, 3 if known >= 4 else 0, 3 if known >= 6 else 0)
    return rules, 24 if known >= 6 else 16 if known >= 4 else 8


def restrict(readable: Iterable[int]) -> None:
    """Refuse this process all files but those below the open paths given, and these for reading only."""
    rules, size = everything(version())
    handle = system_call("landlock", CREATE, ctypes.byref(rules), size, 0)
    for path in readable:
        allowed = READ_FILE | (READ_DIR if stat.S_ISDIR(os.fstat(path).st_mode) else 0)
        system_call("landlock", ADD, handle, PATH_BENEATH, ctypes.byref(Beneath(allowed, path)), 0)
    system_call("landlock", RESTRICT, handle, 0)
    os.close(handle)
