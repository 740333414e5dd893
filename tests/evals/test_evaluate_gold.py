"""Perplexity of published answers that an autoregressive model writes: what the engine keeps is what single passes and a
slow transformer say, and the summary adds it up."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from support.configs import FAMILIES
from support.miniatures import random_model
from support.models import lively
from support.reference.transformer import run as slow_run

import jaxsink
from jaxsink.cli.main import main
from jaxsink.errors import JaxsinkError
from jaxsink.evals.conditions import Named, comparisons, conditions
from jaxsink.evals.engine import Evaluation, ask_all, evaluate
from jaxsink.evals.results import read_results
from jaxsink.evals.settings import get_setting
from jaxsink.evals.summary import summarise
from jaxsink.parallel import make_mesh, shard
from jaxsink.sampling.interventions import DropPositions
from jaxsink.sinks import MaskSinks
from jaxsink.tasks.benchmarks import Example
from jaxsink.tasks.exam import Exam, Question, gold_exam, task_exam, ungraded
from jaxsink.tasks.prompts import gold_text, prompt_texts
from jaxsink.tasks.vocabulary import tokenizer

pytestmark = pytest.mark.usefixtures("quick_compilation")
CONDITIONS = conditions((0, 2), ("top", "random", "first"))


@pytest.fixture(scope="module")
def model() -> jaxsink.Model:
    return random_model("mini-llama")


@pytest.fixture(scope="module")
def exam(model) -> Exam:
    return gold_exam(task_exam(model.config, list(range(5))))


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


def slow_divergence(model: jaxsink.Model, question: Question, k: int) -> tuple[list[float], list[float]]:
    """(log-probabilities, divergences) of the answer's tokens by a slow transformer in float64, written token by token.

    Every query hides the k keys to which the query before it paid most, and later queries see what it made of the rest.
    """
    tokens = np.array([[*question.prompt, *question.gold]])
    config, length, start = model.config, tokens.shape[1], len(question.prompt)
    real = np.ones(tokens.shape, bool)
    drop = np.zeros((config.layers, 1, config.heads, length, length), bool)
    for query in range(start, length - 1):  # the first step hides nothing
        _, maps = slow_run(config, model.params, tokens[:, :query], real[:, :query], drop[..., :query, :query])
        for index in np.ndindex(config.layers, 1, config.heads):
            drop[(*index, query)][np.argsort(-maps[(*index, query - 1)], kind="stable")[:k]] = True
    plain, masked = (
        np.asarray(log_softmax(slow_run(config, model.params, tokens, real, hidden)[0][0])) for hidden in (None, drop)
    )
    places = [(start - 1 + n, token) for n, token in enumerate(question.gold)]
    apart = [float((np.exp(plain[p]) * (plain[p] - masked[p])).sum()) for p, _ in places]
    return [float(masked[p, token]) for p, token in places], apart


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def test_likelihood_and_divergence_against_a_slow_transformer() -> None:
    model = lively(FAMILIES["llama3.1"])
    prompt, gold = (5, 6, 7, 8, 9), (11, 12, 3, 14, 15, 16)  # 3 ends texts; here it is a token like any other
    asked = Question(0, "made/0", prompt, ungraded, gold)
    facts = {"setting": {"name": "made"}, "benchmark": "made", "splits": []}
    others = (replace(asked, index=1, prompt=prompt[:2], gold=gold[1:3]), replace(asked, index=2, prompt=prompt[1:]))
    made = Exam("made", (asked, *others), jaxsink.ARSampler(4), tokenizer(), facts, bucket=4)
    job = Evaluation(model, gold_exam(made), conditions((0, 2), ("top",)), rows=4, eps=None)
    lines: list[dict] = []
    ask_all(job, lines.extend)
    for line in lines:
        question = job.exam.questions[line["index"]]
        log_prob, apart = slow_divergence(model, question, 0 if line["condition"] == "K = 0" else 2)
        assert line["log_prob"] == pytest.approx(sum(log_prob), rel=1e-4)
        assert line["kl"] == pytest.approx(np.mean(apart), rel=1e-3, abs=1e-6)
        assert (line["kl"] > 0.01) == (line["condition"] != "K = 0") and line["tokens"] == len(question.gold)


@pytest.mark.parametrize("place", [{"rows": 3}, {"devices": 2}, {"mesh": (2, 2)}], ids=str)
def test_rows_and_devices_change_nothing(model, exam, folder, place, tmp_path) -> None:
    job = Evaluation(model, exam, CONDITIONS, seed=3, rows=place.get("rows", 8))
    if "devices" in place:
        job = replace(job, devices=jax.devices()[: place["devices"]])
    if "mesh" in place:
        job = replace(job, model=shard(model, make_mesh(*place["mesh"], jax.devices()[:4])))
    evaluate(job, tmp_path)
    one, other = read_results(tmp_path), read_results(folder)
    assert set(one) == set(other)
    for key, line in one.items():
        assert line["log_prob"] == pytest.approx(other[key]["log_prob"], rel=1e-4)
        assert line["kl"] == pytest.approx(other[key]["kl"], rel=1e-3, abs=1e-6)


def test_an_answer_that_is_missing_is_named(model) -> None:
    exam = task_exam(model.config, [0, 1])
    missing = replace(exam, questions=(exam.questions[0], replace(exam.questions[1], gold=())))
    with pytest.raises(JaxsinkError, match="task/test/1 has no published answer"):
        gold_exam(missing)


def test_command(tmp_path, capsys) -> None:
    arguments = ["evaluate", "mini-llama", "task", "--gold", "--limit", "2", "--k", "0,1", "--select", "top,random"]
    assert main([*arguments, "--out", str(tmp_path / "a")]) == 0
    shown = capsys.readouterr().out
    assert "perplexity of the published answers" in shown and "t = 0.25" not in shown
    arguments[1] = "mini-llada"
    assert main([*arguments, "--canvases", "2", "--out", str(tmp_path / "b")]) == 0
    shown = capsys.readouterr().out
    assert "perplexity of the published answers" in shown and "t = 0.25" in shown and "K = 1, random" in shown
    assert main([*arguments, "--canvases", "2", "--out", str(tmp_path / "b"), "--summary", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert [line["condition"] for line in results["conditions"]] == ["K = 0", "K = 1, top", "K = 1, random"]
    assert all(set(line["t"]) == {"0.25", "0.5", "0.75"} for line in (*results["conditions"], *results["tests"]))
    assert main([*arguments, "--canvases", "3", "--out", str(tmp_path / "b")]) == 2
    assert "canvases is 2, not 3" in capsys.readouterr().err
