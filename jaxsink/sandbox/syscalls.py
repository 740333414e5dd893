"""The calls of the kernel that a confined program may make, by their numbers: (x86_64, aarch64), None where there is none.

A computation needs little: memory, reading files that are there, the clock, its own signals. Whatever is not named here,
calls of future kernels included, is refused.
"""

from __future__ import annotations

Numbers = tuple[int | None, int | None]

ALLOWED: dict[str, Numbers] = {
    # open files, and reading: nothing can be opened for writing
    "read": (0, 63),
    "pread64": (17, 67),
    "readv": (19, 65),
    "write": (1, 64),
    "writev": (20, 66),
    "lseek": (8, 62),
    "close": (3, 57),
    "close_range": (436, 436),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "getdents": (78, None),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    # memory of its own, which RLIMIT_AS counts
    "mmap": (9, 222),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "mprotect": (10, 226),
    "madvise": (28, 233),
    "brk": (12, 214),
    "futex": (202, 98),
    "membarrier": (324, 283),
    # signals to itself
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigpending": (127, 136),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    "pause": (34, None),
    "alarm": (37, None),
    "getitimer": (36, 102),
    "setitimer": (38, 103),
    # the time, and questions about itself
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "times": (100, 153),
    "getrandom": (318, 278),
    "getrusage": (98, 165),
    "getrlimit": (97, 163),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "gettid": (186, 178),
    "getpgrp": (111, None),
    "getpgid": (121, 155),
    "getsid": (124, 156),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getresuid": (118, 148),
    "getresgid": (120, 150),
    "getgroups": (115, 158),
    "getcpu": (309, 168),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "uname": (63, 160),
    "sysinfo": (99, 179),
    "exit": (60, 93),
    "exit_group": (231, 94),
}

OPENING: dict[str, tuple[Numbers, int]] = {"open": ((2, None), 1), "openat": ((257, 56), 2)}
"""With the number of the argument that says whether the file is to be written."""

SIGNALLING: dict[str, Numbers] = {"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131)}
"""Their first argument is whom."""

CONTROLLING: dict[str, tuple[Numbers, tuple[int, ...]]] = {
    "fcntl": ((72, 25), (0, 1, 2, 3, 4, 1030)),  # duplicates, flags; no owner, lease, lock, seal or size of a pipe
    "ioctl": ((16, 29), (0x5401, 0x5450, 0x5451)),  # whether it is a terminal, and closing on exec
}
"""With what their second argument may be."""

ASKING: dict[str, Numbers] = {"prlimit64": (302, 261)}
"""Only with a third argument of 0, which sets nothing."""

UNKNOWN: dict[str, Numbers] = {"clone3": (435, 435), "openat2": (437, 437)}
"""Refused as a kernel does that does not have them, so that the C library takes the older ones, which can be looked into."""
