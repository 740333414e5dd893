"""The page on models trained from scratch is written from the committed files of their runs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from support.paths import ROOT

FOUND = importlib.util.spec_from_file_location("testbeds", ROOT / "docs" / "testbeds.py")
assert FOUND is not None and FOUND.loader is not None
testbeds = importlib.util.module_from_spec(FOUND)
FOUND.loader.exec_module(testbeds)

RESULTS = ROOT / "experiments" / "results"
SHAKESPEARE = ("shakespeare-arm", "shakespeare-dlm", "shakespeare-adapted")


def test_the_page_is_as_the_program_writes_it() -> None:
    assert testbeds.PAGE.read_text(encoding="utf-8") == testbeds.page(), "python docs/testbeds.py"


def test_another_result_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = testbeds.result

    def worse(run: Path) -> dict[str, float]:
        return original(run) | {"validation_loss": 9.0}

    monkeypatch.setattr(testbeds, "result", worse)
    assert testbeds.PAGE.read_text(encoding="utf-8") != testbeds.page()


def test_there_are_three_seeds_of_the_steps_that_the_page_names() -> None:
    for kind in SHAKESPEARE:
        found = [testbeds.result(run) for run in testbeds.runs(kind)]
        assert len(found) == 3
        assert {one["steps"] for one in found} == {200 if kind.endswith("adapted") else 400}
    steps = {"triple-arm": [500] * 3, "triple-dlm": [700] * 3, "triple-adapted": [250] * 3}
    assert {kind: [testbeds.result(run)["steps"] for run in testbeds.runs(kind)] for kind in steps} == steps
    solved = {kind: [testbeds.result(run)["accuracy"]["share"] for run in testbeds.runs(kind)] for kind in steps}
    assert min(solved["triple-arm"]) > 0.5 and max(solved["triple-dlm"] + solved["triple-adapted"]) <= 1 / 8
    (stories,) = (testbeds.result(run) for run in testbeds.runs("stories-arm"))
    assert (stories["steps"], stories["accuracy"]["share"]) == (2500, 1.0)


def test_no_small_model_has_a_first_token_sink() -> None:
    for kind in ("shakespeare-arm", "stories-arm", "triple-arm"):
        for run in testbeds.runs(kind):
            look = testbeds.last_look(run)
            assert look["heads_above"] == 0 and look["alpha_first"] < 0.06


def test_no_autoregressive_testbed_passes_the_gate() -> None:
    for name in ("shakespeare", "stories"):
        tests = json.loads((RESULTS / "gate" / name / "gate.json").read_text(encoding="utf-8"))["tests"]
        heads = [test for test in tests if test["statistic"].startswith("heads")]
        assert heads and all(test["verdict"] != "supported" for test in heads)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/*/seeds.json")), ids=lambda path: path.parent.name)
def test_findings_over_seeds_follow_from_the_findings_beside_them(path: Path) -> None:
    said, found = json.loads(path.read_text(encoding="utf-8")), testbeds.again(path.parent)
    assert len(said["tests"]) > 2 and {test["model"].partition(" (")[2] for test in said["tests"]} == {"3 seeds)"}
    for test, written in zip(found.tests, said["tests"], strict=True):
        names = ("model", "statistic", "verdict")
        assert [getattr(test, name) for name in names] == [written[name] for name in names]
        for one, other in zip(test.comparisons, written["comparisons"], strict=True):
            assert one.null == other["null"]
            assert [one.difference, one.low, one.high] == pytest.approx(
                [other[n] for n in ("difference", "low", "high")]
            )


def test_runs_alone_are_counted_once_each() -> None:
    """Three runs, or nine pairs of three runs of two kinds."""
    found = testbeds.seeds(RESULTS / "protocol" / "shakespeare")
    counts = {
        test["statistic"].rpartition(", ")[2]: testbeds.verdicts_alone(found, test).total()
        for test in found["tests"]
        if test["model"].startswith("shakespeare-arm")
    }
    assert counts["as in the paper"] == 9 and counts["hidden from every row"] == 3
