"""The filter of calls, decided by hand for both machines; the numbers against the kernel's own headers."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from jaxsink.sandbox import syscalls
from jaxsink.sandbox.seccomp import (
    ALLOW,
    ANY_BIT,
    ARGUMENTS,
    AT_LEAST,
    EQUAL,
    ERROR,
    KILL,
    LOAD,
    MACHINE,
    MACHINES,
    NUMBER,
    RETURN,
    instructions,
)

PID = 4321
HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}
REFUSED, UNKNOWN = ERROR | errno.EPERM, ERROR | errno.ENOSYS


def decide(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """What the kernel would answer: a slow reading of its filter language."""
    seen = {NUMBER: number, MACHINE: MACHINES[machine].audit if audit is None else audit}
    for place, value in enumerate((*arguments, 0, 0, 0, 0, 0, 0)[:6]):
        seen[ARGUMENTS + 8 * place] = value & 0xFFFFFFFF
        seen[ARGUMENTS + 8 * place + 4] = value >> 32 & 0xFFFFFFFF
    lines, at, held = list(instructions(MACHINES[machine], PID)), 0, 0
    while True:
        code, yes, no, value = lines[at]
        at += 1
        if code == RETURN:
            return value
        if code == LOAD:
            held = seen[value]
        else:
            true = {EQUAL: held == value, AT_LEAST: held >= value, ANY_BIT: bool(held & value)}[code]
            at += yes if true else no


def number(machine: str, name: str) -> int:
    tables = (syscalls.ALLOWED, syscalls.SIGNALLING, syscalls.ASKING, syscalls.UNKNOWN)
    known = {name: numbers for table in tables for name, numbers in table.items()}
    known |= {
        name: numbers for table in (syscalls.OPENING, syscalls.CONTROLLING) for name, (numbers, _) in table.items()
    }
    found = known[name][MACHINES[machine].column]
    assert found is not None
    return found


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_are_decided_by_number_and_arguments(machine: str) -> None:
    def call(name: str, *arguments: int) -> int:
        return decide(machine, number(machine, name), *arguments)

    assert call("read") == call("mmap") == call("exit_group") == ALLOW
    assert call("openat", 0, 0, os.O_RDONLY | os.O_CLOEXEC) == ALLOW
    for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_APPEND, 0x400000):
        assert call("openat", 0, 0, flag) == REFUSED
    for name in ("kill", "tkill", "tgkill"):
        assert call(name, PID) == ALLOW
        assert call(name, PID + 1) == call(name, 0) == call(name, 2**64 - 1) == REFUSED
    for value in syscalls.CONTROLLING["fcntl"][1]:
        assert call("fcntl", 3, value) == ALLOW
    assert call("fcntl", 3, 8) == call("fcntl", 3, 1024) == REFUSED  # F_SETOWN, F_SETLEASE
    assert call("ioctl", 0, 0x5401) == ALLOW and call("ioctl", 0, 0x5412) == REFUSED  # TIOCSTI
    assert call("prlimit64", 0, 7, 0) == ALLOW
    assert call("prlimit64", 0, 7, 1) == call("prlimit64", 0, 7, 2**32) == REFUSED
    assert call("clone3") == call("openat2") == UNKNOWN


@pytest.mark.parametrize("machine", MACHINES)
def test_everything_else_is_refused(machine: str) -> None:
    column = MACHINES[machine].column
    known = {numbers[column] for numbers in syscalls.ALLOWED.values()}
    known |= {number(machine, name) for name in ("openat", "fcntl", "ioctl", "prlimit64", *syscalls.SIGNALLING)}
    known |= {syscalls.OPENING["open"][0][column]}
    for one in range(1000):
        assert (decide(machine, one, 99, 99, 99) == ALLOW) <= (one in known), one
    assert decide(machine, 0x40000000 | 39) == REFUSED
    for other in MACHINES:
        audit = MACHINES[other].audit
        assert other == machine or decide(machine, number(machine, "read"), audit=audit) == KILL
    assert decide(machine, number(machine, "read"), audit=0x40000003) == KILL  # 32 bits


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_are_the_kernels(machine: str) -> None:
    header = Path(HEADERS[machine])
    if not header.is_file():
        pytest.skip("the kernel's headers are not here")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
    theirs = {name: int(value) for name, value in found}
    theirs.setdefault("newfstatat", theirs.get("fstatat", -1))
    column = MACHINES[machine].column
    tables = (syscalls.ALLOWED, syscalls.SIGNALLING, syscalls.ASKING, syscalls.UNKNOWN)
    ours = {name: numbers[column] for table in tables for name, numbers in table.items()}
    ours |= {n: numbers[column] for t in (syscalls.OPENING, syscalls.CONTROLLING) for n, (numbers, _) in t.items()}
    for name, value in ours.items():
        assert value == theirs.get(name) or (value is not None and name not in theirs), name
