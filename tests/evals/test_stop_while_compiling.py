"""An evaluation that is stopped while it compiles; what else may happen to it is in tests/runs/test_faults.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.miniatures import random_model

import jaxsink
from jaxsink.evals.results import read_results
from jaxsink.runs.stopping import GRACE

DRIVER = """
import sys
from jaxsink.cli.main import main
sys.exit(main(["evaluate", *sys.argv[1:]]))
"""
PATIENCE = 300
QUESTIONS, CONDITIONS = 24, 3
ALL = QUESTIONS * CONDITIONS
WORDS = ["task", "--limit", str(QUESTIONS), "--k", "0,2", "--select", "top,random", "--json"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("evaluations")
    jaxsink.save(random_model("mini-llada"), folder / "model")
    return folder


def begin(place: Path, out: str, *words: str, cache: str = "cache") -> subprocess.Popen[bytes]:
    kept = cache if cache == "off" else str(place / cache)
    environment = {**os.environ, "JAXSINK_COMPILE_CACHE": kept, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", DRIVER, str(place / "model"), *WORDS, "--out", str(place / out), *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors.decode()


def lines(folder: Path) -> dict[Any, Any]:
    return read_results(folder)


@pytest.fixture(scope="module")
def whole(place: Path) -> dict[Any, Any]:
    """One device, one go."""
    finish(begin(place, "whole", "--devices", "1"))
    found = lines(place / "whole")
    assert len(found) == ALL
    return found


@pytest.mark.slow
def test_sigterm_while_it_compiles(place: Path, whole: dict[Any, Any]) -> None:
    """Nothing is finished yet, nobody looks at the flag; the process ends all the same, and the run can go on."""
    process = begin(place, "compiling", "--devices", "1", cache="off")
    end = time.monotonic() + PATIENCE
    while not (place / "compiling" / "results-0001.jsonl").exists() and time.monotonic() < end:
        time.sleep(0.01)
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143 and "the same command continues" in errors.decode().splitlines()[-1]
    assert time.monotonic() - begun < GRACE + 10
    assert not lines(place / "compiling")
    finish(begin(place, "compiling", "--devices", "1"))
    assert lines(place / "compiling") == whole
