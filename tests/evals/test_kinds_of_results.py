"""Lines and manifests whose checksum fits, but not their values: one sentence that names the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.made_evaluation import ANSWER, MANIFEST, SINKS, SPEED, make_evaluation

from jaxsink import JaxsinkError
from jaxsink.cli.main import main
from jaxsink.evals.lm_eval.answers import ANSWERS, read_answers
from jaxsink.evals.prepare import sum_up
from jaxsink.runs.lines import encoded
from jaxsink.tasks.vocabulary import tokenizer

NAN = float("nan")
LINES: list[tuple[str, Any, str]] = [
    ("index", 10**30, "a whole number from 0 to 9007199254740992"),
    ("task_id", None, "a text, not None"),
    ("found", {}, "a text, not {}"),
    ("steps", NAN, "a whole number"),
    ("zlib", -1, "a finite number"),
    ("repeated", 2, "a finite number"),
    ("sandbox", "none", "one of namespaces, limits"),
    ("condition", "K = 7", "which the manifest.json of this run does not have"),
    ("sinks", SINKS | {"layers": [-1]}, "sinks: layers must be a list"),
    ("sinks", SINKS | {"tokens": {"5": "x"}}, "sinks: tokens must be a mapping"),
    ("sinks", {}, "sinks: maps must be"),
    ("t", {"0.5": 3}, "t 0.5 must be a mapping"),
    ("t", {"0.5": {"log_prob": NAN}}, "t 0.5: log_prob must be"),
]
SPEEDS: list[tuple[str, Any]] = [
    ("seconds", -1),
    ("seconds", NAN),
    ("tokens", 1e308),
    ("first", 1),
    ("questions", None),
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"exam": None}, "exam must be a mapping, not None"),
    ({"exam": {**MANIFEST["exam"], "gold": 3}}, "exam: gold must be True or False"),
    ({"exam": {**MANIFEST["exam"], "setting": {"model": []}}}, "exam setting: model must be a text"),
    ({"model": {}}, "model: family must be a text"),
    ({"conditions": {"K = 0": {"k": "x"}}}, "conditions 'K = 0': k must be"),
    ({"conditions": {"K = 0": 3}}, "conditions 'K = 0' must be a mapping"),
    ({"eps": -1.0}, "eps must be"),
    ({"reported": "x"}, "reported must be"),
    ({"format": "2"}, r"has format '2', where this jaxsink \(.*\) has 2"),
]


def test_a_sound_one_is_summed_up(tmp_path: Path) -> None:
    results = sum_up(make_evaluation(tmp_path), "task", tokenizer())
    assert results["conditions"][0]["right"] == 1 and results["throughput"]["tokens_per_second"] == 6


@pytest.mark.parametrize(("name", "value", "message"), LINES)
def test_results(name: str, value: Any, message: str, tmp_path: Path) -> None:
    make_evaluation(tmp_path, results={**ANSWER, name: value})
    with pytest.raises(JaxsinkError, match=rf"line 1 of .*results-0001.jsonl: .*{message}"):
        sum_up(tmp_path, "task", tokenizer())


@pytest.mark.parametrize(("name", "value"), SPEEDS)
def test_speed(name: str, value: Any, tmp_path: Path) -> None:
    make_evaluation(tmp_path, speed={**SPEED, name: value})
    with pytest.raises(JaxsinkError, match=rf"line 1 of .*speed-0001.jsonl: {name} must be"):
        sum_up(tmp_path, "task", tokenizer())


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_manifests(change: dict[str, Any], message: str, tmp_path: Path, capsys: Any) -> None:
    make_evaluation(tmp_path, manifest={**MANIFEST, **change})
    with pytest.raises(JaxsinkError, match=rf"manifest.json.*{message}"):
        sum_up(tmp_path, "task", tokenizer())
    assert main(["evaluate", "mini-llada", "task", "--out", str(tmp_path), "--summary"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_answers_to_the_harness(tmp_path: Path) -> None:
    (tmp_path / f"{ANSWERS}-0001.jsonl").write_bytes(encoded({"asked": "x"}))
    with pytest.raises(JaxsinkError, match="answer' is missing"):
        read_answers(tmp_path)
