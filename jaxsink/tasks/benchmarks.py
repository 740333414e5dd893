"""Questions of the public benchmarks, one kind of record for all: GSM8K, HumanEval and MBPP.

    examples = load_benchmark("gsm8k", split="test")                          # downloaded on first use
    examples = load_benchmark("humaneval", data_file="HumanEval.jsonl.gz")    # from a file that is already here

TFDS prepares each file once, as array_record, in the published order; reading needs no TensorFlow. A file counts only if
its SHA-256 is the published one, because a score on altered questions compares with nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.errors import JaxsinkError
from jaxsink.runs.files import refuse_special, user_path

Benchmark = Literal["gsm8k", "humaneval", "mbpp"]


@dataclass(frozen=True)
class Example:
    """One question. `index` is its number in the published file's split, so that results of any subset can be joined.

    question: the text to answer; for HumanEval the Python code to complete.
    answer: the published solution: worked steps and `#### 42`, a function body, or a program.
    setup: code that the tests rely on besides the answer; for HumanEval the question itself, which has helpers.
    tests: code of the checks. HumanEval's define `check(candidate)`; MBPP's are assertions.
    """

    benchmark: Benchmark
    split: str
    index: int
    task_id: str
    question: str
    answer: str
    setup: str = ""
    tests: str = ""
    entry_point: str = ""


@dataclass(frozen=True)
class PublishedFile:
    """A file as its authors publish it, and the splits that are in it."""

    url: str
    size: int
    sha256: str
    splits: tuple[str, ...]


_GRADE_SCHOOL = "https://raw.githubusercontent.com/openai/grade-school-math/master/grade_school_math/data"
FILES: Mapping[Benchmark, tuple[PublishedFile, ...]] = {
    "gsm8k": (
        PublishedFile(
            f"{_GRADE_SCHOOL}/train.jsonl",
            4_166_206,
            "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
            ("train",),
        ),
        PublishedFile(
            f"{_GRADE_SCHOOL}/test.jsonl",
            749_738,
            "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
            ("test",),
        ),
    ),
    "humaneval": (
        PublishedFile(
            "https://raw.githubusercontent.com/openai/human-eval/master/data/HumanEval.jsonl.gz",
            44_877,
            "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
            ("test",),
        ),
    ),
    "mbpp": (
        PublishedFile(
            "https://raw.githubusercontent.com/google-research/google-research/master/mbpp/mbpp.jsonl",
            563_743,
            "ccf64ceae9c5403bf50a044cb6d505bfd2a2963ee58338ba268fd65beab92a9f",
            ("prompt", "test", "validation", "train"),
        ),
    ),
}


def load_benchmark(
    name: Benchmark,
    split: str = "test",
    data_file: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    verify: bool = True,
) -> list[Example]:
    """All questions of a split, in the published order.

    data_file: the published file, if it is on this machine; without it TFDS downloads it.
    data_dir: where TFDS keeps what it prepared; by default TFDS's own folder in the user's home.
    verify: False accepts a file with another checksum (a subset, a translation). It is prepared in a directory of its
        own, so that it is never mistaken for the published one.
    """
    published = _published(name, split)
    data_file = None if data_file is None else user_path(data_file)
    user_path(data_dir or _default_folder())
    if data_file is not None:
        digest = file_sha256(data_file)
        if digest != published.sha256:
            if verify:
                raise JaxsinkError(
                    f"{data_file} is not the published {name} file for the split {split!r} (its SHA-256 is {digest}, and "
                    f"not {published.sha256}); fetch {published.url}, or accept another file (verify=False)."
                )
            data_dir = Path(data_dir or _default_folder()) / f"unverified-{digest[:16]}"
    from jaxsink.tasks import benchmark_builders

    records = benchmark_builders.prepared(name, split, data_file, data_dir or _default_folder())
    return [_example(name, split, index, _decoded(record)) for index, record in enumerate(records)]


def file_sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    refuse_special(path)
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise JaxsinkError(f"{path} cannot be read ({error.strerror}); give the benchmark's data file.") from error


def _default_folder() -> Path:
    return Path(os.environ.get("TFDS_DATA_DIR") or Path.home() / "tensorflow_datasets")


def _published(name: Benchmark, split: str) -> PublishedFile:
    if name not in FILES:
        raise JaxsinkError(f"unknown benchmark {name!r}; choose one of {', '.join(get_args(Benchmark))}.")
    found = [file for file in FILES[name] if split in file.splits]
    if not found:
        splits = [split for file in FILES[name] for split in file.splits]
        raise JaxsinkError(f"{name} has no split {split!r}; choose one of {', '.join(splits)}.")
    return found[0]


def _decoded(record: JsonObject) -> JsonObject:
    """TFDS gives texts back as bytes, and lists of texts as arrays of bytes."""
    decoded = {key: value.decode() if isinstance(value, bytes) else value for key, value in record.items()}
    if "tests" in record:
        decoded["tests"] = [item.decode() for item in record["tests"]]
    return decoded


def _example(name: Benchmark, split: str, index: int, record: JsonObject) -> Example:
    if name == "gsm8k":
        return Example(name, split, index, f"gsm8k/{split}/{index}", record["question"], record["answer"])
    if name == "humaneval":
        return Example(
            name,
            split,
            index,
            task_id=record["task_id"],
            question=record["prompt"],
            answer=record["canonical_solution"],
            setup=record["prompt"],
            tests=record["test"],
            entry_point=record["entry_point"],
        )
    tests = "\n".join([record["test_setup_code"], *record["tests"]]).lstrip("\n")
    return Example(name, split, index, f"MBPP/{record['task_id']}", record["text"], record["code"], "", tests)
