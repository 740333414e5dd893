"""Writes what the study found into README.md and docs/study.md, every number from the committed results.

    python docs/findings.py          write both pages anew
    python docs/findings.py --check  say whether they are as they would be written

The results are those of three runs, whose directories `experiments/` were copied:

    jaxsink study --full --out full                                                → experiments/results/
    jaxsink study --model untrained:mini-llada --model untrained:mini-dream --model untrained:mini-llama --out untrained
    jaxsink study --model planted --out planted
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results"
BEGIN, END = "<!-- findings: written by docs/findings.py -->", "<!-- end of findings -->"
MODELS = ("mini-llada", "mini-dream", "mini-llama")
SIGNS = {"supported": "**yes**", "refuted": "**no**", "undecided": "?", "not testable here": "–"}
USUAL = ("fig1", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig10", "table2", "values", "table1", "controls")


@cache
def finding(name: str, run: str = "") -> dict[str, Any]:
    return json.loads((RESULTS / run / f"{name}.json").read_text(encoding="utf-8"))


def test_of(name: str, model: str, words: str = "", run: str = "") -> dict[str, Any]:
    """The one test of a finding that is about this model, and whose statistic has these words."""
    (found,) = (test for test in finding(name, run)["tests"] if test["model"] == model and words in test["statistic"])
    return found


def against(test: dict[str, Any], null: str) -> dict[str, Any]:
    (found,) = (one for one in test["comparisons"] if null in one["null"])
    return found


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def number(value: float, sign: str = "") -> str:
    return f"{value:{sign}.2f}" if abs(value) < 10 else f"{value:{sign}.1f}"


def range_of(one: dict[str, Any], show: Callable[[float], str] = number) -> str:
    """A difference with its interval, or a value with its."""
    value = one.get("difference", one.get("value"))
    return f"{show(value)} [{show(one['low'])}, {show(one['high'])}]"


def signed(value: float) -> str:
    return number(value, "+")


def row(model: str, condition: str) -> dict[str, Any]:
    """A line of the masking table."""
    table = finding("table1")["tables"][0]
    (found,) = (line for line in table["rows"] if line[:2] == [model, condition])
    return dict(zip(table["columns"], found, strict=True))


def readme() -> str:
    return "\n".join(f"{number}. {sentence}" for number, sentence in enumerate(sentences(), 1))


def sentences() -> Iterator[str]:
    raise NotImplementedError


def tests_table() -> str:
    """Findings × random weights, the planted model and the built-in ones."""
    runs = {"untrained": "untrained", "planted": "planted"}
    columns = [*(f"untrained:{name}" for name in MODELS), "planted", *MODELS]
    lines = [f"| claim and statistic | {' | '.join(columns)} |", f"| --- | {' | '.join('---' for _ in columns)} |"]
    for name in USUAL:
        for statistic in statistics_of(name):
            cells = []
            for column in columns:
                found = finding(name, next((run for start, run in runs.items() if column.startswith(start)), ""))["tests"]
                test = next((t for t in found if t["model"] == column and t["statistic"] == statistic), None)
                cells.append(cell(test))
            lines.append(f"| `{name}` {statistic} | {' | '.join(cells)} |")
    return "\n".join(lines)


def statistics_of(name: str) -> list[str]:
    found = (test for run in ("", "untrained", "planted") for test in finding(name, run)["tests"])
    return list(dict.fromkeys(test["statistic"] for test in found))


def cell(test: dict[str, Any] | None) -> str:
    if test is None:
        return ""
    if not test["comparisons"]:
        return SIGNS[test["verdict"]]
    differences = "; ".join(range_of(one, signed) for one in test["comparisons"])
    return f"{number(test['value'])} ({differences}) {SIGNS[test['verdict']]}"


def masking_table() -> str:
    """Every condition of Table 1: answers, likelihood, and what was hidden."""
    table = finding("table1")["tables"][0]
    lines = [
        "| model | hidden | solved | nats per token lost | keys per head | share of S | duty | Eq. 3 sinks | attention |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for found in table["rows"]:
        line = dict(zip(table["columns"], found, strict=True))
        more = range_of({"value": line["more nats"], "low": line["more: low"], "high": line["more: high"]}, signed)
        kept = [line[name] for name in HIDDEN]
        shown = [number(kept[0]) if kept[0] != "" else "", *(percent(x) if x != "" else "" for x in kept[1:])]
        cells = [line["model"], line["condition"], percent(line["solved"]), more, *shown]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


HIDDEN = (
    "keys hidden per head",
    "as share of S",
    "duty of a hidden key",
    "of them sinks by Eq. 3",
    "attention on them before",
)


def page_with(path: Path, text: str) -> str:
    """The page with what stands between the marks written anew."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def pages() -> dict[Path, str]:
    study = f"{tests_table()}\n\n{MASKING}\n\n{masking_table()}"
    return {
        path: page_with(path, text)
        for path, text in ((ROOT / "README.md", readme()), (ROOT / "docs" / "study.md", study))
    }


MASKING = (
    "**Masking with all controls.** *Duty*: of the steps in which a key could be hidden, those in which it was, if it ever was. "
    "*Eq. 3 sinks*: of the hidden keys. *Attention*: on the hidden keys of a head, in the map they were selected from."
)

if __name__ == "__main__":
    wrong = [path for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        sys.exit(f"written by hand: {', '.join(map(str, wrong))}" if wrong else 0)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
