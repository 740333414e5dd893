"""Evaluations that are killed or stopped, as processes of their own: going on gives what one run would have given."""

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
import argparse, sys
from jaxsink.cli.evaluate import add_parser
parser = argparse.ArgumentParser()
add_parser(parser.add_subparsers())
args = parser.parse_args(["evaluate", *sys.argv[1:]])
sys.exit(args.run(args))
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


def wait_for_lines(process: subprocess.Popen[bytes], folder: Path) -> int:
    """Until the run has results, but not all of them."""
    end = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        count = sum(path.read_bytes().count(b"\n") for path in folder.glob("results-*.jsonl"))
        if count:
            return count
        time.sleep(0.01)
    raise AssertionError("the run wrote nothing")


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
def test_killed_on_eight_devices_and_finished_on_two(place: Path, whole: dict[Any, Any]) -> None:
    process = begin(place, "killed", "--devices", "8", "--rows", "24")
    wait_for_lines(process, place / "killed")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = (place / "killed" / "results-0001.jsonl").read_bytes()
    assert process.returncode == -signal.SIGKILL and len(lines(place / "killed")) < ALL
    finish(begin(place, "killed", "--devices", "2", "--rows", "12"))
    after = (place / "killed" / "results-0001.jsonl").read_bytes()
    assert after.startswith(kept[: kept.rfind(b"\n") + 1]) and after.count(b"\n") == ALL
    assert lines(place / "killed") == whole


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


@pytest.mark.slow
def test_sigterm_stops_soon_and_the_same_command_continues(place: Path, whole: dict[Any, Any]) -> None:
    process = begin(place, "stopped", "--devices", "1", "--rows", "6")
    wait_for_lines(process, place / "stopped")
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors.decode()
    assert time.monotonic() - begun < 20
    assert "the same command continues" in errors.decode().splitlines()[-1]
    assert 0 < len(lines(place / "stopped")) < ALL
    finish(begin(place, "stopped", "--devices", "1", "--rows", "6"))
    assert lines(place / "stopped") == whole
