"""The README says what is so: its example runs, and its figures are those of the committed results and model cards."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

import jaxsink
from jaxsink.models import NAMES, resolve

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "experiments" / "results"


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"## In your own code\n\n```python\n(.*?)```", README, re.DOTALL)
    assert len(code.strip().splitlines()) <= 16
    names: dict = {}
    exec(code, names)
    assert "#### 7" in capsys.readouterr().out
    assert names["tracks"].position.shape == (32, 4, 1, 4)
    assert isinstance(names["masked"], jaxsink.Generation)


@pytest.mark.parametrize("name", NAMES)
def test_accuracies_are_those_of_the_cards(name: str) -> None:
    card = (resolve(name) / "README.md").read_text(encoding="utf-8")
    found = re.search(r"\*\*Accuracy\*\*: ([\d.]+)% of 1,000 held-out problems", card)
    assert found and re.search(rf"\| `{name}` \|.*\| {found[1]} % \[", README)


def test_table_1_is_the_committed_one() -> None:
    table = json.loads((RESULTS / "table1.json").read_text(encoding="utf-8"))["tables"][0]
    share = {(row[0], row[1]): row[2] for row in table["rows"]}
    assert all(row[5] >= 500 for row in table["rows"])
    for k in (0, 1, 5, 10):
        (line,) = re.findall(rf"^\| {k} \|(.*)\|$", README, re.MULTILINE)
        cells = [cell.strip() for cell in line.split("|")]
        for name, cell in zip(("mini-llada", "mini-dream", "mini-llama"), cells[-3:], strict=True):
            wanted = ["K = 0"] if k == 0 else [f"K = {k}, {select}" for select in ("top", "random", "bottom")]
            assert cell == " / ".join(f"{100 * share[name, label]:.0f}" for label in wanted)


def test_speed_is_that_of_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ROOT / "benchmarks"
    monkeypatch.syspath_prepend(folder)
    run = importlib.import_module("run")
    results = json.loads((folder / "results" / "results.json").read_text(encoding="utf-8"))
    assert run.with_summary(README, results) == README and run.summary(results) in README
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
