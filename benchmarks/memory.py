"""What a process needed, for the benchmarks (Linux)."""

from __future__ import annotations

from pathlib import Path


def peak() -> float:
    """MiB of this process, at most until now. `resource.getrusage` also counts the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
