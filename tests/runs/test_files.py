"""Pipes, devices and links: never waited for, never followed out of a checkpoint, never replaced."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import config_of, make, random_model, run
from support.paths import ROOT

import jaxsink
from jaxsink.checkpoints.load import sampler_for, size_on_disk
from jaxsink.checkpoints.storage import MANIFEST
from jaxsink.errors import JaxsinkError
from jaxsink.runs.atomic import new_file, write_json
from jaxsink.runs.files import LARGEST_TEXT, check_inside, interpreting, read_json
from jaxsink.runs.lines import LineFile
from jaxsink.text.guard import library_errors, panics_aside
from jaxsink.text.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("quick_compilation")


def full_device(path: Path) -> None:
    """A device of our own that behaves as /dev/full."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    except PermissionError:
        pytest.skip("only root makes device nodes")


STORED = "weights/state/manifest.ocdbt"
SPECIAL: dict[str, Callable[[Path], None]] = {"pipe": os.mkfifo, "device": full_device}


@pytest.fixture(params=SPECIAL)
def special(request: Any, tmp_path: Path) -> Path:
    path = tmp_path / "special.html"
    SPECIAL[request.param](path)
    return path


def test_special_files_are_never_replaced(special: Path, tmp_path: Path) -> None:
    before = special.stat()
    (tmp_path / "link").symlink_to(special)
    for path in (special, tmp_path / "link"):
        with pytest.raises(JaxsinkError, match="never replaced"), new_file(path):
            pass
        with pytest.raises(JaxsinkError, match="never replaced"):
            write_json(path, {})
        with pytest.raises(JaxsinkError, match="never replaced"), LineFile(path):
            pass
    assert special.stat().st_mode == before.st_mode and special.stat().st_rdev == before.st_rdev
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "special.html"]


def test_one_that_appears_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "out"

    def write() -> None:
        with new_file(path) as partial:
            partial.touch()
            os.mkfifo(path)

    with pytest.raises(JaxsinkError, match="never replaced"):
        write()
    assert stat.S_ISFIFO(path.stat().st_mode) and [one.name for one in tmp_path.iterdir()] == ["out"]


def test_commands_do_not_replace_special_files(special: Path, tmp_path: Path, capsys: Any) -> None:
    record = special.with_name("record.npz")
    special.rename(record)
    page = special
    os.mkfifo(page)
    for arguments in (
        ("report", tmp_path, "--out", page),
        ("generate", "mini-llama", "hi", "--record", record, "--overwrite"),
        ("convert", make(tmp_path / "source", "llama")[0], record, "--overwrite"),
        ("train", "mini-llama", "--out", record),
        ("evaluate", "mini-llama", "task", "--out", record),
    ):
        code, _, error = run(capsys, *map(str, arguments))
        assert code == 2 and "Traceback" not in error, (arguments, error)
    assert not stat.S_ISREG(record.stat().st_mode) and stat.S_ISFIFO(page.stat().st_mode)


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as error, new_file(tmp_path / "out.json"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert error.value.errno == errno.ENOSPC and error.value.filename == str(tmp_path / "out.json")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model"
    jaxsink.save(random_model(config_of("llama", vocab_size=48)), path)
    return path


REFUSED = r"no regular file|no directory|a link|no config\.json|a checkpoint of jaxsink already"


@pytest.mark.parametrize("kind", [*SPECIAL, "link"])
@pytest.mark.parametrize(
    "name", [MANIFEST, "weights", "weights/state", "weights/state/d", "weights/orbax.checkpoint", STORED]
)
def test_special_files_in_a_checkpoint(name: str, kind: str, saved: Path, tmp_path: Path) -> None:
    """Files and directories of weights alike, whether they are loaded, looked at or converted."""
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    outside = tmp_path / "outside"
    (folder / name).rename(outside)
    SPECIAL[kind](folder / name) if kind in SPECIAL else (folder / name).symlink_to(outside)
    for use in (jaxsink.load, jaxsink.describe, lambda path: jaxsink.convert(path, tmp_path / "out")):
        with pytest.raises(JaxsinkError, match=REFUSED):
            use(str(folder))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json", "merges.txt"])
def test_a_special_file_is_no_missing_tokenizer(name: str, kind: str, saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    for other in {"vocab.json", "merges.txt"} - {name}:
        (folder / other).write_text("{}")
    SPECIAL[kind](folder / name)
    for use in (Tokenizer.load, lambda path: jaxsink.load(path).tokenizer):
        with pytest.raises(JaxsinkError, match=rf"cannot read .*{name}: it is no regular file\."):
            use(folder)
    with pytest.raises(JaxsinkError, match=rf"cannot read .*{name}: it is no regular file\."):
        jaxsink.save(jaxsink.load(folder), tmp_path / "again")


@pytest.mark.parametrize("name", ["weights", "tokenizer"])
def test_a_linked_directory_is_not_measured_and_not_read(name: str, saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    outside = tmp_path / "outside"
    (folder / "weights").rename(outside) if name == "weights" else outside.mkdir()
    (outside / "tokenizer.json").write_text(json.dumps(BPE))
    (outside / "large").write_bytes(bytes(1 << 20))
    (folder / name).symlink_to(outside)
    assert "MiB" not in size_on_disk(folder)
    read = {"weights": sampler_for, "tokenizer": Tokenizer.load}[name]
    with pytest.raises(JaxsinkError, match=f"{name} is a link to .*outside, outside its directory"):
        read(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json", "model.safetensors"])
def test_links_out_of_a_source_are_not_followed(name: str, tmp_path: Path) -> None:
    source, _ = make(tmp_path / "source", "llama")
    (source / "tokenizer.json").write_text("{}")
    (source / "tokenizer_config.json").write_text("{}")
    secret = tmp_path / "secret"
    (source / name).rename(secret)
    (source / name).symlink_to(secret)
    with pytest.raises(JaxsinkError, match=f"{name} is a link to .*secret, outside its directory"):
        jaxsink.convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_links_inside_and_in_a_hub_cache_are_followed(tmp_path: Path) -> None:
    cache = tmp_path / "models--owner--name"
    (cache / "snapshots" / "abc").mkdir(parents=True)
    (cache / "blobs").mkdir()
    (cache / "blobs" / "1f").write_text('{"a": 1}')
    link = cache / "snapshots" / "abc" / "config.json"
    link.symlink_to("../../blobs/1f")
    assert read_json(link) == {"a": 1}
    (cache / "snapshots" / "abc" / "passwords").symlink_to("/etc/passwd")
    with pytest.raises(JaxsinkError, match="outside its directory"):
        check_inside(cache / "snapshots" / "abc" / "passwords")
    (tmp_path / "one").write_text("{}")
    (tmp_path / "two").symlink_to("one")
    assert read_json(tmp_path / "two") == {}


def test_texts_that_are_too_large_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.touch()
    os.truncate(path, LARGEST_TEXT + 1)  # a hole, which takes no space
    with pytest.raises(JaxsinkError, match=r"more than the"):
        read_json(path)


@pytest.mark.parametrize("wrong", [lambda: {}["a"], lambda: int("a"), lambda: None.x, lambda: [][1], lambda: 1 + "a"])  # type: ignore
def test_what_files_should_say(wrong: Callable[[], Any]) -> None:
    with pytest.raises(JaxsinkError, match="RUN does not hold what jaxsink wrote there"), interpreting(Path("RUN")):
        wrong()


BPE: dict[str, Any] = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}
REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BOMBS: dict[str, Any] = {
    "doubling": {"normalizer": {"type": "Sequence", "normalizers": [REPLACE] * 40}},
    "one large step": {"normalizer": {**REPLACE, "content": "a" * 1000}},
    "nested sequences": {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [REPLACE] * 20}]}
    },
    "backtracking": {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"}},
    "counts": {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "((a{100}){100}){9}"}, "behavior": "Isolated"}},
    "a decoder": {"decoder": {"type": "Sequence", "decoders": [{**REPLACE, "content": "a" * 1000}] * 4}},
    "a long beginning": {"normalizer": {"type": "Prepend", "prepend": "a" * 10**6}},
    "a long template": {
        "post_processor": {
            "type": "Sequence",
            "processors": [{"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2000}],
        }
    },
    "many steps": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}] * 101}},
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_in_a_tokenizer_are_found(name: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(BPE | BOMBS[name]))
    with pytest.raises(JaxsinkError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


PANICS = [
    {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "none"}},
    {"model": {"type": "Unigram", "unk_id": 7, "vocab": [["a", 0.0]]}},
    {"model": {"type": "BPE", "vocab": {"a": 4294967295}, "merges": []}},
    {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}},
    {"decoder": {"type": "Strip", "content": "a", "start": 10**9, "stop": 10**9}, **BPE},
]


@pytest.mark.parametrize("number", range(len(PANICS)))
def test_a_tokenizer_that_panics_is_one_sentence(number: int, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(PANICS[number]))
    with suppress(JaxsinkError):  # what it may not be is a panic, which no test survives
        tokenizer = Tokenizer.load(tmp_path)
        tokenizer.encode("ab a")
        tokenizer.decode([0, 1])


def test_the_report_of_a_panic_is_kept_back_and_nothing_else(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({**BPE, "normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}})
    )
    with pytest.raises(JaxsinkError, match=r"tokenizer\.json is not a tokenizer that can be read"):
        Tokenizer.load(tmp_path)
    with panics_aside():
        os.write(2, b"kept")
    assert capfd.readouterr().err == "kept"


def test_a_panic_is_an_error() -> None:
    class Panic(BaseException):
        """As PyO3's, which is none of Exception's."""

    with (
        pytest.raises(JaxsinkError, match=r"x\.json cannot be read \(no entry"),
        library_errors("x.json cannot be read"),
    ):
        raise Panic("no entry found for key")
    with pytest.raises(KeyboardInterrupt), library_errors("x.json cannot be read"):
        raise KeyboardInterrupt


def jaxsink_command(*arguments: str | bytes, into: str = "cat") -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, its output through a pipe."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = ["bash", "-c", f'"$@" | {into}; exit "${{PIPESTATUS[0]}}"', "-", sys.executable, "-m", "jaxsink"]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, env=environment, timeout=300, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("arguments", [["models"], ["--help"], ["--version"], ["train", "--help"]])
def test_a_full_standard_output_is_named(arguments: list[str], buffered: bool) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "jaxsink", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "" if buffered else "1"}
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert ended.returncode == 2
    assert ended.stderr.endswith("jaxsink: standard output: No space left on device.\n")


@pytest.mark.slow
def test_strange_arguments() -> None:
    ended = jaxsink_command("models", into="head -1")
    assert (ended.returncode, ended.stderr.count("Traceback")) == (0, 0)
    for arguments in (
        ("inspect", "a[/b]"),
        ("generate", "mini-llama", b"\xff"),
        ("generate", "mini-llama", "hi", "--tokens", str(10**15)),
        ("generate", "mini-llama", "hi", "--tokens", "4000"),
        ("evaluate", "mini-llama", "task", "--out", "", "--limit", "5"),
        ("evaluate", "mini-llama", "task", "--out", "x", "--limit", str(10**30)),
        ("train", "mini-llama", "--out", ""),
    ):
        ended = jaxsink_command(*arguments)
        assert ended.returncode == 2, (arguments, ended.stderr)
        assert "Traceback" not in ended.stderr and "unexpected" not in ended.stderr


def test_rich_markup_in_names_is_text(saved: Path, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "a[/b]"
    shutil.copytree(saved, folder)
    code, out, _ = run(capsys, "inspect", folder)
    assert code == 0 and "a[/b]" in out.replace("\n", "")


def test_prompts_beyond_the_positions_of_a_rotary_model() -> None:
    model = random_model({**config_of("llama", vocab_size=48), "max_position_embeddings": 16})
    assert model.config.positions == "rope" and model.config.max_positions == 16
    sampler = jaxsink.ARSampler(4)
    with pytest.raises(JaxsinkError, match="17 tokens exceed the 16 positions"):
        jaxsink.generate(model, [[5] * 13], sampler)
    assert jaxsink.generate(model, [[5] * 12], sampler, pad_to=10).tokens.shape == (1, 24)  # padding does not count
