"""Names that cannot be, pipes and devices, in every place that takes a file: one sentence, at once, before any work."""

from __future__ import annotations

import gzip
import json
import os
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jaxsink_converters.gguf_file import read_gguf
from support.checkpoints import run

import jaxsink
from jaxsink.errors import JaxsinkError
from jaxsink.runs.atomic import check_writable
from jaxsink.runs.files import user_path
from jaxsink.study.prompts import find_prompts, own_prompts
from jaxsink.tasks import benchmark_builders
from jaxsink.tasks.benchmarks import load_benchmark
from jaxsink.tasks.corpus import documents, texts_of
from jaxsink.text.tokenizer import Tokenizer
from jaxsink.training.recipe import own_config

LLAMA = Path(__file__).parents[1] / "golden" / "llama_tiny"


@pytest.fixture
def impatient() -> Iterator[None]:
    """What waits for a pipe is interrupted, and fails."""

    def stop(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(5)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


SPECIAL: dict[str, Callable[[Path], Path]] = {
    "pipe": pipe,
    "device": lambda _: Path("/dev/null"),  # /dev/zero is one, too, but would take all memory where it is not refused
}
READERS: dict[str, Callable[[Path], object]] = {
    "a text": lambda path: list(texts_of(path)),
    "training data": lambda path: list(documents(str(path))),
    "prompts": own_prompts,
    "a benchmark": lambda path: load_benchmark("gsm8k", data_file=path),
    "a configuration": own_config,
    "a GGUF file": read_gguf,
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("reader", READERS)
def test_pipes_and_devices_are_not_read(reader: str, kind: str, tmp_path: Path) -> None:
    with pytest.raises(JaxsinkError, match="it is no regular file"):
        READERS[reader](SPECIAL[kind](tmp_path))


@pytest.mark.usefixtures("impatient")
def test_commands_do_not_read_pipes(tmp_path: Path, capsys: Any) -> None:
    given = pipe(tmp_path)
    for arguments in (
        ("evaluate", "mini-llama", "text", "--text", given, "--out", tmp_path / "out"),
        ("evaluate", "mini-llama", "llada-8b-instruct/gsm8k/study", "--data-file", given, "--out", tmp_path / "out"),
        ("train", "1x32x2", "--data", given, "--tokenizer", "characters", "--steps", "1", "--out", tmp_path / "out"),
        ("inspect", given),
    ):
        code, _, error = run(capsys, *map(str, arguments))
        assert code == 2 and "Traceback" not in error and error.count("\n") == 1, (arguments, error)
    assert not (tmp_path / "out").exists()


def test_packed_data_unpacks_to_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark_builders, "LARGEST_TEXT", 1 << 20)
    packed = tmp_path / "bomb.jsonl.gz"
    packed.write_bytes(gzip.compress(bytes(64 << 20), compresslevel=1))
    tracemalloc.start()
    try:
        with pytest.raises(JaxsinkError, match="unpacks to more than 1048576 bytes"):
            next(benchmark_builders.read_records(str(packed), ()))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


CALLS: dict[str, Callable[[str], object]] = {
    "load": jaxsink.load,
    "describe": jaxsink.describe,
    "tokenizer": Tokenizer.load,
    "convert": lambda path: jaxsink.convert(path, "out"),
    "convert to": lambda path: jaxsink.convert(LLAMA, path),
    "record": lambda path: jaxsink.respond(str(LLAMA), ids=[5], tokens=2, record=path),
    "report": jaxsink.report,
    "training data": lambda path: list(documents(path)),
    "dataset": lambda path: list(documents(f"tfds:{path}")),
    "prompts": find_prompts,
    "text": lambda path: find_prompts("text", path),
    "benchmark": lambda path: load_benchmark("gsm8k", data_file=path),
    "evaluate to": lambda path: jaxsink.evaluate("mini-llama", "task", path, summary=True),
    "train to": lambda path: jaxsink.train("mini-llama", path, steps=1, lens=True),
}


@pytest.mark.parametrize("call", CALLS)
def test_names_that_cannot_be(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a\0b", "x" * 5000):
        with pytest.raises(JaxsinkError) as error:
            CALLS[call](name)
        assert "\n" not in str(error.value) and len(str(error.value)) < 400
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", [call for call in CALLS if not call.endswith(" to") and call != "text"])
def test_homes_that_are_not_there_are_names(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JaxsinkError):
        CALLS[call]("~unknown/x")


def test_a_name_of_a_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/model") == tmp_path / "model" and user_path("~unknown/x") == Path("~unknown/x")


def test_arguments_with_a_zero_byte(capsys: Any) -> None:
    code, _, error = run(capsys, "inspect", "a\0b")
    assert code == 2 and error == "jaxsink: an argument holds a zero byte, which no name and no text can have.\n"


def test_a_whole_machine_is_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, real = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda *given: (looked.append(given), real(*given))[1])
    with pytest.raises(JaxsinkError):
        jaxsink.load("/")
    assert len(looked) < 5


UNWRITABLE = ["/proc/x.npz", "/proc/deep/x.npz", "/dev/null/x.npz", "{}/" + "x" * 254]


@pytest.mark.parametrize("name", UNWRITABLE)
def test_what_cannot_be_written_is_said_before(name: str, tmp_path: Path) -> None:
    with pytest.raises(JaxsinkError, match="cannot be written"):
        check_writable(Path(name.format(tmp_path)))


def test_trying_leaves_nothing(tmp_path: Path) -> None:
    for name in ("new.npz", "deep/er/new.npz"):
        check_writable(tmp_path / name)
    assert not list(tmp_path.iterdir())
    (tmp_path / "old.npz").write_text("old")
    check_writable(tmp_path / "old.npz")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old.npz", "old")]


def test_no_work_is_done_for_what_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: object, **__: object) -> None:
        raise AssertionError("the work begins")

    monkeypatch.setattr("jaxsink.sampling.respond.generate", begin)
    monkeypatch.setattr("jaxsink.report.write.read_source", begin)
    monkeypatch.setattr("jaxsink.training.train.fit_lens", begin)
    for call in (
        lambda: jaxsink.respond("mini-llama", "Tom", tokens=2, record="/proc/x.npz"),
        lambda: jaxsink.report("nowhere", out="/proc/x.html"),
        lambda: jaxsink.train("mini-llama", "/proc/x", steps=1, lens=True),
    ):
        with pytest.raises(JaxsinkError, match=r"/proc/x.* cannot be written"):
            call()


def test_a_panic_at_encoding_says_nothing_itself(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A regular expression that is refused by none of the checks, and that the library gives up on for one text."""
    split = {"type": "Split", "pattern": {"Regex": "(a|aa)+b"}, "behavior": "Isolated", "invert": False}
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model, "pre_tokenizer": split}))
    tokenizer = Tokenizer.load(tmp_path)
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(JaxsinkError, match="cannot encode"):
            encode("a" * 60)
    assert capfd.readouterr().err == ""
