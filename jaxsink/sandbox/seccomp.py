"""A seccomp filter: the kernel itself refuses every call that is not in syscalls.py, in any thread or interpreter.

The bindings of libseccomp that pip can install need the system's library, are several years old and cover what 80 lines of
ctypes do, so the filter is written here. A program that meets it sees PermissionError and goes on.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxsink.sandbox.kernel import KernelError, call
from jaxsink.sandbox.syscalls import ALLOWED, ASKING, CONTROLLING, OPENING, SIGNALLING, UNKNOWN, Numbers

PR_SET_SECCOMP, MODE_FILTER = 22, 2
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # codes of the kernel's filter language
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, MACHINE, ARGUMENTS = 0, 4, 16  # where they are in what a filter sees
X32 = 0x40000000  # numbers from here on are calls of another convention
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | 0x400000  # the last: a file without name

Instruction = tuple[int, int, int, int]
"""code, how many to skip if it holds and if not, and a number"""


@dataclass(frozen=True)
class Machine:
    """column: of the numbers in syscalls.py."""

    audit: int
    column: int


MACHINES = {"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1)}


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse(code: int) -> Instruction:
    return RETURN, 0, 0, ERROR | code


PERMIT: Instruction = (RETURN, 0, 0, ALLOW)
REFUSE = refuse(errno.EPERM)


def argument(number: int, high: bool = False) -> Instruction:
    """Load half an argument; both machines have the low half first."""
    return LOAD, 0, 0, ARGUMENTS + 8 * number + 4 * high


def instructions(machine: Machine, pid: int) -> Iterator[Instruction]:
    """The filter of process `pid`, in the kernel's filter language."""

    def when(numbers: Numbers, then: Sequence[Instruction]) -> Iterator[Instruction]:
        """`then` ends in an answer on every way, so what follows still has the call's number at hand."""
        number = numbers[machine.column]
        if number is not None:
            yield EQUAL, 0, len(then), number
            yield from then

    yield LOAD, 0, 0, MACHINE
    yield EQUAL, 1, 0, machine.audit
    yield RETURN, 0, 0, KILL
    yield LOAD, 0, 0, NUMBER
    yield AT_LEAST, 0, 1, X32
    yield REFUSE
    for numbers in ALLOWED.values():
        yield from when(numbers, [PERMIT])
    for numbers, place in OPENING.values():
        yield from when(numbers, [argument(place), (ANY_BIT, 0, 1, WRITING), REFUSE, PERMIT])
    for numbers in SIGNALLING.values():
        yield from when(numbers, [argument(0), (EQUAL, 0, 1, pid), PERMIT, REFUSE])
    for numbers, allowed in CONTROLLING.values():
        known = [(EQUAL, len(allowed) - place, 0, value) for place, value in enumerate(allowed)]
        yield from when(numbers, [argument(1), *known, REFUSE, PERMIT])
    for numbers in ASKING.values():
        halves = [argument(2), (EQUAL, 0, 3, 0), argument(2, high=True), (EQUAL, 0, 1, 0)]
        yield from when(numbers, [*halves, PERMIT, REFUSE])
    for numbers in UNKNOWN.values():
        yield from when(numbers, [refuse(errno.ENOSYS)])
    yield REFUSE


def install() -> None:
    """For this process, which must have one thread, for good. It must have given up new privileges before."""
    machine = MACHINES.get(platform.machine())
    if machine is None:
        known = " and ".join(MACHINES)
        raise KernelError(errno.ENOSYS, f"seccomp: there are filters for {known}, and this is {platform.machine()}")
    lines = list(instructions(machine, os.getpid()))
    text = b"".join(struct.pack("HBBI", *line) for line in lines)
    call("prctl", PR_SET_SECCOMP, ctypes.c_ulong(MODE_FILTER), ctypes.byref(Program(len(lines), text)), 0, 0)
