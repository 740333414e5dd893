"""Whether answers end, are empty or repeat themselves: by slow counts, per line, in the summary and in the tables."""

from __future__ import annotations

import csv
import json
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.miniatures import random_model

import jaxsink
from jaxsink.cli.tables import print_run
from jaxsink.evals.conditions import Comparison, conditions
from jaxsink.evals.engine import Evaluation, evaluate
from jaxsink.evals.outcomes import OUTCOMES, agreement, compared_outcomes, outcomes, summed_up
from jaxsink.evals.results import read_results
from jaxsink.evals.statistics import bootstrap, holm, paired_difference, wilson
from jaxsink.evals.summary import summarise
from jaxsink.evals.tables import outcome_rows, write_tables
from jaxsink.runs.lines import encoded
from jaxsink.tasks.exam import task_exam
from jaxsink.tasks.vocabulary import tokenizer

pytestmark = pytest.mark.usefixtures("quick_compilation")
CONDITIONS = conditions((0, 2), ("top", "random"))
END = (2, 9)


def in_common(first: list[str], second: list[str]) -> int:
    """Words that two texts have in the same order, at most, by trying everything."""
    if not first or not second:
        return 0
    if first[-1] == second[-1]:
        return in_common(first[:-1], second[:-1]) + 1
    return max(in_common(first[:-1], second), in_common(first, second[:-1]))


def test_agreement_is_the_share_of_words_in_the_same_order() -> None:
    assert agreement("a b c", "a b c") == 1 and agreement("a b", "c d") == 0 and agreement("", " ") == 1
    assert agreement("a b c d", "a c") == pytest.approx(2 * 2 / 6) and agreement("", "a") == 0 == agreement("a", "")
    assert agreement("a b", "b a") == pytest.approx(0.5)
    rng = random.Random(0)
    for _ in range(60):
        one, other = ([rng.choice("abc") for _ in range(rng.randrange(7))] for _ in range(2))
        if one or other:
            expected = 2 * in_common(one, other) / (len(one) + len(other))
            assert agreement(" ".join(one), " ".join(other)) == pytest.approx(expected)


def test_of_single_answers() -> None:
    loop = "the cat sat on the mat. " * 9
    assert outcomes([5, 6, 2, 7], "some text", END) == {
        "unfinished": False, "empty": False, "zlib": len(zlib.compress(b"some text")) / 9, "repeated": 0.0,
    }  # fmt: skip
    assert outcomes([5, 6, 7], " \n", END) == {"unfinished": True, "empty": True, "zlib": None, "repeated": 0.0}
    assert outcomes([9, 5, 5, 5], "", END) == {"unfinished": False, "empty": True, "zlib": None, "repeated": 0.0}
    assert outcomes([5, 6], "a", ())["unfinished"] is None
    ids = [1, 3, 4, 5] * 5
    seen, again = set(), 0
    for start in range(len(ids) - 3):
        run = tuple(ids[start : start + 4])
        again += run in seen
        seen.add(run)
    found = outcomes([*ids, 2, 4, 4, 4, 4, 4], loop, END)  # what stands after the end does not count
    assert found["repeated"] == pytest.approx(again / 17) and again == 13
    assert found["zlib"] < 0.3


def made_lines(chance: random.Random, count: int, condition: str, worse: bool) -> list[dict[str, Any]]:
    lines = []
    for number in range(count):
        empty = chance.random() < 0.2
        lines.append(
            {
                "index": number,
                "condition": condition,
                "unfinished": chance.random() < (0.9 if worse else 0.2),
                "empty": empty,
                "zlib": None if empty else chance.random() / (2 if worse else 1),
                "repeated": chance.random(),
            }
        )
    return lines


def test_means_and_differences_by_hand() -> None:
    chance = random.Random(0)
    plain, top = made_lines(chance, 30, "K = 0", False), made_lines(chance, 30, "K = 2, top", True)
    found = summed_up(top)
    for name in ("unfinished", "empty"):
        share = wilson(sum(line[name] for line in top), 30)
        assert (found[name]["estimate"], found[name]["low"], found[name]["high"]) == share
    values = [line["zlib"] for line in top if line["zlib"] is not None]
    ends = bootstrap(values, resamples=2000)
    assert found["zlib"] == {"estimate": ends.estimate, "low": ends.low, "high": ends.high, "total": len(values)}
    assert found["repeated"]["estimate"] == pytest.approx(np.mean([line["repeated"] for line in top]))
    tests = compared_outcomes(Comparison("K = 2, top", "K = 0", "plain"), {"K = 0": plain, "K = 2, top": top})
    gaps = [a["unfinished"] - b["unfinished"] for a, b in zip(top, plain, strict=True)]
    assert tests["unfinished"]["estimate"] == pytest.approx(np.mean(gaps)) and tests["unfinished"]["p"] < 0.01
    both = [(a["zlib"], b["zlib"]) for a, b in zip(top, plain, strict=True) if None not in (a["zlib"], b["zlib"])]
    assert len(both) < 30
    expected = paired_difference(*zip(*both, strict=True), resamples=2000)
    assert tests["zlib"] == expected._asdict() and tests["repeated"]["p"] > 0.05
    assert set(tests) == set(found) == set(OUTCOMES)


def test_what_no_answer_has_is_left_out() -> None:
    lines = [{"unfinished": None, "empty": True, "zlib": None, "repeated": 0.0}] * 3
    assert set(summed_up(lines)) == {"empty", "repeated"}
    older = [{"text": "a"}]  # lines of a run that an earlier version wrote
    pair = Comparison("a", "b", "plain")
    assert summed_up(older) == {} == compared_outcomes(pair, {"a": older, "b": older})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("answers")
    model = random_model("mini-llama")
    evaluate(Evaluation(model, task_exam(model.config, range(6)), CONDITIONS, rows=6, eps=None), folder)
    return folder


def test_lines_of_a_run(folder: Path) -> None:
    """Every line against the response that a run of its own gives."""
    model = random_model("mini-llama")
    exam = task_exam(model.config, range(6))
    lines = read_results(folder)
    for question in exam.questions[:3]:
        for condition in CONDITIONS:
            out = jaxsink.generate(
                model, [list(question.prompt)], exam.sampler, intervene=condition.policy, seed=question.index, pad_to=32
            )
            ids = np.asarray(out.response)[0].tolist()
            line = lines[question.index, str(condition)]
            assert {name: line[name] for name in OUTCOMES} == outcomes(ids, line["text"], model.config.eos_ids)


def test_summary_and_tables(folder: Path, tmp_path: Path, capsys) -> None:
    """Made-up outcomes for forty questions, so that there is something to find."""
    lines, chance = list(read_results(folder).values()), random.Random(1)
    made = []
    for condition in map(str, CONDITIONS):
        for new in made_lines(chance, 40, condition, condition == "K = 2, top"):
            made.append({**lines[0], **new})
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["exam"]["questions"] = 40
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "results-0001.jsonl").write_bytes(b"".join(map(encoded, made)))
    results = summarise(tmp_path, tokenizer().token)
    assert json.loads((tmp_path / "results.json").read_text()) == results
    for line in results["conditions"]:
        assert line["outcomes"] == summed_up([one for one in made if one["condition"] == line["condition"]])
    rows = outcome_rows([results])
    assert len(rows) == 3 * len(OUTCOMES)
    tested = [row for row in rows if row["p_plain"] is not None]
    assert [row["p_plain_holm"] for row in tested] == holm([row["p_plain"] for row in tested]) and len(tested) == 8
    assert all(row["p_plain"] is None for row in rows if row["condition"] == "K = 0")
    by_name = {(row["condition"], row["outcome"]): row for row in rows}
    assert by_name["K = 2, top", "unfinished"]["differs"] and not by_name["K = 2, random", "unfinished"]["differs"]
    write_tables(tmp_path, [results])
    with (tmp_path / "outcomes.csv").open() as file:
        assert [row["outcome"] for row in csv.DictReader(file)] == [row["outcome"] for row in rows]
    assert json.loads((tmp_path / "tables.json").read_text())["outcomes"] == rows
    assert "# Outcomes besides accuracy" in (tmp_path / "tables.md").read_text()
    print_run(results, tmp_path)
    shown = capsys.readouterr().out
    share = by_name["K = 2, top", "unfinished"]["mean"]
    assert f"{100 * share:.1f}†" in shown and "repeated 4-grams" in shown
