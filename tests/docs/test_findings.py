"""Findings in README.md and docs/study.md are written from the committed results, and those results say what they must."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
from typing import Any

import pytest
from support.paths import ROOT

RESULTS = ROOT / "experiments" / "results"
FOUND = importlib.util.spec_from_file_location("findings", ROOT / "docs" / "findings.py")
assert FOUND is not None and FOUND.loader is not None
findings = importlib.util.module_from_spec(FOUND)
FOUND.loader.exec_module(findings)


def found_in(run: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    """By experiment, model and statistic."""
    found = {}
    for path in sorted((RESULTS / run).glob("*.json")):
        if path.name != "manifest.json":
            for test in json.loads(path.read_text(encoding="utf-8"))["tests"]:
                found[path.stem, test["model"], test["statistic"]] = test
    return found


def test_pages_are_as_the_program_writes_them() -> None:
    for path, text in findings.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"write {path.name} anew: python docs/findings.py"


def test_another_result_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real, changed = findings.finding, {}
    for name, run in (("fig10", ""), ("fig4", ""), ("paths", findings.EXPLANATIONS)):
        changed[name, run] = json.loads((RESULTS / run / f"{name}.json").read_text(encoding="utf-8"))
        changed[name, run]["tests"][0]["value"] += 0.01
    monkeypatch.setattr(findings, "finding", lambda name, run="": changed.get((name, run)) or real(name, run))
    assert all(path.read_text(encoding="utf-8") != text for path, text in findings.pages().items())


def test_nothing_is_supported_on_random_weights() -> None:
    found = found_in("untrained")
    assert len(found) > 20 and {model for _, model, _ in found} == {f"untrained:{name}" for name in findings.MODELS}
    assert [key for key, test in found.items() if test["verdict"] == "supported"] == []


def test_no_explanation_is_supported_on_random_weights() -> None:
    found = found_in("explanations/untrained")
    assert {name for name, _, _ in found} == set(findings.EXPLAINED)
    assert len([test for test in found.values() if test["comparisons"]]) > 12
    assert [key for key, test in found.items() if test["verdict"] == "supported"] == []


def test_every_explanation_has_a_verdict_on_each_model_and_a_reason() -> None:
    lines = findings.explanations().splitlines()[2:]
    assert len(lines) == len(findings.EXPLAINED)
    for name, line in zip(findings.EXPLAINED, lines, strict=True):
        what, *cells = line.strip("| ").split(" | ")
        assert name in what and len(cells) == len(findings.MODELS)
        for cell in cells[:2]:
            assert re.match(r"\*\*(supported|refuted|undecided)\*\*: .* \[.*\] against |not testable: ", cell), cell


def test_the_planted_model_has_the_verdicts_that_it_must_have() -> None:
    verdicts: dict[str, set[str]] = {}
    for (name, _, _), test in found_in("planted").items():
        verdicts.setdefault(name, set()).add(test["verdict"])
    for name in ("fig1", "fig5", "fig10"):
        assert verdicts[name] == {"supported"}, name
    for name in ("fig4", "fig6", "fig7", "fig8", "table1", "controls"):
        assert "supported" not in verdicts[name], name


def test_what_tests_rest_on_is_there_problem_by_problem() -> None:
    for (name, model, _), test in found_in("").items():
        if test["comparisons"] and (RESULTS / f"{name}-problems.csv").exists():
            with (RESULTS / f"{name}-problems.csv").open(encoding="utf-8") as file:
                problems = {row["problem"] for row in csv.DictReader(file) if row["model"] == model}
            assert len(problems) >= test["problems"], (name, model)


def test_every_verdict_follows_from_its_comparisons() -> None:
    for run in ("", "untrained", "planted", "explanations", "explanations/untrained", "explanations/planted"):
        for key, test in found_in(run).items():
            if test["verdict"] == "supported":
                signs = [one["difference"] > 0 for one in test["comparisons"]]
                predicted = test["expected"] == "greater"
                bounded = [one["null"] for one in test["comparisons"] if (one["difference"] > 0) != predicted]
                assert len(bounded) <= 1 and signs and test["p"] < 0.05, key  # a claim may also name an upper limit


def test_the_first_page_is_short() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) < 130 and not re.search(r"\bnan\b", readme)
