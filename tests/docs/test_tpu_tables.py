"""docs/tpu-performance.md names every case that reaches the goal; and the program keeps its result file."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

from support.paths import ROOT

RESULTS = json.loads((ROOT / "benchmarks" / "results" / "tpu_blocks.json").read_text(encoding="utf-8"))
NAMES = ("llada2.0-mini", "nemotron-labs-diffusion-8b")
PAGE = (ROOT / "docs" / "tpu-performance.md").read_text(encoding="utf-8")


def test_the_file_has_every_case_of_the_planners_choice() -> None:
    chosen = {(r["model"], r["tpu"], r["masking"]) for r in RESULTS if r["batch"] == 8 and not r["asked_mesh"]}
    slices = ("v5e:2x4", "v6e:2x4")
    assert chosen >= {(model, tpu, False) for model in NAMES for tpu in slices}
    assert chosen >= {("nemotron-labs-diffusion-8b", tpu, True) for tpu in slices}


def test_the_page_names_every_case_that_reaches_the_goal() -> None:
    """60 % of the roofline for Nemotron at a batch of 8 or more."""
    reached = [r for r in RESULTS if r["model"].startswith("nemotron") and r["shares"]["roofline"] >= 0.6]
    sentence = PAGE[PAGE.index("**60 % of the roofline**") :].split("\n\n")[0]
    assert reached and all(result["batch"] >= 8 for result in reached)
    named = [f"{r['tpu']} batch {r['batch']} {100 * r['shares']['roofline']:.0f} %" for r in reached]
    assert sorted(re.findall(r"v\d\w:\w+ batch \d+ \d+ %", " ".join(sentence.split()))) == sorted(named)


def test_a_result_file_keeps_the_figures_of_other_cases(tmp_path: Path, monkeypatch) -> None:
    """A case that is measured again takes the place of its own older figures, and no other's."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    program = importlib.import_module("tpu_compile")
    path = tmp_path / "out.json"
    for result in reversed(RESULTS):
        program.put(path, result)
    assert json.loads(path.read_text(encoding="utf-8")) == RESULTS
    program.put(path, {**RESULTS[1], "fits": False})
    after = json.loads(path.read_text(encoding="utf-8"))
    assert [n for n, (old, new) in enumerate(zip(RESULTS, after, strict=True)) if old != new] == [1]
    program.put(path, {**RESULTS[1], "batch": 7})
    assert json.loads(path.read_text(encoding="utf-8")) == after


def test_the_file_of_the_inside_has_its_cases_and_keeps_the_rest(tmp_path: Path, monkeypatch) -> None:
    """Every tap and lens, and each with a run without it on its mesh."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    program = importlib.import_module("tpu_compile")
    known = json.loads((ROOT / "benchmarks" / "results" / "lens.json").read_text(encoding="utf-8"))
    path = tmp_path / "lens.json"
    path.write_text(json.dumps({**known, "tpu": []}), encoding="utf-8")
    for result in reversed(known["tpu"]):
        program.put_inside(path, {**result, "fits": True})
    assert json.loads(path.read_text(encoding="utf-8")) == known
    found = {(one["inside"], *one["mesh"].values()) for one in known["tpu"]}
    cases = [case for case in program.CASES if program.is_of_the_inside(case)]
    assert len(cases) == len(found)
    assert {(None, *mesh) for _, *mesh in found} <= found
