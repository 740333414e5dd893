"""What subjects are asked: files of one's own, benchmarks, and what cannot be asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jaxsink_experiments.conduct import choose_experiments
from support.miniatures import random_subject

from jaxsink.cli.main import main
from jaxsink.errors import JaxsinkError
from jaxsink.sampling.sdar import SDARSampler
from jaxsink.sandbox.levels import Level
from jaxsink.sandbox.runner import Verdict
from jaxsink.study import Recorded, Study, prompts
from jaxsink.study.experiments import UNGRADED
from jaxsink.study.prompts import Prompts, TextWindows, find_prompts
from jaxsink.study.run import all_measurements, conduct
from jaxsink.tasks.benchmarks import Example
from jaxsink.tasks.windows import windows

pytestmark = pytest.mark.usefixtures("quick_compilation")
QUESTIONS = [f"Tom has {n} apples. How many apples does Tom have?" for n in range(1, 9)]


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def found(source: Any, **options: Any) -> Prompts:
    asked = find_prompts(source, **options)
    assert isinstance(asked, Prompts)
    return asked


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def test_the_built_in_problems_are_no_prompts() -> None:
    assert find_prompts("task") is None
    assert random_subject("mini-llada").graded


def test_a_text_file_has_a_prompt_per_line_and_nothing_to_grade(written: Any) -> None:
    asked = found(written("mine.txt", "Tom has 3 apples.\n\n  \nMia has 4 balls.\n"))
    assert asked.source == "mine.txt" and not asked.graded
    assert [(one.name, one.text, one.answer) for one in asked.prompts] == [
        ("mine.txt:1", "Tom has 3 apples.", ""),
        ("mine.txt:4", "Mia has 4 balls.", ""),
    ]
    with pytest.raises(JaxsinkError, match="graded"):
        asked.prompts[0].grade("3")


def test_json_lines_may_have_answers(written: Any) -> None:
    asked = found(written("mine.jsonl", lines({"prompt": "a", "answer": 42}, {"prompt": "b", "answer": "1,000"})))
    assert asked.graded and [one.answer for one in asked.prompts] == ["42", "1,000"]
    first, second = (one.grade for one in asked.prompts)
    assert first("it is 41 or 42.").correct and not first("it is 42 or 41").correct and not first("none").correct
    assert second("so 1000").correct
    half = found(written("half.jsonl", lines({"prompt": "a", "answer": 42}, {"prompt": "b"})))
    assert not half.graded  # all must have one


def test_the_digest_follows_from_texts_and_answers(written: Any) -> None:
    one, same, other = (
        found(written("x.jsonl", lines({"prompt": "a", "answer": answer}))).digest for answer in ("1", 1, "2")
    )
    assert one == same != other
    assert found(written("x.txt", "a\n")).digest != found(written("x.txt", "b\n")).digest


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.txt", "", "x.txt is empty; write a prompt per line"),
        ("x.jsonl", "\n\n", "x.jsonl is empty"),
        ("x.jsonl", '{"prompt": "a"}\nnot json\n', 'line 2 of .*x.jsonl is not a JSON object with a "prompt"'),
        ("x.jsonl", '["prompt"]\n', 'line 1 of .*x.jsonl is not a JSON object with a "prompt"'),
        ("x.jsonl", '{"question": "a"}\n', 'line 1 of .*x.jsonl is not a JSON object with a "prompt"'),
        ("x.jsonl", '\n{"prompt": 3}\n', 'line 2 of .*x.jsonl: "prompt" must be text'),
        ("x.jsonl", '{"prompt": " "}\n', '"prompt" must be text'),
        ("x.jsonl", '{"prompt": "a", "answer": [1]}\n', '"answer" a text or a number'),
        ("x.jsonl", '{"prompt": "a", "answer": null}\n', '"answer" a text or a number'),
    ],
)
def test_a_wrong_file_is_named_with_its_line(written: Any, name: str, text: str, words: str) -> None:
    with pytest.raises(JaxsinkError, match=words):
        find_prompts(written(name, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        JaxsinkError, match=r"cannot read .*nowhere.txt .*give a file, or one of task, gsm8k, humaneval"
    ):
        find_prompts(tmp_path / "nowhere.txt")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(JaxsinkError, match=r"bytes.txt is not text in UTF-8"):
        find_prompts(tmp_path / "bytes.txt")
    with pytest.raises(JaxsinkError, match="--data-file is for gsm8k, humaneval and text"):
        find_prompts(tmp_path / "x.txt", data_file="y")


def test_unknown_words_are_named_before_anything_is_measured(written: Any, tmp_path: Path, capsys: Any) -> None:
    path, out = written("x.txt", "Tom has 3 zebras.\n"), tmp_path / "out"
    assert main(["study", "fig1", "--model", "mini-llada", "--prompts", str(path), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "does not know 'zebras' of x.txt:1" in error and error.count("\n") == 1 and not out.exists()


def example(index: int, **parts: str) -> Example:
    texts = {"question": f"q{index}", "answer": f"steps\n#### {index}", "setup": "", "tests": "", **parts}
    values: dict[str, Any] = {"split": "test", "index": index, "task_id": f"test/{index}"}
    return Example(**{name: (texts | values | {"benchmark": "gsm8k", "entry_point": ""})[name] for name in FIELDS})


FIELDS = tuple(Example.__dataclass_fields__)


def test_gsm8k_is_graded_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for = []

    def load(*arguments: Any) -> list[Example]:
        asked_for.append(arguments)
        return [example(n) for n in (7, 8)]

    monkeypatch.setattr(prompts, "load_benchmark", load)
    asked = found("gsm8k", data_file="test.jsonl")
    assert asked_for == [("gsm8k", "test", "test.jsonl")] and asked.source == "gsm8k" and asked.graded
    first = asked.prompts[0]
    assert first.name == "test/7" and first.text.startswith("q7\n") and "####" in first.text
    assert first.grade("so it is 7").correct and not first.grade("so it is 8").correct


def test_humaneval_needs_leave_and_runs_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "load_benchmark", lambda *arguments: [example(0, question="def f():\n")])
    with pytest.raises(JaxsinkError, match="give --allow-code-execution"):
        find_prompts("humaneval")
    ran, checked = [], []
    monkeypatch.setattr(prompts, "program", lambda one, text, style: f"{one.question}|{text}|{style}")
    monkeypatch.setattr(prompts, "checks", lambda one: "checks")

    def run(code: str, checks: str, allow_code_execution: bool, sandbox: Level) -> Verdict:
        ran.append((code, checks, allow_code_execution, sandbox))
        return Verdict(True, "passed", "", sandbox)

    monkeypatch.setattr(prompts, "run_checks", run)
    monkeypatch.setattr(prompts, "check_sandbox", checked.append)
    asked = found("humaneval", allow_code_execution=True, sandbox="limits")
    (one,) = asked.prompts
    assert "```python\ndef f():\n```" in one.text
    score = one.grade("return 1")
    assert score.correct and score.found == "passed" and ran == [("def f():\n|return 1|chat", "checks", True, "limits")]
    assert score.sandbox == asked.sandbox == "limits" and checked == [
        "limits"
    ]  # chosen, seen to before, and in every line
    assert found("gsm8k").sandbox is None


def test_more_prompts_begin_with_the_same(written: Any) -> None:
    asked = found(written("x.txt", "\n".join(QUESTIONS)))
    subject = replace(random_subject("mini-llada"), prompts=asked)
    exams = {total: subject.exam(total, seed=3).questions for total in (2, 5, 8, 100)}
    names = {total: [question.task_id for question in questions] for total, questions in exams.items()}
    assert names[2] == names[8][:2] and names[5] == names[8][:5] and names[100] == names[8]
    assert sorted(names[8]) == [f"x.txt:{n}" for n in range(1, 9)]
    assert names[8] != [question.task_id for question in subject.exam(8, seed=4).questions]
    assert [question.cluster for question in exams[8]] == names[8]
    for question in exams[8]:
        assert question.task_id == f"x.txt:{question.index + 1}"  # which also seeds it


def test_prompts_that_are_too_long_are_left_out(written: Any) -> None:
    path = written("x.txt", "\n".join([*QUESTIONS, f"{QUESTIONS[0]} {QUESTIONS[1]}"]))
    subject = random_subject("mini-llada")
    every = replace(subject, prompts=found(path)).exam(100, seed=3)
    longest = min(len(question.prompt) for question in every.questions)
    few = replace(subject, prompts=found(path, longest=longest)).exam(100, seed=3)
    assert [q.index for q in few.questions] == [q.index for q in every.questions if len(q.prompt) <= longest]
    assert len(few.questions) == 8 and few.bucket == longest
    assert found(path, longest=longest).digest != found(path).digest
    with pytest.raises(JaxsinkError, match="--longest 2: every prompt of"):
        replace(subject, prompts=found(path, longest=2)).exam(5, seed=0)
    with pytest.raises(JaxsinkError, match="--longest 9 is a number of tokens"):
        find_prompts("task", longest=9)


def test_windows_of_a_text_are_given_and_scored_and_never_graded(written: Any) -> None:
    path = written("book.txt", " ".join(QUESTIONS))
    asked = find_prompts("text", path, window=10)
    assert isinstance(asked, TextWindows) and asked.source == "book.txt in windows of 10"
    subject = replace(random_subject("mini-llada"), prompts=asked)
    assert subject.answered and not subject.graded
    exam = subject.exam(4, seed=3)
    known = windows(path, 10, subject.tokenizer)
    for question in exam.questions:
        assert question.prompt == known[question.index].context and question.gold == known[question.index].rest
        assert question.grade("whatever").correct is None
    assert len(exam.questions) == 4 and exam.questions[:2] == subject.exam(2, seed=3).questions
    assert exam.bucket == len(exam.questions[0].prompt)
    other = find_prompts("text", path, window=8)
    assert other is not None and other.digest != asked.digest
    with pytest.raises(JaxsinkError, match="needs a text: --data-file"):
        find_prompts("text")


def test_so_many_tokens_are_written_and_scored() -> None:
    subject = random_subject("mini-llada")
    short = subject.writing(4)
    assert short.sampler.response_length == 4 and subject.writing().sampler == subject.sampler
    for whole, cut in zip(subject.exam(3, 0).questions, short.exam(3, 0).questions, strict=True):
        assert cut.gold == whole.gold[:4] and len(whole.gold) > 4 and cut.prompt == whole.prompt
    assert subject.writing(cache="dual").sampler.cache == "dual"
    assert random_subject("mini-llama").writing(cache="dual").sampler == random_subject("mini-llama").sampler
    assert random_subject("mini-dream").writing(cache="dual").sampler.cache == "dual"
    with pytest.raises(JaxsinkError, match="--cache dual: SDARSampler, which mini-dream uses, has no cache"):
        replace(random_subject("mini-dream"), sampler=SDARSampler()).writing(cache="dual")


def test_prompts_without_answers_run_all_but_masking(written: Any, tmp_path: Path) -> None:
    asked = found(written("x.txt", "\n".join(QUESTIONS[:5])))
    subject = replace(random_subject("mini-llada"), prompts=asked)
    study = Study([subject], tmp_path / "study", problems=9, generations=9, eps=0.5, untrained=0)
    by_name = {one.name: one for one in conduct(study, choose_experiments(["fig1", "table1", "controls"]))}
    for name in ("table1", "controls"):
        assert by_name[name].verdict == "not testable here" and by_name[name].found == UNGRADED
        assert not by_name[name].tests and not by_name[name].figures
    (test,) = by_name["fig1"].tests
    assert test.problems == 5 and [one.null for one in test.comparisons] == ["queries shuffled"]
    assert not (tmp_path / "study" / "answers").exists()


@pytest.mark.slow
def test_prompts_with_answers_are_scored_and_a_file_with_few_is_finished(written: Any, tmp_path: Path) -> None:
    text = lines(*({"prompt": question, "answer": n} for n, question in enumerate(QUESTIONS[:5], 1)))
    subject = replace(random_subject("mini-llada"), prompts=found(written("x.jsonl", text)))
    study = Study([subject], tmp_path / "study", problems=9, generations=2, eps=0.5, untrained=0)
    experiments = choose_experiments(["clean"])
    (finding,) = conduct(study, experiments)
    assert finding.verdict == "not testable here" and "none to lose" in finding.found
    assert [spec.cost(study, one) for one, spec in all_measurements(study, experiments)] == [0] * 3


def test_other_prompts_are_other_measurements(written: Any, tmp_path: Path) -> None:
    subject = random_subject("mini-llada")
    study = Study([subject], tmp_path)
    asked = [None, *(found(written("x.txt", f"{question}\n")) for question in QUESTIONS[:2])]
    paths = {Recorded().path(study, replace(subject, prompts=one)) for one in asked}
    assert len(paths) == 3
