"""Conversions as processes: the installed command, its progress bar, kill -9 in the middle, two at once."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import assert_refused, assert_same, converted, make, run

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.runs.progress import Task

pytestmark = pytest.mark.usefixtures("quick_compilation")

# A conversion that stops after five tensors, with some of them handed to Orbax, until the file `go` appears.
PAUSED = """
import signal, sys, time
from pathlib import Path
import jaxsink_converters.convert as engine
from jaxsink.checkpoints import writer as writing
from jaxsink.cli.main import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started deaf to it
folder, writing.GROUP_BYTES = Path(sys.argv[1]).parent, 2000
original, count = engine.read_piece, 0

def read_piece(*arguments):
    global count
    count += 1
    if count == 5:
        (folder / "paused").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)
    return original(*arguments)

engine.read_piece = read_piece
sys.exit(main(["convert", *sys.argv[1:]]))
"""


def start_paused(source: Path, target: Path) -> subprocess.Popen[str]:
    """Start it, and come back when it stands in the middle."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}  # JAX is imported before the command could choose
    process = subprocess.Popen(
        [sys.executable, "-c", PAUSED, str(source), str(target)], stderr=subprocess.PIPE, text=True, env=environment
    )
    deadline = time.monotonic() + 60
    while not (target.parent / "paused").exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def test_killed_in_the_middle_and_run_again(tmp_path: Path, capsys: Any) -> None:
    source, model = make(tmp_path / "source", "llama")
    target, partial = tmp_path / "out", tmp_path / ".out.partial"
    process = start_paused(source, target)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert any(partial.rglob("*"))  # the killed run could not clean up
    for path in (target, partial, *partial.glob("*")):
        with pytest.raises(JaxsinkError):
            jaxsink.load(path)
    converted(capsys, source, target)  # checks that nothing is left beside it
    assert_same(jaxsink.load(target), model)


def test_two_conversions_to_one_place(tmp_path: Path, capsys: Any) -> None:
    source, model = make(tmp_path / "source", "llama")
    target = tmp_path / "out"
    process = start_paused(source, target)
    code, _, err = run(capsys, "convert", source, target)
    assert (code, f"process {process.pid} on" in err, "is writing to" in err, err.count("\n")) == (2, True, True, 1)
    assert (tmp_path / ".out.partial").is_dir()  # the first one's work was not touched
    (tmp_path / "go").touch()
    assert process.communicate() == (None, "")
    assert process.returncode == 0
    assert_same(jaxsink.load(target), model)
    assert not (tmp_path / ".out.partial").exists()


def test_interrupted_from_the_keyboard(tmp_path: Path) -> None:
    source, _ = make(tmp_path / "source", "llama")
    process = start_paused(source, tmp_path / "out")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "jaxsink: interrupted; nothing half-written was left.\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["paused", "source"]


def test_stopped_by_a_signal(tmp_path: Path) -> None:
    source, _ = make(tmp_path / "source", "llama")
    process = start_paused(source, tmp_path / "out")
    process.send_signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, "jaxsink: stopped by SIGTERM; nothing half-written was left.\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["go", "paused", "source"]


def without_progress(text: str) -> str:
    """What a command says, but for the plain lines of its progress, which come when it takes a second."""
    return re.sub(r"(?m)^\[ *\d+ s[^]]*\] .*\n", "", text)


@pytest.mark.slow
def test_the_installed_command(tmp_path: Path) -> None:
    """From a folder that has its own `converters` and `experiments`, with nothing on stderr but signs of life."""
    command = Path(sys.executable).with_name("jaxsink")
    _, model = make(tmp_path / "source", "llada")
    for name in ("converters", "experiments", "jaxsink_converters"):
        (tmp_path / name).mkdir()
    (tmp_path / "converters" / "__init__.py").write_text("raise SystemExit('the wrong package')")
    arguments = ["convert", "source", "out", "--json", "--dtype", "bfloat16", "--verify"]
    done = subprocess.run([command, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, without_progress(done.stderr)) == (0, "")
    assert json.loads(done.stdout)["dtype"] == "bfloat16"
    assert_same(jaxsink.load(tmp_path / "out"), model.astype("bfloat16"))
    done = subprocess.run([command, "convert", "source", "out"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, without_progress(done.stderr).count("\n")) == (2, "", 1)


def test_report_for_people(tmp_path: Path, capsys: Any) -> None:
    source, _ = make(tmp_path / "source", "llada")
    code, out, err = run(capsys, "convert", source, tmp_path / "out", "--verify")
    assert (code, err) == (0, "")
    first, note, verified = out.splitlines()
    assert first == f"{tmp_path / 'out'}: llada, 0.0 M parameters, float32, 48.09 KiB, from 21 tensors"
    assert note.startswith("note: the source has no tokenizer.json")
    assert verified.startswith("verified: 21 arrays bit for bit; logits not compared")


def test_progress_counts_bytes(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    source, _ = make(tmp_path / "source", "llada")
    told: list[tuple[str, float, float]] = []
    monkeypatch.setattr(Task, "update", lambda self, done, what, total: told.append((what, done, total)))
    code, _, _ = run(capsys, "convert", source, tmp_path / "out", "--verify")
    assert code == 0
    for what in ("converting", "verifying"):
        done = [done for named, done, _ in told if named == what]
        assert done == sorted(done) and done[-1] == 49_248
        assert {total for named, _, total in told if named == what} == {49_248}


def test_a_source_that_ends_while_it_is_read(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """The file shrinks after everything was checked: one sentence, not a crash."""
    import jaxsink_converters.convert as engine

    source, _ = make(tmp_path / "source", "llama")
    original = engine.stream

    def stream(*arguments: Any) -> None:
        os.truncate(source / "model.safetensors", 9000)
        original(*arguments)

    monkeypatch.setattr(engine, "stream", stream)
    result = run(capsys, "convert", source, tmp_path / "out")
    assert_refused(result, tmp_path / "out", "model.safetensors ends within tensor")


def test_reader_of_the_output_has_seen_enough() -> None:
    command = [Path(sys.executable).with_name("jaxsink"), "inspect", "llada-8b-instruct", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert (without_progress(process.communicate()[1]), process.returncode) == ("", 0)


def test_what_nobody_expected(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """An error of ours is one line too, with another exit code, and a traceback for those who ask."""
    import jaxsink_converters.convert as engine

    source, _ = make(tmp_path / "source", "llada")
    errors: list[Exception] = [ZeroDivisionError("by\nzero"), OSError(errno.EIO, "Input/output error", "/dev/sda")]

    def stream(*arguments: Any) -> None:
        raise errors[0]

    monkeypatch.setattr(engine, "stream", stream)
    code, out, err = run(capsys, "convert", source, tmp_path / "out")
    assert (code, out) == (1, "")
    assert err == "jaxsink: unexpected ZeroDivisionError: by (JAXSINK_DEBUG=1 shows where).\n"
    monkeypatch.setenv("JAXSINK_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run(capsys, "convert", source, tmp_path / "out")
    del errors[0]
    assert_refused(run(capsys, "convert", source, tmp_path / "out"), tmp_path / "out", "/dev/sda: Input/output error")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_verify_in_groups_and_without_parity(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    import jaxsink_converters.verify as verify

    source, _ = make(tmp_path / "source", "llama")
    monkeypatch.setattr(verify, "GROUP_BYTES", 5000)
    monkeypatch.setitem(sys.modules, "transformers", None)
    report = converted(capsys, source, tmp_path / "out", "--verify")
    assert report["verified"] == {"tensors": 21, "logits": "not compared: that needs the extra `parity`"}


def test_hashing_stops_with_the_conversion(tmp_path: Path) -> None:
    from jaxsink_converters.hashing import FileHashes

    files = [tmp_path / str(number) for number in range(2000)]
    for file in files:
        file.write_bytes(bytes(1 << 14))
    with FileHashes(files) as hashes:
        pass
    assert not hashes.thread.is_alive()
    assert any(found.position == 0 for found in hashes.hashes.values())
    with FileHashes([tmp_path / "missing"]) as hashes, pytest.raises(JaxsinkError, match="missing: No such file"):
        hashes.result()


def test_weights_are_hashed_as_they_are_read(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """Only the header of a safetensors file is read for its hash."""
    from jaxsink_converters.hashing import FileHash

    source, _ = make(tmp_path / "source", "llama")
    original, positions = FileHash.read, []

    def read(self: FileHash, end: int | None = None) -> None:
        begin = self.position
        original(self, end)
        if self.file.suffix == ".safetensors":
            positions.append(self.position - begin)

    monkeypatch.setattr(FileHash, "read", read)
    converted(capsys, source, tmp_path / "out")
    files = json.loads((tmp_path / "out" / "jaxsink.json").read_text())["source"]["files"]
    weights = source / "model.safetensors"
    header = 8 + int.from_bytes(weights.read_bytes()[:8], "little")
    assert positions == [header, 0]
    for found in files:
        data = (source / found["name"]).read_bytes()
        assert (found["bytes"], found["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())


def test_parts_of_a_file_in_any_order_have_its_hash(tmp_path: Path) -> None:
    from jaxsink_converters.hashing import FileHashes

    file, data = tmp_path / "file", np.random.default_rng(0).integers(0, 256, 5000).astype(np.uint8)
    file.write_bytes(data.tobytes())
    for order in ([0, 1, 2, 3], [2, 0, 1, 3], [1], []):
        with FileHashes([file], frozenset([file])) as hashes:
            for part in order:
                hashes.add(file, 1000 * part + 7, data[1000 * part + 7 :][:1000])
            assert hashes.result()[0]["sha256"] == hashlib.sha256(data.tobytes()).hexdigest(), order


def test_without_the_converters(tmp_path: Path, monkeypatch: Any) -> None:
    from jaxsink.checkpoints import formats

    source, _ = make(tmp_path / "source", "llama")
    monkeypatch.setattr(formats, "entry_points", lambda group: [])
    with pytest.raises(JaxsinkError, match="converters are not installed"):
        jaxsink.load(source)
