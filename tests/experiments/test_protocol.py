"""The protocol experiment: which rows lose keys, what is compared with what, and where the attention goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jaxsink_experiments import beyond_protocol as protocol
from jaxsink_experiments.conduct import choose_experiments
from jaxsink_experiments.masking import PLAIN
from jaxsink_experiments.succession import Moved
from support.miniatures import random_subject

import jaxsink
from jaxsink import record
from jaxsink.evals.conditions import hide
from jaxsink.sinks import MaskSinks
from jaxsink.study import Measured, Study
from jaxsink.study.prompts import find_prompts
from jaxsink.study.run import conduct
from jaxsink.study.succession import PROBLEMS, Succession
from jaxsink.study.verdicts import decide

N = 40
CLUSTERS = [f"problem {number // 2}" for number in range(N)]


def measured(name: str, is_diffusion: bool, nats: dict[tuple[str, str], float]) -> Measured:
    """A model that loses so many nats, about, under each protocol with these keys hidden."""
    noise = np.random.default_rng(0).normal(0, 0.05, N)
    model = SimpleNamespace(config=SimpleNamespace(vocab=100))
    subject: Any = SimpleNamespace(name=name, is_diffusion=is_diffusion, model=model, graded=False)
    losses = {PLAIN: np.full(N, 1.0)}
    for number, both in enumerate((p, h) for p in protocol.PROTOCOLS for h in protocol.HIDDEN):
        losses[protocol.condition(subject, *both)] = 1.0 + nats.get(both, 0.0) + noise * (1 + number / 10)
    return Measured(subject, {}, {}, losses, {}, CLUSTERS)


def test_every_kind_has_both_protocols_and_its_own_goes_without_saying() -> None:
    arm, dlm = random_subject("mini-llama"), random_subject("mini-llada")
    study: Any = None
    assert len(protocol.conditions(arm, study)) == len(protocol.conditions(dlm, study)) == 15
    assert protocol.condition(arm, protocol.EVERY, "the top key") == hide(1, rows="all")
    assert protocol.condition(arm, protocol.FEW, "5 top keys") == hide(5)
    assert protocol.condition(dlm, protocol.EVERY, "the first token") == hide(1, "first")
    assert protocol.condition(dlm, protocol.FEW, "a partner") == hide(1, "partner", rows="decoded")
    assert [protocol.rows_of(arm, p) for p in protocol.PROTOCOLS] == ["all", "newest"]
    assert [protocol.rows_of(dlm, p) for p in protocol.PROTOCOLS] == ["all", "decoded"]


def verdict_of(tests: list[Any], words: str) -> tuple[str, Any]:
    (found,) = (test for test in decide(tests) if words in test.statistic)
    return found.verdict, found


def test_a_sink_that_few_rows_lose_is_held_against_one_that_all_lose() -> None:
    first = "the first token"
    one = measured("m", False, {(protocol.EVERY, first): 0.0, (protocol.FEW, first): 1.0})
    verdict, test = verdict_of(list(protocol.protocol_tests(one)), f"lost with {first} hidden from newest")
    assert verdict == "supported" and test.value == pytest.approx(1.0, abs=0.05)
    (comparison,) = test.comparisons
    assert comparison.null == "hidden from every row" and comparison.difference == pytest.approx(1.0, abs=0.05)
    turned = measured("m", False, {(protocol.EVERY, first): 1.0, (protocol.FEW, first): 0.0})
    assert verdict_of(list(protocol.protocol_tests(turned)), f"{first} hidden from newest")[0] == "refuted"
    same = measured("m", True, {})
    assert verdict_of(list(protocol.protocol_tests(same)), "with 5 top keys hidden")[0] != "supported"


@pytest.mark.parametrize("rows", protocol.PROTOCOLS)
@pytest.mark.parametrize(
    ("hidden", "other", "expected"),
    [
        ("the top key", "a partner", "refuted"),
        ("the top key", "equal mass", "refuted"),
        ("the top key", "5 partners", "supported"),
        ("5 top keys", "5 partners", "refuted"),
        ("5 top keys", "equal mass to 5", "refuted"),
        ("5 top keys", "a partner", "supported"),
    ],
)
def test_sinks_are_held_against_both_controls_under_both_protocols(
    rows: str, hidden: str, other: str, expected: str
) -> None:
    made = measured("m", True, {(rows, hidden): 0.5, (rows, other): 0.9})
    words = f"nats per token lost with {hidden}, and not with others, hidden from {rows}"
    verdict, test = verdict_of(list(protocol.protocol_tests(made)), words)
    assert verdict == expected and [one.null for one in test.comparisons] == list(protocol.CONTROLS[hidden])


def test_controls_of_five_keys_are_five_keys() -> None:
    dlm = random_subject("mini-llada")
    assert protocol.condition(dlm, protocol.EVERY, "5 partners") == hide(5, "partner")
    assert protocol.condition(dlm, protocol.FEW, "equal mass to 5") == hide(5, "mass", rows="decoded")


def test_kinds_are_compared_under_the_same_protocol_and_as_in_the_paper() -> None:
    top = "the top key"
    arm = measured("arm", False, {(protocol.EVERY, top): 0.1, (protocol.FEW, top): 1.0})
    dlm = measured("dlm", True, {(protocol.EVERY, top): 0.1, (protocol.FEW, top): 2.0})
    tests = decide(list(protocol.kind_tests([arm, dlm])))
    assert [test.verdict for test in tests] == ["undecided", "refuted", "supported"]
    assert [test.comparisons[0].null for test in tests] == ["dlm"] * 3 and {test.model for test in tests} == {"arm"}
    assert [test.comparisons[0].difference for test in tests] == pytest.approx([0, -1, 0.9], abs=0.05)
    others = replace(dlm, clusters=CLUSTERS[::-1])
    (reason,) = {test.why for test in protocol.kind_tests([arm, others])}
    assert reason == "the two models were not given the same problems"


def test_tables_say_what_each_protocol_costs() -> None:
    top = "the top key"
    one = measured("m", True, {(protocol.EVERY, top): 0.2, (protocol.FEW, top): 0.5})
    line = next(line for line in protocol.loss_lines(one) if line["hidden"] == top)
    assert line["texts"] == N and line["nothing hidden"] == 1.0
    assert line[protocol.EVERY] == pytest.approx(0.2, abs=0.05) and line[protocol.FEW] == pytest.approx(0.5, abs=0.05)
    assert line["difference"] == pytest.approx(line[protocol.FEW] - line[protocol.EVERY])
    assert line["difference: low"] < line["difference"] < line["difference: high"]


def answers(texts: list[str], right: bool = True) -> list[dict[str, Any]]:
    return [{"text": text, "correct": right, "repeated": 0.0, "unfinished": False} for text in texts]


def test_texts_are_held_against_the_unmasked_ones() -> None:
    plain = answers([f"{n} apples and {n} balls are left" for n in range(8)])
    clusters = [f"c{n}" for n in range(8)]
    one = measured("m", True, {})
    few, every = (protocol.condition(one.subject, p, "the first token") for p in (protocol.FEW, protocol.EVERY))
    kept = dict.fromkeys(one.losses, plain)
    kept |= {few: answers([f"{'never ' * (n % 3 + 1)}{n}" for n in range(8)], right=False)}
    one = replace(one, answers=kept, subject=SimpleNamespace(**{**vars(one.subject), "graded": True}))
    tests = {test.statistic: test for test in decide(list(protocol.answer_tests(one, clusters)))}
    changed = tests["change of the written text with the first token hidden from newest or decoded rows"]
    assert changed.verdict == "supported" and changed.value > 0.6 and changed.comparisons[0].null_value == 0
    lost = tests["problems lost with the first token hidden from newest or decoded rows"]
    assert lost.value == 1.0 and lost.comparisons[0].difference == 1.0
    lines = {(line["hidden"], line["from"]): line for line in protocol.answer_lines(one, clusters)}
    assert len(lines) == 15 and lines["the first token", protocol.FEW]["solved"] == 0
    assert lines["the first token", protocol.EVERY]["change of text"] == 0 and lines["nothing", ""]["solved"] == 1
    assert list(protocol.answer_tests(replace(one, answers={}), clusters)) == []
    fewer = lines["the first token", protocol.FEW]
    assert fewer["change of text: low"] < fewer["change of text"] < fewer["change of text: high"] <= 1
    assert lines["nothing", ""]["solved: low"] < 1 == lines["nothing", ""]["solved: high"]
    assert str(every) in "".join(protocol.by_problem(one, clusters)[3])
    few_problems = list(protocol.answer_tests(one, ["a", "b"] * 4))
    assert {test.why for test in few_problems} == {"2 problems are too few"}


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize(("name", "rows"), [("mini-llama", "newest"), ("mini-llama", "all"), ("mini-dream", "decoded")])
def test_where_the_attention_goes(name: str, rows: Any, tmp_path: Path) -> None:
    """Of the queries that lose keys, by generations of their own."""
    subject, study = random_subject(name), Study([], tmp_path, generations=2, seed=3)
    moved, kept = Moved.of(study, subject, rows), study.arrays(subject, Succession(rows))
    assert kept["first share"].shape[2] == PROBLEMS
    np.testing.assert_allclose(kept["first share"].sum(axis=-1)[:, 0][kept["first taken"]], 1.0, rtol=1e-5)
    question = subject.exam(PROBLEMS, 3).questions[1]
    policy = MaskSinks(1, "first", rows=rows)
    wanted = {"own": record.where_hidden(record.received()), "diagonal": record.where_hidden(record.diagonal())}
    sampler = Succession(rows).sampler(subject)
    out = jaxsink.generate(
        subject.model, [list(question.prompt)], sampler, record=wanted, intervene=policy, seed=3 + question.index
    ).on_host()
    own = out.record["own"][:, :, 0].mean(axis=2)
    expected = own / own.sum(axis=-1, keepdims=True)
    steps = int(out.steps[0])
    found = kept["first share"][:steps, :, 1, : expected.shape[-1]]
    np.testing.assert_allclose(found, expected[:steps], atol=1e-5)
    largest = out.record["own"][:, :, 0].max(axis=-1).mean(axis=2) / own.sum(axis=-1)
    np.testing.assert_allclose(kept["first largest"][:steps, :, 1], largest[:steps], atol=1e-5)
    diagonal = out.record["diagonal"][:, :, 0].mean(axis=2)
    np.testing.assert_allclose(kept["first diagonal"][:steps, :, 1], diagonal[:steps], atol=1e-5)
    line, to = moved.line(), moved.successor
    assert to > 0 and line["0: before"] > line["0: after"] and line["successor: after"] > line["successor: before"]
    assert 1 <= line["steps needed"] < len(moved.after.share)
    assert line["texts"] == PROBLEMS
    taken = kept["first taken"][1:, 1]
    shares = kept["first share"][1:, :, 1][taken]
    np.testing.assert_allclose(moved.after.of_each[1], shares.mean(axis=(0, 1)), rtol=1e-5)
    assert line["successor: gain"] == pytest.approx(line["successor: after"] - line["successor: before"])
    assert line["successor: gain: low"] < line["successor: gain"] < line["successor: gain: high"]
    by_step = list(moved.by_step())
    assert len(list(moved.by_layer())) == 2
    assert by_step[0]["first: after"] == pytest.approx(by_step[0]["first: before"])  # the first step hides nothing


def test_as_many_texts_as_the_study_records(tmp_path: Path) -> None:
    subject, few, many = random_subject("mini-llama"), *(Study([], tmp_path, generations=n) for n in (2, 20))
    spec = Succession("newest")
    assert [spec.problems(study) for study in (few, many)] == [PROBLEMS, 20]
    assert len(spec.clusters(many, subject)) == 20 and spec.path(few, subject) != spec.path(many, subject)


@pytest.mark.usefixtures("quick_compilation")
def test_where_the_attention_goes_on_a_cache(tmp_path: Path) -> None:
    subject, study = random_subject("mini-llada").writing(cache="dual"), Study([], tmp_path, generations=2, seed=3)
    for rows in protocol.PROTOCOLS:
        line = Moved.of(study, subject, protocol.rows_of(subject, rows)).line()
        assert line["0: after"] == pytest.approx(0, abs=1e-6) and line["0: before"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compilation")
def test_plain_text_has_losses_and_texts_but_no_grades(tmp_path: Path) -> None:
    text = tmp_path / "book.txt"
    text.write_text("Tom has 3 apples. How many apples does Tom have? " * 12, encoding="utf-8")
    asked = find_prompts("text", text, window=12)
    subjects = [replace(random_subject(name), prompts=asked).writing(4) for name in ("mini-llama", "mini-dream")]
    study = Study(subjects, tmp_path / "study", problems=8, generations=2, rows=16, untrained=0, answers=5)
    (finding,) = conduct(study, choose_experiments(["protocol"]))
    titles = {table.title: table for table in finding.tables}
    assert len(titles["Loss of given text"].rows) == 14 and len(titles["Written answers"].rows) == 30
    assert "solved" not in titles["Written answers"].columns and not any(
        "problems" in t.statistic for t in finding.tests
    )
    assert {row[3] for row in titles["Written answers"].rows} == {5}
    assert len(finding.values) == 16 and "K = 1, first (nats)" in finding.values[0]
    again = replace(study, answers=0)
    assert (
        not again.subjects[0].graded
        and [spec.cost(again, one) for one, spec in choose_experiments(["protocol"])[0].measurements(again)] == [0] * 6
    )
