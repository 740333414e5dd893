"""docs/protocol.md and its figure are written from the committed results, and those results say what the page says."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest
from support.paths import ROOT

FOUND = importlib.util.spec_from_file_location("protocol_page", ROOT / "docs" / "protocol.py")
assert FOUND is not None and FOUND.loader is not None
protocol = importlib.util.module_from_spec(FOUND)
FOUND.loader.exec_module(protocol)


def test_the_page_is_as_the_program_writes_it() -> None:
    assert protocol.PAGE.read_text(encoding="utf-8") == protocol.page(), "write it anew: python docs/protocol.py"


def test_the_figure_shows_these_results() -> None:
    (said,) = re.findall(r"<dc:description>(\w+)</dc:description>", protocol.FIGURE.read_text(encoding="utf-8"))
    assert said == protocol.digest(), "draw it anew: python docs/protocol.py"
    assert len(protocol.figure().axes) >= 6


def test_another_result_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = json.loads(json.dumps(protocol.finding("builtin")))
    changed["tables"][0]["rows"][0][4] += 0.01
    real = protocol.finding
    monkeypatch.setattr(protocol, "finding", lambda run: changed if run == "builtin" else real(run))
    assert protocol.PAGE.read_text(encoding="utf-8") != protocol.page()


def test_every_run_has_what_its_figures_rest_on_and_no_texts() -> None:
    assert {"builtin", "smollm2-text", "smollm2-gsm8k"} <= set(protocol.runs())
    for run in protocol.runs():
        rows = (protocol.RESULTS / run / "protocol-problems.csv").read_text(encoding="utf-8").splitlines()
        texts = [line["texts"] for line in protocol.table(run, "Loss")]
        assert len(rows) - 1 == sum(texts) // 5  # five choices of keys share them
        assert (protocol.RESULTS / run / "manifest.json").is_file()
        assert max(map(len, rows[1:])) < 1000  # figures, no texts


def test_what_the_page_says_of_smollm2() -> None:
    """The first token: nothing is lost if every row loses it, very much if the newest does."""
    for run in ("smollm2-text", "smollm2-gsm8k"):
        line = protocol.line_of(run, "smollm2", "the first token")
        assert line["every row: high"] < 0.05 and line["newest or decoded rows: low"] > 0.5
