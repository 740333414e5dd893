"""lm-evaluation-harness runs its gsm8k on built-in models, offline: every answer and score is that of `jaxsink evaluate`."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.cli.main import main
from jaxsink.evals.conditions import conditions
from jaxsink.evals.engine import Evaluation, evaluate
from jaxsink.evals.results import read_results
from jaxsink.evals.settings import EvalSetting, Shots, get_setting
from jaxsink.tasks.benchmarks import Example
from jaxsink.tasks.exam import benchmark_exam, task_exam
from jaxsink.tasks.prompts import prompt_texts
from jaxsink.tasks.task import problems
from jaxsink.text import chat
from jaxsink.text.tokenizer import Tokenizer

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
pytest.importorskip("lm_eval", reason="needs lm-evaluation-harness (extra `eval`)")

# What lm-eval and the libraries it brings warn about is not ours to mend.
pytestmark = [pytest.mark.usefixtures("quick_compilation"), pytest.mark.filterwarnings("default")]
QUESTIONS = 12
# In the form of GSM8K; the built-in models do not know the words, but have to say the same of them here and there.
REAL_FORM = (
    ("A baker has 1,200 rolls and sells 3/4 of them. How many are left?", "She sells <<1200*3/4=900>>900.\n#### 300"),
    ("Jo's pens cost $4 each. What do 3 cost?", "They cost 3 * $4 = $<<3*4=12>>12.\n#### 12"),
)
DECODING = {
    "mini-llama": ("autoregressive", {"max_new_tokens": 32}),
    "mini-llada": ("llada", {"gen_length": 32, "steps": 16, "block_length": 8}),
    "mini-dream": ("dream", {"max_new_tokens": 32, "steps": 16, "temperature": 0.3, "top_p": 0.9}),
}


def rows() -> list[dict[str, str]]:
    own = [{"question": problem.question, "answer": problem.answer} for problem in problems("test", QUESTIONS)]
    return own + [{"question": question, "answer": answer} for question, answer in REAL_FORM]


@pytest.fixture(autouse=True)
def only_our_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """lm-eval reads some ten thousand files to know its own tasks, in every run."""
    from lm_eval import tasks

    class OnlyIncluded(tasks.TaskManager):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "include_defaults": False})

    monkeypatch.setattr(tasks, "TaskManager", OnlyIncluded)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> Path:
    """A folder with lm-eval's own gsm8k twice, its data from files here: once as it is, once with the bare question."""
    import lm_eval.tasks

    folder = tmp_path_factory.mktemp("tasks")
    train = [{"question": problem.question, "answer": problem.answer} for problem in problems("train", 20)]
    for name, data in (("test", rows()), ("train", train)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data), encoding="utf-8")
    files = {name: str(folder / f"{name}.jsonl") for name in ("train", "test")}
    here = {
        "include": f"{lm_eval.tasks.__path__[0]}/gsm8k/gsm8k.yaml",
        "task": "gsm8k_here",
        "tag": [],
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": files},
    }
    bare = {**here, "task": "gsm8k_bare", "doc_to_text": "{{question}}", "num_fewshot": 0}
    for task in (here, bare):  # JSON is YAML
        (folder / f"{task['task']}.yaml").write_text(json.dumps(task), encoding="utf-8")
    return folder


def harness(
    folder: Path, out: Path, task: str, model_args: str, *more: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(samples in order, scores) of a run of the command line."""
    arguments = ["--model", "jaxsink", "--model_args", model_args, "--include_path", str(folder), "--tasks", task]
    code = main(["lm-eval", *arguments, "--log_samples", "--output_path", str(out), *more])
    assert code == 0
    (samples,) = out.rglob("samples_*.jsonl")
    (results,) = out.rglob("results_*.json")
    lines = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    return sorted(lines, key=lambda line: line["doc_id"]), json.loads(results.read_text())["results"][task]


def setting(name: str) -> EvalSetting:
    """lm-eval's gsm8k without examples and with the bare question, as a setting of ours."""
    decoder, options = DECODING[name]
    small = get_setting("smollm2-135m-instruct/gsm8k/small")
    return replace(
        small,
        name=f"{name}/gsm8k/bare",
        template=None,
        question="{question}",
        decoder=decoder,
        options=tuple(options.items()),
    )


@pytest.mark.parametrize("name", DECODING)
def test_scores_are_those_of_the_engine(name: str, tasks: Path, tmp_path: Path) -> None:
    """Texts, strict and flexible matches of every question, plain and with the top sinks hidden."""
    model, tokenizer = jaxsink.load(name, dtype="float32"), Tokenizer.load(name)
    asked = [Example("gsm8k", "test", n, f"gsm8k/test/{n}", **row) for n, row in enumerate(rows())]
    exam = benchmark_exam(setting(name), asked, tokenizer, model.config)
    evaluate(Evaluation(model, exam, conditions((0, 3), ("top",)), seed=7, eps=None), tmp_path / "ours")
    ours = read_results(tmp_path / "ours")
    options = ",".join(f"{key}={value}" for key, value in DECODING[name][1].items())
    marks = set()
    for label, masking in (("K = 0", ""), ("K = 3, top", ",k=3,select=top")):
        arguments = f"pretrained={name},seed=7,{options}{masking}"
        theirs, scores = harness(tasks, tmp_path / label, "gsm8k_bare", arguments, "--batch_size", "5")
        for rule, field in (("strict-match", "strict"), ("flexible-extract", "flexible")):
            samples = [sample for sample in theirs if sample["filter"] == rule]
            assert [sample["doc_id"] for sample in samples] == list(range(len(asked)))
            for sample in samples:
                line = ours[sample["doc_id"], label]
                assert sample["resps"][0][0] == line["text"].split("Question:")[0]
                assert bool(sample["exact_match"]) == line[field]
                marks.add((label, field, line[field]))
            share = sum(ours[n, label][field] for n in range(len(asked))) / len(asked)
            assert scores[f"exact_match,{rule}"] == pytest.approx(share)
    assert {(label, "strict", mark) for label, mark in (("K = 0", True), ("K = 0", False))} <= marks
    assert ("K = 3, top", "flexible", False) in marks


def test_the_built_in_exam_agrees(tasks: Path, tmp_path: Path) -> None:
    """`jaxsink evaluate mini-llama task` and lm-eval's strict match, on the built-in questions."""
    model = jaxsink.load("mini-llama", dtype="float32")
    exam = task_exam(model.config, list(range(QUESTIONS)))
    evaluate(Evaluation(model, exam, conditions((0,), ()), eps=None), tmp_path / "ours")
    ours = read_results(tmp_path / "ours")
    theirs, _ = harness(tasks, tmp_path, "gsm8k_bare", "pretrained=mini-llama,gen_length=32", "--batch_size", "auto")
    strict = [sample for sample in theirs if sample["filter"] == "strict-match"][:QUESTIONS]
    assert [bool(sample["exact_match"]) for sample in strict] == [ours[n, "K = 0"]["correct"] for n in range(QUESTIONS)]
    assert sum(bool(sample["exact_match"]) for sample in strict) >= QUESTIONS - 1


def test_prompts_with_examples_are_ours(tasks: Path, tmp_path: Path) -> None:
    """lm-eval's gsm8k as it is, with drawn examples: the same texts in front of the same questions."""
    theirs, _ = harness(
        tasks,
        tmp_path,
        "gsm8k_here",
        "pretrained=mini-llama,gen_length=4",
        "--num_fewshot",
        "3",
        "--limit",
        "4",
        "--batch_size",
        "4",
    )
    asked = [Example("gsm8k", "test", n, f"gsm8k/test/{n}", **row) for n, row in enumerate(rows()[:4])]
    train = [
        Example("gsm8k", "train", n, f"gsm8k/train/{n}", problem.question, problem.answer)
        for n, problem in enumerate(problems("train", 20))
    ]
    small = get_setting("smollm2-135m-instruct/gsm8k/small")
    texts = prompt_texts(replace(small, template=None, shots=Shots(drawn=3)), asked, train)
    found = {sample["doc_id"]: sample["arguments"]["gen_args_0"]["arg_0"] for sample in theirs}
    assert [found[n] for n in range(4)] == texts
    until = {stop for sample in theirs for stop in sample["arguments"]["gen_args_0"]["arg_1"]["until"]}
    assert until == set(small.stops)


def instance(kind: str, *arguments: Any, doc_id: int | None = None) -> Any:
    from lm_eval.api.instance import Instance

    return Instance(kind, {}, arguments, 0, (None, doc_id, 1))


@pytest.fixture(scope="module")
def llama() -> Any:
    from jaxsink.evals.lm_eval.harness import JaxsinkLM

    return JaxsinkLM("mini-llama", batch_size=4, max_new_tokens=32)


def test_a_run_that_was_ended_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts and likelihoods that are kept are not asked for again; other models and damaged lines are refused."""
    from jaxsink.evals.lm_eval import harness

    asked = [problem.question for problem in problems("test", 6)]
    texts = [instance("generate_until", text, {"until": ["####"]}, doc_id=n) for n, text in enumerate(asked)]
    pairs = [instance("loglikelihood", text, " 7") for text in asked]
    options: dict[str, Any] = {"batch_size": 2, "max_new_tokens": 16}
    plain = harness.JaxsinkLM("mini-llama", **options)
    expected = plain.generate_until(texts), plain.loglikelihood(pairs), plain.loglikelihood_rolling(pairs)
    monkeypatch.setattr(harness, "PART", 1)
    kept = harness.JaxsinkLM("mini-llama", **options, out=str(tmp_path / "out"))
    generate, likelihoods, calls = harness.generate, harness.likelihoods, []

    def second_fails(original: Any) -> Any:
        def called(*args: Any, **more: Any) -> Any:
            calls.append(original)
            if calls.count(original) == 2:
                raise KeyboardInterrupt
            return original(*args, **more)

        return called

    monkeypatch.setattr(harness, "generate", second_fails(generate))
    monkeypatch.setattr(harness, "likelihoods", second_fails(likelihoods))
    for ask, requests in ((kept.generate_until, texts), (kept.loglikelihood, pairs)):
        with pytest.raises(KeyboardInterrupt):
            ask(requests)
    found = kept.generate_until(texts), kept.loglikelihood(pairs), kept.loglikelihood_rolling(pairs)
    assert found[0] == expected[0] and found[1] == expected[1]
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-6)
    assert calls.count(generate) == 2 + 2  # batches; the first one was kept, the second one was asked for again
    before = len(calls)
    again = harness.JaxsinkLM("mini-llama", **{**options, "batch_size": 3}, out=str(tmp_path / "out"))
    assert (again.generate_until(texts), again.loglikelihood(pairs), again.loglikelihood_rolling(pairs)) == found
    assert len(calls) == before
    for other in ({"k": 1}, {"seed": 1}):
        with pytest.raises(JaxsinkError, match="holds another lm-eval"):
            harness.JaxsinkLM("mini-llama", **options, **other, out=str(tmp_path / "out")).generate_until(texts)
    path = tmp_path / "out" / "answers-0001.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"answer": "', b'"answer": "x', 1))
    with pytest.raises(JaxsinkError, match=r"line 1 of .* is damaged or was changed"):
        again.generate_until(texts)


def test_likelihoods_are_of_the_right_tokens(llama) -> None:
    asked = problems("test", 2)
    pairs = [(problem.question, problem.answer) for problem in asked] + [(asked[0].question, asked[1].answer)]
    requests = [instance("loglikelihood", *pair) for pair in (*pairs, ("", asked[0].question))]
    found = llama.loglikelihood(requests)
    assert [greedy for _, greedy in found] == [True, True, False, False]
    for (context, answer), (value, _) in zip((*pairs, ("", asked[0].question)), found, strict=True):
        ids = np.array([llama.text.encode(context + answer, add_special_tokens=True)])
        given = len(llama.text.encode(context, add_special_tokens=True))
        scores = np.asarray(jaxsink.forward(llama.model, ids).logits, np.float64)[0]
        table = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
        assert value == pytest.approx(sum(table[n - 1, ids[0, n]] for n in range(given, ids.shape[1])), abs=1e-3)
    rolling = llama.loglikelihood_rolling([instance("loglikelihood_rolling", asked[0].question)])
    assert rolling[0] == pytest.approx(found[3][0], abs=1e-3)
    assert llama.loglikelihood_rolling([instance("loglikelihood_rolling", "")]) == [0.0]


def test_texts_end_where_they_should_and_repeats_differ(llama) -> None:
    question = problems("test", 1)[0].question
    plain, cut = llama.generate_until([instance("generate_until", question, {"until": stop}) for stop in ([], "####")])
    assert "####" in plain and cut == plain.split("####")[0]
    drawn = {"until": [], "do_sample": True, "temperature": 3.0}
    one = instance("generate_until", question, drawn, doc_id=5)
    first, second = llama.generate_until([one, one])
    assert first != second and llama.generate_until([one]) == [first]


def test_long_prompts_lose_their_beginning(llama, caplog: pytest.LogCaptureFixture) -> None:
    question = problems("test", 1)[0].question
    room = llama.max_length - 32
    kept = llama.end_of(llama.tok_encode(question * 30), room)
    assert len(kept) == room and list(kept) == llama.tok_encode(question * 30)[-room:]
    assert "are cut" in caplog.text
    with pytest.raises(JaxsinkError, match="does not fit max_length"):
        llama.fitting([1], [2] * llama.max_length)


def test_bos_is_never_doubled(llama) -> None:
    bos = llama.text.special["bos"]
    assert llama.tok_encode("Mia has")[0] == bos
    assert llama.tok_encode("<|bos|>Mia has") == llama.tok_encode("Mia has")
    assert llama.tok_encode("Mia has", add_special_tokens=False)[0] != bos


def test_chat_templates_are_ours(llama, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JaxsinkError, match="no chat template is known"):
        llama.chat_template(True)
    form = chat.get("llama3.1")
    monkeypatch.setattr(llama.text, "chat_form", lambda template: chat.get(template or form))
    monkeypatch.setattr(llama, "template", None)
    asked = [{"role": "user", "content": "What is 1 + 1?"}]
    assert llama.apply_chat_template(asked) == chat.render(asked, form)
    begun = [*asked, {"role": "assistant", "content": "It is "}]
    assert llama.apply_chat_template(begun, add_generation_prompt=False) == chat.render(asked, form) + "It is"
    assert llama.chat_template(False) is None and "qwen2" in llama.chat_template("qwen2")
    assert llama.apply_chat_template(asked) == chat.render(asked, "qwen2")
    assert llama.tokenizer_name == "mini-llama"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("pretrained=mini-llama,block_length=8", "no argument 'block_length' for a llama model"),
        ("pretrained=nowhere", "no checkpoint at nowhere"),
        ("pretrained=mini-llama,mesh=8", "such as 2x4"),
        ("pretrained=mini-llama,mc_num=many", "mc_num takes a whole number"),
        ("pretrained=mini-llama,gen_length=256", "no room for a prompt"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: str, message: str, tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--model", "jaxsink", "--include_path", str(tasks), "--tasks", "gsm8k_bare"]
    assert main(["lm-eval", *common, "--model_args", arguments]) == 2
    assert message in capsys.readouterr().err
