"""Calls of the kernel that Python has no function for, and how a process is tied to its parent."""

from __future__ import annotations

import ctypes
import os
import select
import signal
from ctypes import Structure, c_int, c_uint32

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
CAPABILITY_VERSION = 0x20080522  # the third, with 64 bits in two halves

libc = ctypes.CDLL(None, use_errno=True)


class KernelError(OSError):
    """A call that failed; its text names the call, for the user."""


class CapabilityHeader(Structure):
    _fields_ = (("version", c_uint32), ("pid", c_int))


def call(name: str, *values: object) -> int:
    """A C function that returns a negative number on failure."""
    given = [os.fsencode(value) if isinstance(value, str) else value for value in values]
    found = getattr(libc, name)(*given)
    if found < 0:
        code = ctypes.get_errno()
        raise KernelError(code, f"{name}: {os.strerror(code)}")
    return found


def system_call(name: str, number: int, *values: object) -> int:
    """A call that the C library has no function for."""
    libc.syscall.restype = ctypes.c_long
    whole = [ctypes.c_long(value) if isinstance(value, int) else value for value in values]
    found = libc.syscall(ctypes.c_long(number), *whole)
    if found < 0:
        code = ctypes.get_errno()
        raise KernelError(code, f"{name}: {os.strerror(code)}")
    return found


def control(option: int, value: int) -> None:
    """prctl with one argument."""
    call("prctl", option, ctypes.c_ulong(value), *(ctypes.c_ulong(0),) * 3)


def drop_capabilities() -> None:
    """None is left; a change of the user id does that for root, and nobody else."""
    header = CapabilityHeader(CAPABILITY_VERSION, 0)
    call("capset", ctypes.byref(header), (c_uint32 * 6)())


def is_closed(pipe: int) -> bool:
    """No process holds the writing end of a pipe any more."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return any(found & select.POLLHUP for _, found in poll.poll(0))


def die_with_parent(lifeline: int) -> None:
    """From now on the kernel kills this process when its parent ends, however that ends.

    lifeline: a pipe whose writing end only the parent holds, since it may have ended before it could be asked.
    """
    control(PR_SET_PDEATHSIG, signal.SIGKILL)
    if is_closed(lifeline):
        os._exit(1)


def fork_tied() -> tuple[int, int]:
    """Fork. The parent gets the child's number and an end of a pipe to keep open; the child 0, and the end to watch."""
    watched, kept = os.pipe()
    child = os.fork()
    os.close(watched if child else kept)
    return child, kept if child else watched
