"""What may happen to a long job, fault by fault and job by job: going on gives what one run would have given.

killed           kill -9 while it runs
stopped          SIGTERM while it runs
full disk        the system refuses to write, once
torn             the end of a file is missing
damaged, edited  bytes that were written are others now
repeated         a line stands there twice
second process   another one on the same directory
other devices    begun on eight, finished on one
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.compilation import ENVIRONMENT
from support.jobs import JOBS, ON_TEXT, PAUSE, Job
from support.paths import TESTS

from jaxsink.errors import JaxsinkError
from jaxsink.runs.lines import LineFile, encoded, read_lines
from jaxsink.runs.stopping import EXIT_CODE, StoppedError, never

pytestmark = pytest.mark.usefixtures("quick_compilation")
NAMES = tuple(JOBS)
WITH_LINES = tuple(name for name, job in JOBS.items() if job.lines)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """The results of each job in one go, on one device."""
    found: dict[str, Any] = {}

    def of(name: str) -> Any:
        if name not in found:
            out = tmp_path_factory.mktemp(name) / "out"
            JOBS[name].run(out, never, 1)
            found[name] = JOBS[name].results(out)
        return found[name]

    return of


def begin_and_stop(job: Job, out: Path, devices: int = 1) -> None:
    """Until some of its results are there."""
    looks = iter(range(1000))
    with pytest.raises(StoppedError):
        job.run(out, lambda: next(looks) >= (4 if job.lines else 13), devices)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], Path]:
    """A job that was stopped half-way, copied to a place of one's own."""
    kept: dict[str, Path] = {}

    def copied(name: str, target: Path) -> Path:
        if name not in kept:
            kept[name] = tmp_path_factory.mktemp(f"half-{name}") / "out"
            begin_and_stop(JOBS[name], kept[name])
        return Path(shutil.copytree(kept[name], target / "out"))

    return copied


def process(name: str, out: Path, devices: int = 1) -> subprocess.Popen[str]:
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(TESTS), "JAX_NUM_CPU_DEVICES": "8"}
    command = [sys.executable, "-m", "support.jobs", name, str(out), str(devices)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def wait_until_kept(running: subprocess.Popen[str]) -> None:
    assert running.stdout is not None
    assert running.stdout.readline() == "kept\n" == running.stdout.readline(), running.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_killed_and_stopped(name: str, whole: Callable[[str], Any], tmp_path: Path) -> None:
    """One process is killed, the next one stopped; a second one beside it is turned away; the last one finishes."""
    job, out = JOBS[name], tmp_path / "out"
    killed = process(name, out)
    wait_until_kept(killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    stopped = process(name, out)
    wait_until_kept(stopped)
    with pytest.raises(JaxsinkError, match=rf"process {stopped.pid} on \S+ is writing to .*; wait for it to end"):
        job.run(out, never, 1)
    stopped.send_signal(signal.SIGTERM)
    _, said = stopped.communicate(timeout=60)
    assert stopped.returncode == EXIT_CODE and said.splitlines()[-1] == "jaxsink: stopped; the same command continues."
    job.run(out, never, 1)
    assert job.results(out) == whole(name)


@pytest.mark.slow
def test_a_training_on_text_is_killed_between_two_states(tmp_path: Path) -> None:
    """After steps that no state has yet; going on takes them again."""
    job, out = ON_TEXT["train-text"], tmp_path / "killed" / "out"
    for folder in (out.parent, tmp_path / "whole"):
        folder.mkdir()
    job.run(tmp_path / "whole" / "out", never, 1)
    killed = process("train-text", out)
    wait_until_kept(killed)
    time.sleep(PAUSE + 0.01)  # it has gone on
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    states = [int(path.name) for path in (out / "states").iterdir() if path.name.isdigit()]
    assert killed.returncode == -signal.SIGKILL and 0 < max(states) < 40 and not (out / "model").exists()
    job.run(out, never, 1)
    assert job.results(out) == job.results(tmp_path / "whole" / "out")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk(name: str, whole: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write of the job fails once: at the first, the next, and so on; what was finished is never lost."""
    job, out, expected, real = JOBS[name], tmp_path / "out", whole(name), os.fsync
    left, said = 0, []

    def fsync(handle: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    for writes in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 10_000):
        left = writes
        try:
            job.run(out, never, 1)
            break
        except (OSError, JaxsinkError) as error:
            said.append(str(error))
    assert len(said) >= 3 and all("No space left on device" in text for text in said)
    assert job.results(out) == expected
    assert not [path for path in tmp_path.rglob("*") if ".partial" in path.name or ".lock" in path.name]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_begun_on_eight_devices_and_finished_on_one(name: str, whole: Callable[[str], Any], tmp_path: Path) -> None:
    job, out = JOBS[name], tmp_path / "out"
    begin_and_stop(job, out, devices=8)
    job.run(out, never, 1)
    if name == "train":  # sums of gradients are in another order on eight devices
        assert job.results(out).keys() == whole(name).keys()
    else:
        assert job.results(out) == whole(name)


def results_file(out: Path) -> Path:
    (path,) = [path for path in out.rglob("results-*.jsonl") if path.stat().st_size]
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_LINES)
def test_a_torn_line_is_computed_anew_and_nothing_else(
    name: str, half: Any, whole: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, expected = half(name, tmp_path), whole(name)
    path = results_file(out)
    *kept, torn = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(kept) + torn[:40])
    before = sum(len(file.read_bytes().splitlines()) for file in out.rglob("results-*.jsonl")) - 1  # the torn one
    appended, real = [], LineFile.append
    monkeypatch.setattr(LineFile, "append", lambda self, lines: (appended.extend(lines), real(self, lines))[1])
    JOBS[name].run(out, never, 1)
    assert JOBS[name].results(out) == expected
    folders = {file.parent for file in out.rglob("results-*.jsonl")}
    total = sum(len(list(read_lines(folder, "results"))) for folder in folders)
    assert sum("condition" in line for line in appended) == total - before


def flip(line: bytes) -> bytes:
    return line[:20] + bytes([line[20] ^ 1]) + line[21:]


def edit(line: bytes) -> bytes:
    """As somebody would who likes other results better."""
    changed = re.sub(
        rb'"correct": (true|false)', lambda m: b'"correct": ' + {b"true": b"false"}.get(m[1], b"true"), line
    )
    changed = re.sub(rb'"log_prob": -\d+', b'"log_prob": -0', changed, count=1)
    assert changed != line
    return changed


@pytest.mark.parametrize(
    "fault", [flip, edit, lambda line: line[:50] + b"\n", lambda line: b"\n", lambda line: b"{}\n"]
)
@pytest.mark.parametrize("name", WITH_LINES)
def test_a_line_that_is_not_what_was_written_is_named_and_not_used(
    name: str, fault: Callable[[bytes], bytes], half: Any, whole: Callable[[str], Any], tmp_path: Path
) -> None:
    out = half(name, tmp_path)
    path = results_file(out)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], fault(lines[1]), *lines[2:]]))
    with pytest.raises(JaxsinkError, match=rf"line 2 of {path} is damaged or was changed; remove this line"):
        JOBS[name].run(out, never, 1)
    path.write_bytes(b"".join([lines[0], *lines[2:]]))  # as it says
    JOBS[name].run(out, never, 1)
    found, expected = JOBS[name].results(out), whole(name)
    assert {key: sorted_lines(value) for key, value in found.items()} == {
        key: sorted_lines(value) for key, value in expected.items()
    }


def sorted_lines(value: Any) -> Any:
    return sorted(value.splitlines()) if isinstance(value, bytes) else value


@pytest.mark.parametrize("name", WITH_LINES)
def test_a_repeated_line_is_named(name: str, half: Any, tmp_path: Path) -> None:
    out = half(name, tmp_path)
    path = results_file(out)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, lines[0]]))
    said = rf"line {len(lines) + 1} of {path} answers question \d+ under K = 0 again, as line 1 of {path} did"
    with pytest.raises(JaxsinkError, match=said):
        JOBS[name].run(out, never, 1)
    other = {**next(read_lines(path.parent, "results")).value, "text": "another"}
    path.write_bytes(b"".join(lines))
    path.with_name("results-0002.jsonl").write_bytes(encoded(other))
    with pytest.raises(JaxsinkError, match="again, as line 1 of"):
        JOBS[name].run(out, never, 1)


@pytest.mark.slow
def test_a_damaged_gallery_is_named(half: Any, whole: Callable[[str], Any], tmp_path: Path) -> None:
    out = half("study", tmp_path)
    JOBS["study"].run(out, never, 1)
    path = next(iter((out / "galleries").rglob("*.npz")))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])
    with pytest.raises(JaxsinkError, match=rf"{path} (is damaged|was changed)"):
        JOBS["study"].run(out, never, 1)
    path.unlink()
    JOBS["study"].run(out, never, 1)
    assert JOBS["study"].results(out) == whole("study")


@pytest.mark.slow
@pytest.mark.parametrize("file", ["arrays", "state.json", "loss.csv"])
def test_a_damaged_state_is_named(file: str, half: Any, whole: Callable[[str], Any], tmp_path: Path) -> None:
    out = half("train", tmp_path)
    state = max((out / "states").iterdir())
    if file == "arrays":
        path = max((state / "arrays").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    else:
        path = out / file if file == "loss.csv" else state / file
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(8) + data[len(data) // 2 + 8 :])
    with pytest.raises(JaxsinkError, match=f"{out / file if file == 'loss.csv' else state} is damaged"):
        JOBS["train"].run(out, never, 1)
    path.unlink() if file == "loss.csv" else shutil.rmtree(state)
    JOBS["train"].run(out, never, 1)
    found = JOBS["train"].results(out)
    if file == "loss.csv":  # what was in it is gone
        found["curve"] = whole("train")["curve"]
    assert found == whole("train")
