"""The table of docs/numerics.md is that of the committed figures, and says what the page says of types."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "benchmarks" / "results" / "agreement.json"


def test_the_table_is_that_of_the_figures() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "agreement.py"), "--table", str(FIGURES)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)}).stdout
    assert printed.strip() in (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")


def test_float32_is_the_same_everywhere_and_bfloat16_is_not() -> None:
    cases = json.loads(FIGURES.read_text(encoding="utf-8"))["cases"]
    parted = {case: sum(way["sequences"] - way["same"] for way in ways.values()) for case, ways in cases.items()}
    assert {case: count for case, count in parted.items() if count and "float32" in case} == {}
    assert all(count for case, count in parted.items() if "bfloat16" in case)
