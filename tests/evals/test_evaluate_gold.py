"""Perplexity of published answers: what the engine keeps is what single passes say, and the summary adds it up."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from support.miniatures import random_model

import jaxsink
from jaxsink.cli.main import main
from jaxsink.errors import JaxsinkError
from jaxsink.evals.conditions import Named, comparisons, conditions
from jaxsink.evals.engine import Evaluation, evaluate
from jaxsink.evals.results import read_results
from jaxsink.evals.settings import get_setting
from jaxsink.evals.summary import summarise
from jaxsink.sampling.interventions import DropPositions
from jaxsink.sinks import MaskSinks
from jaxsink.tasks.benchmarks import Example
from jaxsink.tasks.exam import Exam, gold_exam, task_exam
from jaxsink.tasks.prompts import gold_text, prompt_texts

pytestmark = pytest.mark.usefixtures("quick_compilation")
CONDITIONS = conditions((0, 2), ("top", "random", "first"))


@pytest.fixture(scope="module")
def model() -> jaxsink.Model:
    return random_model("mini-llama")


@pytest.fixture(scope="module")
def exam(model) -> Exam:
    return gold_exam(task_exam(model.config, list(range(5))), model.config)


@pytest.fixture(scope="module")
def folder(model, exam, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gold")
    evaluate(Evaluation(model, exam, CONDITIONS, seed=3, rows=8), folder)
    return folder


def test_unmasked_is_one_pass_over_question_and_answer(model, exam, folder) -> None:
    kept = read_results(folder)
    for question in exam.questions:
        tokens = np.array([[*question.prompt, *question.gold]])
        table = np.asarray(jax.nn.log_softmax(jaxsink.forward(model, tokens).logits[0]), np.float64)
        start = len(question.prompt)
        expected = sum(table[start - 1 + n, token] for n, token in enumerate(question.gold))
        line = kept[question.index, "K = 0"]
        assert line["tokens"] == len(question.gold) > 5
        assert line["log_prob"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("label", "policy"),
    [
        ("K = 2, top", MaskSinks(2)),
        ("K = 2, random", MaskSinks(2, select="random")),
        ("K = 2, first", DropPositions((0, 1))),
    ],
)
def test_masked_is_a_single_forced_run(model, exam, folder, label, policy) -> None:
    question = exam.questions[1]
    sampler = jaxsink.ARSampler(len(question.gold))
    out = jaxsink.generate(
        model, [list(question.prompt)], sampler, force=[list(question.gold)], intervene=policy, seed=3 + question.index
    )
    kept = read_results(folder)
    assert kept[question.index, label]["log_prob"] == pytest.approx(float(np.sum(out.log_prob)), abs=1e-3)
    assert abs(kept[question.index, label]["log_prob"] - kept[question.index, "K = 0"]["log_prob"]) > 1e-2


def test_summary_is_perplexity_per_token(folder) -> None:
    results = summarise(folder, str)
    kept = [line for (_, label), line in read_results(folder).items() if label == "K = 2, top"]
    mean = sum(line["log_prob"] for line in kept) / sum(line["tokens"] for line in kept)
    line = next(line for line in results["conditions"] if line["condition"] == "K = 2, top")
    assert line["perplexity"] == pytest.approx(math.exp(-mean)) and line["low"] <= line["perplexity"] <= line["high"]
    pairs = comparisons([Named(str(one), one.k, one.select) for one in CONDITIONS])
    assert {(test["condition"], test["against"], test["kind"]) for test in results["tests"]} == set(pairs)
    assert ("K = 2, first", "K = 2, random", "random") in pairs
    assert results["gold"] and not results["sinks"]


def test_a_folder_is_not_continued_with_other_answers(model, exam, folder) -> None:
    first = exam.questions[0]
    other = replace(exam, questions=(replace(first, gold=first.gold[:-1]), *exam.questions[1:]))
    with pytest.raises(JaxsinkError, match="prompts_sha256 differs"):
        evaluate(Evaluation(model, other, CONDITIONS, seed=3), folder)


def test_the_answer_goes_on_where_the_prompt_ends() -> None:
    code = Example("humaneval", "test", 0, "HumanEval/0", 'def f():\n    """One."""\n', "    return 1\n")
    for name in ("llama-3.1-8b-instruct/humaneval/study", "smollm2-135m-instruct/humaneval/small"):
        setting = get_setting(name)
        prompt = prompt_texts(setting, [code])[0]
        assert (prompt + gold_text(setting, code)).endswith('```python\ndef f():\n    """One."""\n\n    return 1\n')
    sum_ = Example("gsm8k", "test", 0, "gsm8k/0", "One and one?", "1 + 1 = <<1+1=2>>2\n#### 2")
    assert gold_text(get_setting("smollm2-135m-instruct/gsm8k/small"), sum_) == sum_.answer
    assert gold_text(get_setting("llama-3.1-8b-instruct/gsm8k/study"), sum_).endswith("= 2\nThe final answer is 2")
    bare = replace(get_setting("smollm2-135m-instruct/gsm8k/small"), template=None)
    assert gold_text(bare, sum_) == " " + sum_.answer


def test_command(tmp_path, capsys) -> None:
    arguments = ["evaluate", "mini-llama", "task", "--gold", "--limit", "2", "--k", "0,1", "--select", "top,random"]
    assert main([*arguments, "--out", str(tmp_path / "a")]) == 0
    assert "perplexity of the published answers" in capsys.readouterr().out
    assert main(["evaluate", "mini-llada", "task", "--gold", "--limit", "2", "--out", str(tmp_path / "b")]) == 2
    assert "needs an autoregressive model" in capsys.readouterr().err and not (tmp_path / "b").exists()
