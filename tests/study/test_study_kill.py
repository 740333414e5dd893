"""kill -9 at random moments of a study: running it again loses and repeats nothing, and the files end up the same."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KILLS = int(os.environ.get("JAXSINK_TEST_KILLS", "3"))
COMMAND = [
    "study",
    "fig1",
    "fig7",
    "table1",
    "--problems",
    "30",
    "--generations",
    "3",
    "--model",
    "mini-llama",
    "--json",
]


def begin(out: Path, cache: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "JAXSINK_COMPILE_CACHE": str(cache)}
    command = [sys.executable, "-m", "jaxsink", *COMMAND, "--out", str(out)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors.decode()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    finish(begin(tmp_path / "whole", cache))
    expected = contents(tmp_path / "whole")
    begun = time.monotonic()
    finish(begin(tmp_path / "warm", cache))  # how long it takes with compiled programs at hand
    length = time.monotonic() - begun
    assert contents(tmp_path / "warm") == expected
    moments, out, killed = random.Random(0), tmp_path / "killed", 0
    while killed < KILLS:
        process = begin(out, cache)
        kept = {name: text for name, text in contents(out).items() if name.startswith("pieces")} if out.exists() else {}
        try:
            process.wait(moments.uniform(0.2 * length, 1.1 * length))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.communicate()
        after = contents(out) if out.exists() else {}
        assert all(after.get(name) == text for name, text in kept.items() if "partial" not in name)
        if len(after) >= len(expected) and not any("partial" in name for name in after):
            for path in sorted((out / "pieces").rglob("*.npz"))[::2]:  # all was done: the next one has work again
                path.unlink()
    finish(begin(out, cache))
    assert contents(out) == expected
