"""Looks at judge and candidate from outside while a program runs, and prints what holds them as JSON.

python -m support.attacks.confinement LEVEL USER
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from support.attacks.field import become, descendants
from support.attacks.measure import HARNESS, PROCESSES


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def sides(pids: set[int]) -> list[int]:
    """Those that have a filter."""
    found = []
    for pid in sorted(pids):
        try:
            found += [pid] if status(pid)["Seccomp"] == "2" else []
        except (OSError, KeyError):
            continue
    return found


def sockets(pid: int) -> list[str]:
    """Descriptors that lead to another process; only root can see them."""
    if os.geteuid():
        return [f"socket of {pid}"]
    links = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    return [link for link in links if not link.startswith("/")]


def look(harness: int, level: str) -> dict[str, object]:
    end = time.monotonic() + 30
    while len(ready := sides(descendants(harness))) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    found = [status(pid) for pid in ready]
    return {
        "processes": len(descendants(harness)) - PROCESSES[level],  # pyright: ignore[reportArgumentType]
        "sessions": len({os.getsid(pid) for pid in descendants(harness)}) - PROCESSES[level],  # pyright: ignore[reportArgumentType]
        "users": sorted(int(one["Uid"].split()[0]) for one in found),
        "capabilities": [one[kind] for one in found for kind in ("CapPrm", "CapEff", "CapInh")],
        "no new privileges": [one["NoNewPrivs"] for one in found],
        "owners of /proc/PID": [os.stat(f"/proc/{pid}/environ").st_uid for pid in ready],
        "sockets": [sockets(pid) for pid in ready],
    }


if __name__ == "__main__":
    become(int(sys.argv[2]), "--contained" in sys.argv)
    with subprocess.Popen([sys.executable, "-c", HARNESS, sys.argv[1]], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            print(json.dumps(look(process.pid, sys.argv[1])))
        finally:
            process.kill()
