"""The level of the sandbox on its way from an option into what is printed, the manifest and every line."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from support.miniatures import random_model

import jaxsink
from jaxsink.errors import JaxsinkError
from jaxsink.evals import engine, prepare
from jaxsink.evals.conditions import PLAIN
from jaxsink.evals.engine import graded, result, wait_for
from jaxsink.evals.prepare import Options
from jaxsink.evals.settings import get_setting
from jaxsink.runs.stopping import StoppedError
from jaxsink.sandbox import runner
from jaxsink.sandbox.levels import LEVELS, Level, describe
from jaxsink.tasks.benchmarks import Example
from jaxsink.tasks.exam import Exam, benchmark_exam, gold_exam
from jaxsink.tasks.score import Score
from jaxsink.tasks.vocabulary import tokenizer

SETTING = get_setting("smollm2-135m-instruct/humaneval/small")
CHECK = "def check(candidate):\n    assert candidate(1, 2) == 3\n"
START = "def add(a, b):\n"
FUNCTION = Example("humaneval", "test", 0, "HumanEval/0", START, "    return a + b\n", START, CHECK, "add")


def exam(level: Level, leave: bool = True) -> Exam:
    setting = replace(SETTING, template=None)
    config = random_model("mini-llama").config
    return benchmark_exam(setting, [FUNCTION], tokenizer(), config, allow_code_execution=leave, sandbox=level)


@pytest.mark.parametrize("level", LEVELS)
def test_the_level_is_in_the_manifest_and_in_every_line(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "check_sandbox", lambda level: None)
    monkeypatch.setattr(
        runner, "_run", lambda program, checks, limits, level: runner.Verdict(True, "passed", "", level)
    )
    asked = exam(level)
    assert asked.facts["sandbox"] == level  # of what must be the same for a run to go on
    (question,) = asked.questions
    line = result(question, PLAIN, "text", question.grade("    return a + b\n"), 3)
    assert line["sandbox"] == level and line["correct"] is True


def test_where_no_program_runs_there_is_no_level() -> None:
    assert "sandbox" not in exam("limits", leave=False).facts
    assert "sandbox" not in gold_exam(exam("limits")).facts
    assert "sandbox" not in result(exam("limits").questions[0], PLAIN, "", Score(True, "7"), 1)


def test_the_level_is_said_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    said: list[str] = []
    monkeypatch.setattr(prepare, "check_sandbox", checked.append)
    with pytest.raises(JaxsinkError, match="nowhere"):
        prepare.prepare("nowhere", SETTING.name, Options(allow_code_execution=True, sandbox="limits"), said.append)
    assert checked == ["limits"] and said == [describe("limits")] and "limits, the weaker one, as asked" in said[0]
    with pytest.raises(JaxsinkError, match="nowhere"):
        prepare.prepare("nowhere", SETTING.name, Options(gold=True), said.append)
    assert len(said) == 1
    assert "weaker" not in describe("namespaces")


def test_a_level_that_cannot_be_had_is_refused_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(level: Level) -> None:
        raise JaxsinkError(f"no {level} here.")

    monkeypatch.setattr(prepare, "check_sandbox", refuse)
    with pytest.raises(JaxsinkError, match="no namespaces here"):
        prepare.prepare("nowhere", SETTING.name, Options(allow_code_execution=True), print)


def test_lm_eval_does_not_run_programs() -> None:
    for word in ("--confirm_run_unsafe_code", "--confirm_run", "--sandbox=limits"):
        with pytest.raises(JaxsinkError, match=f"{word}: lm-eval runs the programs of a model unconfined"):
            jaxsink.lm_eval(["--model", "jaxsink", "--tasks", "humaneval", word])


def test_a_stop_is_heard_while_programs_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grace of a stop is shorter than the time of a program, so programs are ended first."""
    killed: list[bool] = []
    monkeypatch.setattr(engine, "kill_all", lambda: killed.append(True))

    def slow(text: str) -> Score:
        end = time.monotonic() + 30
        while not killed and time.monotonic() < end:
            time.sleep(0.01)
        return Score(False, "")

    question: Any = replace(exam("limits").questions[0], grade=slow)
    start = time.monotonic()
    with pytest.raises(StoppedError), graded([(question, PLAIN)], ["text"]) as scores:
        wait_for(scores, lambda: True)
    assert killed and time.monotonic() - start < 10
    with graded([(question, PLAIN)], ["text"]) as scores:
        wait_for(scores, lambda: False)
    assert len(killed) == 1  # where nothing is stopped, nothing is ended


def test_scores_are_waited_for_without_a_stop() -> None:
    with ThreadPoolExecutor(1) as pool:
        score: Future[Score] = pool.submit(lambda: Score(True, "1"))
        score.result()
        wait_for([score], lambda: True)  # finished ones are kept, stop or not
        assert score.result().correct
