"""Writes the tables of docs/modes.md from the committed files of the experiment in experiments/results/modes/.

python docs/modes.py          write the page anew
python docs/modes.py --check  say whether it is as it would be written
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results" / "modes"
PAGE = ROOT / "docs" / "modes.md"
BEGIN, END = "<!-- tables: written by docs/modes.py -->\n", "<!-- end of tables -->"
HEAD = (
    "| model | attention | heads with a sink | moved | first token | predicts by | nats per token | lost: strongest key | "
    "lost: first token | lost: random key |\n"
    "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |"
)
VERDICTS = "| prediction | model | found | against | verdict |\n| --- | --- | ---: | --- | --- |"


def modes() -> list[dict[str, str]]:
    with (RESULTS / "modes-1.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def tests() -> list[dict[str, Any]]:
    return json.loads((RESULTS / "modes.json").read_text(encoding="utf-8"))["tests"]


def lost(line: dict[str, str], hidden: str) -> str:
    value, low, high = (float(line[name]) for name in (f"lost: {hidden}", f"{hidden}: low", f"{hidden}: high"))
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"


def row(line: dict[str, str]) -> str:
    cells = [
        line["model"],
        line["attention"].replace("_", "-"),
        f"{float(line['heads with a sink']):.0%}",
        f"{float(line['sinks that moved']):.0%}",
        f"{float(line['score of the first token']):.2f}",
        line["predicts by"],
        f"{float(line['nats per token']):.2f}",
        *(lost(line, hidden) for hidden in ("the top key", "the first token", "a random key")),
    ]
    return "| " + " | ".join(cells) + " |"


def verdict(test: dict[str, Any]) -> str:
    found = "" if test["value"] is None else f"{test['value']:.2f} [{test['low']:.2f}, {test['high']:.2f}]"
    against = "; ".join(f"{one['null_value']:.2f}, {one['null']}" for one in test["comparisons"])
    cells = [test["statistic"], test["model"], found, against or test["why"], test["verdict"]]
    return "| " + " | ".join(cells) + " |"


def page() -> str:
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    made = "\n".join([HEAD, *map(row, modes()), "", VERDICTS, *map(verdict, tests())]) + "\n"
    return before + BEGIN + made + END + rest.split(END)[1]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit("docs/modes.md is not as its results say" if PAGE.read_text(encoding="utf-8") != page() else 0)
    PAGE.write_text(page(), encoding="utf-8")
