"""Places that cannot be read or written: missing, looping, occupied, full, failing; and random damage to files."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.checkpoints import assert_refused, assert_same, converted, make, run, tokenizer_files
from support.damage import Edit, damage, edits

import jaxsink
from jaxsink import JaxsinkError

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture
def ordinary(tmp_path: Path, capsys: Any) -> Iterator[Path]:
    """A folder, and the rights of an ordinary user: root may read and write everything."""
    if os.geteuid() != 0:
        yield tmp_path
        return
    source, _ = make(tmp_path / "first", "llama")
    tokenizer_files(source)
    converted(capsys, source, tmp_path / "imports_everything")
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)


def replace(path: Path, make_other: Callable[[Path], Any]) -> None:
    path.unlink()
    make_other(path)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


SOURCES: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "missing": (shutil.rmtree, ("there is no checkpoint at",)),
    "a file": (lambda s: (shutil.rmtree(s), s.write_text("weights")), ("is a file",)),
    "a loop": (lambda s: (shutil.rmtree(s), loop(s)), ("there is no checkpoint at",)),
    "empty": (lambda s: (shutil.rmtree(s), s.mkdir()), ("no config.json",)),
    "without config": (lambda s: (s / "config.json").unlink(), ("no config.json",)),
    "without weights": (lambda s: (s / "model.safetensors").unlink(), ("no weights",)),
    "looping config": (lambda s: replace(s / "config.json", loop), ("config.json", "symbolic links")),
    "looping weights": (lambda s: replace(s / "model.safetensors", loop), ("model.safetensors", "symbolic links")),
    "dangling weights": (
        lambda s: replace(s / "model.safetensors", lambda p: p.symlink_to("../blobs/3f")),
        ("model.safetensors is missing",),
    ),
    "folder for config": (lambda s: replace(s / "config.json", Path.mkdir), ("config.json", "it is a directory")),
    "folder for weights": (lambda s: replace(s / "model.safetensors", Path.mkdir), ("model.safetensors",)),
    "folder for index": (
        lambda s: ((s / "model.safetensors").unlink(), (s / "model.safetensors.index.json").mkdir()),
        ("index.json", "it is a directory"),
    ),
    "folder for tokenizer": (
        lambda s: replace(s / "tokenizer.json", Path.mkdir),
        ("tokenizer.json", "it is a directory"),
    ),
    "looping tokenizer": (lambda s: replace(s / "tokenizer.json", loop), ("tokenizer.json", "symbolic links")),
    "looping generation config": (
        lambda s: loop(s / "generation_config.json"),
        ("generation_config", "symbolic links"),
    ),
    "pipe for config": (lambda s: replace(s / "config.json", os.mkfifo), ("config.json", "no regular file")),
    "pipe for weights": (lambda s: replace(s / "model.safetensors", os.mkfifo), ("model.safetensors", "no regular")),
}


@pytest.mark.parametrize("name", SOURCES)
def test_sources(name: str, tmp_path: Path, capsys: Any) -> None:
    source, _ = make(tmp_path / "source", "llama")
    tokenizer_files(source)
    damage, words = SOURCES[name]
    damage(source)
    assert_refused(run(capsys, "convert", source, tmp_path / "out"), tmp_path / "out", str(source), *words)
    if "tokenizer" not in name:  # which loading does not need
        with pytest.raises(JaxsinkError):
            jaxsink.load(source)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json", ""])
def test_unreadable(file: str, ordinary: Path, capsys: Any) -> None:
    source, _ = make(ordinary / "source", "llama")
    tokenizer_files(source)
    (source / file).chmod(0)
    result = run(capsys, "convert", source, ordinary / "out")
    (source / file).chmod(0o700)
    assert_refused(result, ordinary / "out", str(source / file), "Permission denied")


def test_target_not_writable(ordinary: Path, capsys: Any) -> None:
    source, _ = make(ordinary / "source", "llama")
    (ordinary / "locked").mkdir(mode=0o500)
    target = ordinary / "locked" / "out"
    assert_refused(run(capsys, "convert", source, target), target, "locked", "Permission denied")


@pytest.mark.parametrize("occupied", ["file", "folder", "empty folder", "link", "loop"])
def test_target_exists(occupied: str, tmp_path: Path, capsys: Any) -> None:
    source, _ = make(tmp_path / "source", "llama")
    target = tmp_path / "out"
    if "folder" in occupied:
        (target if occupied == "empty folder" else target / "inside").mkdir(parents=True)
    elif occupied == "file":
        target.write_text("mine")
    else:
        target.symlink_to("source" if occupied == "link" else "out")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    code, out, err = run(capsys, "convert", source, target)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "exists already" in err or "lies inside" in err
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_target_below_a_file_or_nowhere(tmp_path: Path, capsys: Any) -> None:
    source, _ = make(tmp_path / "source", "llama")
    (tmp_path / "file").write_text("mine")
    for target, words in {
        tmp_path / "file" / "out": ("file", "Not a directory"),
        tmp_path / "file" / "deeper" / "out": ("deeper", "Not a directory"),
        Path("/proc/out"): ("/proc", "No such file"),
        tmp_path / ("long" * 100): ("File name too long",),
    }.items():
        code, out, err = run(capsys, "convert", source, target)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert all(word in err for word in words), err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "source"]


def test_source_and_target_must_lie_apart(tmp_path: Path, capsys: Any) -> None:
    source, model = make(tmp_path / "outer" / "source", "llama")
    (tmp_path / "alias").symlink_to(source)
    for target in (source / "out", source, tmp_path / "alias" / "out", tmp_path / "outer"):
        code, _, err = run(capsys, "convert", source, target, "--overwrite")
        assert (code, "lies inside" in err, err.count("\n")) == (2, True, 1), err
    assert sorted(path.name for path in source.iterdir()) == ["config.json", "model.safetensors"]
    assert_same(jaxsink.load(source), model)


def test_a_converted_checkpoint_is_no_source(tmp_path: Path, capsys: Any) -> None:
    source, _ = make(tmp_path / "source", "llama")
    converted(capsys, source, tmp_path / "one")
    assert_refused(run(capsys, "convert", tmp_path / "one", tmp_path / "two"), tmp_path / "two", "already")


def test_folders_made_for_a_failed_conversion_go_again(tmp_path: Path, capsys: Any) -> None:
    source, model = make(tmp_path / "source", "llama")
    tokenizer_files(source, size=999)
    target = tmp_path / "a" / "b" / "out"
    assert_refused(run(capsys, "convert", source, target), target, "ids up to 998")
    assert not (tmp_path / "a").exists()
    tokenizer_files(source)
    converted(capsys, source, target)
    assert_same(jaxsink.load(target), model)


def test_too_little_room_is_seen_before(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    source, _ = make(tmp_path / "source", "llama")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(2**40, 2**40, 50_000_000))
    result = run(capsys, "convert", source, tmp_path / "out")
    assert_refused(result, tmp_path / "out", str(tmp_path), "47.68 MiB free")
    assert "needs 64.04 MiB (43.59 KiB for the weights, and 64.00 MiB to spare); free 16.36 MiB" in result[2]


def test_what_a_killed_run_left_does_not_count_as_used(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    source, model = make(tmp_path / "source", "llama")
    left = tmp_path / ".out.partial" / "weights"
    left.mkdir(parents=True)
    (left / "half").write_bytes(bytes(1000))

    def disk_usage(folder: Any) -> Any:
        return shutil._ntuple_diskusage(2**40, 2**40, 0 if (left / "half").exists() else 2**39)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    converted(capsys, source, tmp_path / "out")
    assert_same(jaxsink.load(tmp_path / "out"), model)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this test must be allowed to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("told", [True, False])
def test_full_disk(told: bool, small_disk: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """It fills up at every stage. told: the system says before a write that there is no room; else the write fails."""
    import jaxsink_converters.convert as engine

    monkeypatch.setattr(engine, "check_space", lambda target, size: None)
    if not told:
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(2**40, 0, 2**40))
    source, model = make(tmp_path / "source", "llama")
    tokenizer_files(source)
    failures = 0
    for used in range(64, -1, -8):
        (small_disk / "filler").write_bytes(bytes(used * 1024))
        code, out, err = run(capsys, "convert", source, small_disk / "out")
        (small_disk / "filler").unlink()
        if code:
            failures += 1
            assert_refused((code, out, err), small_disk / "out", str(small_disk), "No space left on device")
            assert list(small_disk.iterdir()) == []
    assert failures > 5
    subprocess.run(["mount", "-o", "remount,size=1m", str(small_disk)], check=True)
    converted(capsys, source, small_disk / "again")
    assert_same(jaxsink.load(small_disk / "again"), model)


def test_file_size_limit(tmp_path: Path) -> None:
    """A quota in the middle of Orbax's write, in a process of its own: nothing but our sentence on stderr."""
    source, _ = make(tmp_path / "source", "llama")
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))"
    code += "; from jaxsink.cli.main import main"
    command = [sys.executable, "-c", f"{code}; sys.exit(main(sys.argv[1:]))", "convert", source, tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert_refused((done.returncode, done.stdout, done.stderr), tmp_path / "out", str(tmp_path), "File too large")


@pytest.mark.parametrize("after", [0, 1, 7])
def test_disk_that_fails_while_it_is_read(after: int, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    source, _ = make(tmp_path / "source", "llama")
    original, reads = Path.open, []

    class Failing(io.FileIO):
        def readinto(self, buffer: Any) -> int:
            reads.append(len(buffer))
            if len(reads) > after:
                raise OSError(errno.EIO, os.strerror(errno.EIO), self.name)
            return super().readinto(buffer)

    def open_(path: Path, mode: str = "r", buffering: int = -1, **more: Any) -> Any:
        failing = path.name == "model.safetensors" and buffering == 0
        return Failing(path, "rb") if failing else original(path, mode, buffering, **more)

    monkeypatch.setattr(Path, "open", open_)
    result = run(capsys, "convert", source, tmp_path / "out")
    assert_refused(result, tmp_path / "out", "model.safetensors", "Input/output error")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, _ = make(tmp_path_factory.mktemp("sound") / "source", "llada")
    tokenizer_files(source, mask=40)
    (source / "generation_config.json").write_text('{"eos_token_id": [3, 7]}')
    return source


FILES = ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
function_scoped = HealthCheck.function_scoped_fixture


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=[function_scoped])
@given(file=st.sampled_from(FILES), edits=edits)
def test_random_damage(file: str, edits: list[Edit], sound: Path, capsys: Any) -> None:
    """What converts was verified bit for bit; everything else is one sentence, and nothing is left."""
    content = (sound / file).read_bytes()
    target = sound.parent / "out"
    try:
        (sound / file).write_bytes(damage(content, edits))
        result = run(capsys, "convert", sound, target, "--verify")
    finally:
        (sound / file).write_bytes(content)
    if result[0] == 0:
        assert result[2] == ""
        assert "bit for bit" in result[1]
        shutil.rmtree(target)
    else:
        assert_refused(result, target)
