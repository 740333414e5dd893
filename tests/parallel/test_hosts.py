"""Two processes of four devices each are one program: same results and files, a clear end when one dies, and a rerun."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively
from support.paths import TESTS

from jaxsink import JaxsinkError, parallel
from jaxsink.checkpoints.load import save
from jaxsink.runs import arrays

SCRIPT = TESTS / "support" / "two_hosts.py"
QUICK = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # compiles faster


def run(folder: Path, count: int, *more: str) -> list[tuple[int, str]]:
    """(exit code, what it printed) of every process of a run."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, str(SCRIPT), str(folder), port, str(count)]
    processes = [
        subprocess.Popen(
            [*command, str(n), *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=QUICK
        )
        for n in range(count)
    ]
    printed = [process.communicate(timeout=300)[0] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, printed, strict=True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A checkpoint, and what one process with all the devices makes of it."""
    folder = tmp_path_factory.mktemp("hosts")
    save(lively(FAMILIES["llada"]), folder / "model")
    (code, printed), *_ = run(folder, 1)
    assert code == 0, printed
    return folder


def assert_same_files(folder: Path, one: str, other: str) -> None:
    names = sorted(path.name for path in (folder / one).iterdir())
    assert names == [f"batch-{n}.npz" for n in range(4)]
    for name in names:
        mine, theirs = (arrays.read(folder / part / name) for part in (one, other))
        for key in ("tokens", "sinks", "position"):
            np.testing.assert_array_equal(mine[key], theirs[key])
        np.testing.assert_allclose(mine["record"], theirs["record"], atol=1e-5)


@pytest.mark.slow
def test_two_processes_write_what_one_writes(folder: Path) -> None:
    ends = run(folder, 2)
    assert [code for code, _ in ends] == [0, 0], ends
    assert_same_files(folder, "results-1", "results-2")


@pytest.mark.slow
def test_a_process_that_dies_stops_the_other_and_the_rerun_continues(folder: Path) -> None:
    (code, printed), (killed, _) = run(folder, 2, "2", "broken")
    assert killed == -9 and code not in (0, -9)
    assert "another process of this run is gone" in printed and "start all of them again" in printed, printed
    finished = sorted(path.name for path in (folder / "results-broken").iterdir())
    assert finished == ["batch-0.npz", "batch-1.npz"]
    again = run(folder, 2, "never", "broken")
    assert [code for code, _ in again] == [0, 0], again
    told = re.findall(r"batch-\d (?:kept|computed)", again[0][1])  # other libraries print between
    assert told == ["batch-0 kept", "batch-1 kept", "batch-2 computed", "batch-3 computed"]
    assert_same_files(folder, "results-1", "results-broken")


def test_mistakes_in_joining_are_named() -> None:
    with pytest.raises(JaxsinkError, match="or nothing"):
        parallel.start("localhost:1")
    with pytest.raises(JaxsinkError, match="not one of 2"):
        parallel.start("localhost:1", 2, 2)


def test_results_of_one_process_come_home_as_they_are() -> None:
    home = parallel.to_host({"a": jnp.arange(3), "b": np.ones(2), "c": None})
    assert isinstance(home["a"], np.ndarray) and home["c"] is None and parallel.is_main()
