"""GSM8K, HumanEval and MBPP through TFDS: order, checksums, local files and downloads; and the whole data where it is.

The published files are not part of the project. The environment variable JAXSINK_BENCHMARK_DATA names a folder that has
them (gsm8k_test.jsonl, HumanEval.jsonl.gz) and turns the last tests on.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jaxsink.errors import JaxsinkError
from jaxsink.evals.settings import get_setting
from jaxsink.sandbox import programs
from jaxsink.sandbox.runner import run_checks
from jaxsink.tasks import benchmarks
from jaxsink.tasks.benchmarks import Example, load_benchmark
from jaxsink.tasks.score import score

PUBLISHED = os.environ.get("JAXSINK_BENCHMARK_DATA")
needs_published = pytest.mark.skipif(PUBLISHED is None, reason="JAXSINK_BENCHMARK_DATA names no folder")
GSM8K = [
    {"question": f"Mia has {n} eggs\u2028and é. How many?", "answer": f"She has <<{n}={n}>>{n}.\n#### {n}"}
    for n in range(40)
]
HUMANEVAL = [
    {
        "task_id": f"HumanEval/{n}",
        "prompt": f"def add{n}(a):\n    '''Add {n}.'''\n",
        "entry_point": f"add{n}",
        "canonical_solution": f"    return a + {n}\n",
        "test": f"def check(candidate):\n    assert candidate(1) == {n + 1}\n",
    }
    for n in range(12)
]
MBPP = [
    {
        "task_id": n,
        "text": f"Write f{n}.",
        "code": f"def f{n}(x):\r\n    return x\r\n",
        "test_setup_code": "import math" if n == 20 else "",
        "test_list": [f"assert f{n}({i}) == {i}" for i in range(3)],
        "challenge_test_list": [],
    }
    for n in (601, 5, 20, 11, 12, 510, 511, 3)
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    raw = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


@pytest.fixture
def published(tmp_path: Path, monkeypatch) -> dict[str, Path]:
    """Tiny files that count as the published ones."""
    from jaxsink.tasks import benchmark_builders

    files = {
        "gsm8k": write(tmp_path / "test.jsonl", GSM8K),
        "humaneval": write(tmp_path / "HumanEval.jsonl.gz", HUMANEVAL),
        "mbpp": write(tmp_path / "mbpp.jsonl", MBPP),
    }
    known = {
        name: tuple(
            dataclasses.replace(file, size=files[name].stat().st_size, sha256=benchmarks.file_sha256(files[name]))
            for file in benchmarks.FILES[name]
        )
        for name in benchmarks.FILES
    }
    monkeypatch.setattr(benchmarks, "FILES", known)
    monkeypatch.setattr(benchmark_builders, "FILES", known)
    return files


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    handler.log_message = lambda *_: None  # pyright: ignore
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_gsm8k_keeps_its_order_and_its_text(tmp_path: Path, published) -> None:
    examples = load_benchmark("gsm8k", data_file=published["gsm8k"], data_dir=tmp_path / "tfds")
    assert [(e.question, e.answer) for e in examples] == [(row["question"], row["answer"]) for row in GSM8K]
    assert [e.index for e in examples] == list(range(len(GSM8K)))
    assert examples[3] == Example("gsm8k", "test", 3, "gsm8k/test/3", GSM8K[3]["question"], GSM8K[3]["answer"])
    assert hash(examples[3]) == hash(dataclasses.replace(examples[3]))


def test_humaneval_is_read_compressed(tmp_path: Path, published) -> None:
    examples = load_benchmark("humaneval", data_file=published["humaneval"], data_dir=tmp_path / "tfds")
    for example, row in zip(examples, HUMANEVAL, strict=True):
        assert example.task_id == row["task_id"] and example.question == example.setup == row["prompt"]
        assert example.answer == row["canonical_solution"] and example.tests == row["test"]
        assert example.entry_point == row["entry_point"]


def test_mbpp_is_split_by_task(tmp_path: Path, published) -> None:
    place = {"data_file": published["mbpp"], "data_dir": tmp_path / "tfds"}
    tasks = {
        split: [e.task_id for e in load_benchmark("mbpp", split, **place)] for split in ("prompt", "test", "train")
    }
    assert tasks == {
        "prompt": ["MBPP/5", "MBPP/3"],
        "test": ["MBPP/20", "MBPP/11", "MBPP/12", "MBPP/510"],
        "train": ["MBPP/601"],
    }
    first = load_benchmark("mbpp", "test", **place)[0]
    assert first.tests == "import math\nassert f20(0) == 0\nassert f20(1) == 1\nassert f20(2) == 2"
    assert first.answer == "def f20(x):\n    return x\n" and first.question == "Write f20."


def test_a_file_is_prepared_once_as_array_record(tmp_path: Path, published, monkeypatch) -> None:
    from jaxsink.tasks import benchmark_builders

    place = {"data_file": published["humaneval"], "data_dir": tmp_path / "tfds"}
    first = load_benchmark("humaneval", **place)
    assert len(list((tmp_path / "tfds").rglob("*.array_record-*"))) == 1
    monkeypatch.setattr(benchmark_builders, "read_records", None)
    assert load_benchmark("humaneval", **place) == first
    assert load_benchmark("humaneval", data_dir=tmp_path / "tfds") == first  # not even the file is needed again


def test_another_file_is_refused_or_kept_apart(tmp_path: Path, published) -> None:
    changed = write(tmp_path / "changed.jsonl", GSM8K[:3])
    with pytest.raises(JaxsinkError, match=r"changed.jsonl is not the published gsm8k file .*SHA-256.*verify=False"):
        load_benchmark("gsm8k", data_file=changed, data_dir=tmp_path / "tfds")
    whole = load_benchmark("gsm8k", data_file=published["gsm8k"], data_dir=tmp_path / "tfds")
    assert len(load_benchmark("gsm8k", data_file=changed, data_dir=tmp_path / "tfds", verify=False)) == 3
    assert len(load_benchmark("gsm8k", data_dir=tmp_path / "tfds")) == len(whole) == len(GSM8K)


def point_to(monkeypatch, file: benchmarks.PublishedFile) -> None:
    from jaxsink.tasks import benchmark_builders

    known = {**benchmarks.FILES, "humaneval": (file,)}
    monkeypatch.setattr(benchmarks, "FILES", known)
    monkeypatch.setattr(benchmark_builders, "FILES", known)
    monkeypatch.setattr(benchmark_builders.HumanEval, "url_infos", benchmark_builders._url_infos((file,)))


class Refuses(http.server.BaseHTTPRequestHandler):
    """A server, or a proxy on the way, that is out of order."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_error(503)

    def log_message(self, *_: object) -> None:
        pass


def test_without_a_network_one_sentence_comes_at_once(tmp_path: Path, monkeypatch, capfd) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Refuses) as server:
        url = f"http://127.0.0.1:{server.server_port}/x.jsonl.gz"
        point_to(monkeypatch, dataclasses.replace(benchmarks.FILES["humaneval"][0], url=url))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with pytest.raises(JaxsinkError, match=r"cannot be downloaded now \(status 503\); get http.*--data-file"):
            load_benchmark("humaneval", data_dir=tmp_path)
        server.shutdown()
        thread.join()
    assert Refuses.asked == 1
    with pytest.raises(JaxsinkError, match=r"cannot be downloaded now \(no connection\).*--data-file"):
        load_benchmark("humaneval", data_dir=tmp_path)  # nobody listens there any more
    assert capfd.readouterr().err == ""


def test_a_missing_training_split_names_its_own_option(tmp_path: Path, monkeypatch) -> None:
    from jaxsink.tasks import benchmark_builders

    def offline(*_: object, **__: object) -> None:
        raise benchmark_builders.requests.ConnectionError

    monkeypatch.setattr(benchmark_builders.requests, "get", offline)
    with pytest.raises(JaxsinkError, match=r"no connection.*train\.jsonl.*--train-file"):
        load_benchmark("gsm8k", "train", data_dir=tmp_path)


def test_downloads_are_checked(tmp_path: Path, published, server: str, monkeypatch) -> None:
    file = dataclasses.replace(benchmarks.FILES["humaneval"][0], url=f"{server}/HumanEval.jsonl.gz")
    point_to(monkeypatch, dataclasses.replace(file, sha256="0" * 64))
    with pytest.raises(JaxsinkError, match="humaneval file that was downloaded is not the published one"):
        load_benchmark("humaneval", data_dir=tmp_path / "a")
    point_to(monkeypatch, dataclasses.replace(file, url=f"{server}/gone.jsonl.gz"))
    with pytest.raises(JaxsinkError, match=r"humaneval could not be prepared .*gone.jsonl.gz.*data_file"):
        load_benchmark("humaneval", data_dir=tmp_path / "b")
    point_to(monkeypatch, file)
    assert [e.task_id for e in load_benchmark("humaneval", data_dir=tmp_path / "c")] == [
        r["task_id"] for r in HUMANEVAL
    ]


def test_the_builders_know_the_published_checksums() -> None:
    from jaxsink.tasks import benchmark_builders

    for name, builder in benchmark_builders.BUILDERS.items():
        infos = {url: info.checksum for url, info in builder.url_infos.items()}  # pyright: ignore
        assert infos == {file.url: file.sha256 for file in benchmarks.FILES[name]}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"{not json}\n", 1),
        (b'{"question": "a", "answer": "#### 1"}\n{"question": "b"}\n', 2),
        (b"\x1f\x8bbroken", 1),
        (b"[1]\n", 1),
    ],
)
def test_broken_files_are_named(tmp_path: Path, content: bytes, line: int) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_bytes(content)
    with pytest.raises(JaxsinkError, match=f"line {line} of .*broken.jsonl is not a record"):
        load_benchmark("gsm8k", data_file=path, data_dir=tmp_path / "tfds", verify=False)


def test_wrong_names_are_explained(tmp_path: Path) -> None:
    with pytest.raises(JaxsinkError, match=r"unknown benchmark 'gsm9k'; choose one of gsm8k, humaneval, mbpp"):
        load_benchmark("gsm9k")  # pyright: ignore[reportArgumentType]
    with pytest.raises(JaxsinkError, match=r"gsm8k has no split 'dev'; choose one of train, test"):
        load_benchmark("gsm8k", "dev")
    part = write(tmp_path / "part.jsonl", MBPP[1:])
    with pytest.raises(JaxsinkError, match=r"part.jsonl has no question of the split 'train' of mbpp"):
        load_benchmark("mbpp", "train", part, tmp_path / "tfds", verify=False)
    with pytest.raises(JaxsinkError, match=r"nothing.jsonl cannot be read .No such file"):
        load_benchmark("gsm8k", data_file=tmp_path / "nothing.jsonl")


def test_the_modules_are_light() -> None:
    code = (
        "import sys, jaxsink.tasks.benchmarks, jaxsink.evals.settings, jaxsink.tasks.score, jaxsink.tasks.prompts;"
        "assert not {'jax', 'tensorflow', 'tensorflow_datasets', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def corrupted(row: Example) -> str:
    """The published GSM8K answer with another number wherever the right one stands at the end."""
    steps, _, number = row.answer.rpartition("#### ")
    return f"{steps}#### {int(number.replace(',', '')) + 1}"


@needs_published
def test_published_gsm8k_answers_score_100_and_corrupted_ones_0(tmp_path: Path) -> None:
    assert PUBLISHED is not None
    setting = get_setting("smollm2-135m-instruct/gsm8k/small")
    examples = load_benchmark("gsm8k", data_file=Path(PUBLISHED) / "gsm8k_test.jsonl", data_dir=tmp_path)
    rows = (Path(PUBLISHED) / "gsm8k_test.jsonl").read_text().splitlines()
    assert [e.question for e in examples] == [json.loads(row)["question"] for row in rows] and len(examples) == 1319
    right = [score(setting, example, example.answer) for example in examples]
    wrong = [score(setting, example, corrupted(example)) for example in examples]
    assert sum(s.strict is True for s in right) == sum(s.flexible is True for s in right) == 1319
    assert sum(s.strict is True for s in wrong) == sum(s.flexible is True for s in wrong) == 0


@needs_published
@pytest.mark.slow
def test_published_programs_pass_and_corrupted_ones_do_not(tmp_path: Path) -> None:
    assert PUBLISHED is not None
    setting = get_setting("smollm2-135m-instruct/humaneval/small")
    examples = load_benchmark("humaneval", data_file=Path(PUBLISHED) / "HumanEval.jsonl.gz", data_dir=tmp_path)

    def passes(example: Example) -> tuple[bool, bool, bool]:
        gold = run_checks(programs.gold_program(example), programs.checks(example), allow_code_execution=True)
        block = f"{example.answer}```\nThat is the function."
        answer = score(setting, example, block, allow_code_execution=True)
        empty = score(setting, example, "    return None\n```", allow_code_execution=True)
        return gold.passed, answer.correct, empty.correct

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(passes, examples))
    assert len(found) == 164
    assert [sum(column) for column in zip(*found, strict=True)] == [164, 164, 0]
