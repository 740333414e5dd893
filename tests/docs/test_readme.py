"""README.md and docs/ say what is so: their figures are those of the committed results and model cards."""

from __future__ import annotations

import importlib
import json
import re

import pytest
from support.paths import ROOT

from jaxsink.zoo.resolve import NAMES, resolve

STUDY = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
RESULTS = ROOT / "experiments" / "results"


@pytest.mark.parametrize("name", NAMES)
def test_accuracies_are_those_of_the_cards(name: str) -> None:
    card = (resolve(name) / "README.md").read_text(encoding="utf-8")
    found = re.search(r"\*\*Accuracy\*\*: ([\d.]+)% of 1,000 held-out problems", card)
    assert found and re.search(rf"\| `{name}` \|.*\| {found[1]} % \[", STUDY)


def test_speed_is_that_of_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ROOT / "benchmarks"
    monkeypatch.syspath_prepend(folder)
    run = importlib.import_module("run")
    results = json.loads((folder / "results" / "results.json").read_text(encoding="utf-8"))
    speed = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    assert run.with_summary(speed, results) == speed and run.summary(results) in speed
    assert (folder / "results" / "results.md").read_text(encoding="utf-8") == run.page(results)


def test_the_compilers_figures_are_those_of_the_benchmarks() -> None:
    """Every case of the planner's choice at 512 tokens stands in docs/tpu-performance.md."""
    page = (ROOT / "docs" / "tpu-performance.md").read_text(encoding="utf-8")
    results = json.loads((ROOT / "benchmarks" / "results" / "results.json").read_text(encoding="utf-8"))
    plans = [p for p in results["tpu_compile"]["figures"] if p["length"] == 512 and p["mesh"]["data"] == p["devices"]]
    assert len(plans) == 20 and all(plan["fits"] for plan in plans)
    for plan in plans:
        step, share = plan["step_seconds"], f"{100 * plan['shares']['roofline']:.0f} %"
        gib, total = f"{plan['needed_per_device'] / 2**30:.2f}", f"{1e3 * step['total']:.1f}"
        with_collectives = f"| {gib} | {total} | {1e3 * step['collective']:.1f} | {share} |"
        assert with_collectives in page or re.search(rf"\| {gib}( of 15.75)? \| {total} \| {share} \|", page)


def test_perplexities_are_those_of_the_run() -> None:
    page = (ROOT / "docs" / "smollm2.md").read_text(encoding="utf-8")
    results = json.loads((RESULTS / "smollm2" / "gold.json").read_text(encoding="utf-8"))
    for row in results["conditions"]:
        assert f"| {row['perplexity']:.2f} [{row['low']:.2f}, {row['high']:.2f}] |" in page
    for name in ("gsm8k", "humaneval"):
        results = json.loads((RESULTS / "smollm2" / f"{name}.json").read_text(encoding="utf-8"))
        assert results["finished"] == {"gsm8k": 200, "humaneval": 164}[name]
        for row in results["conditions"]:
            assert f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}]" in page
