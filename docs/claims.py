"""Writes the tables of docs/findings.md: every claim of the paper and its verdict on every testbed, and the gate.

    python docs/claims.py          write the page anew
    python docs/claims.py --check  say whether it is as it would be written

A testbed is a column; a run of `jaxsink study` whose findings lie in experiments/results/ is where its verdicts come from. A
verdict on several statistics needs the support of all, and one counterexample refutes it.
"""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from jaxsink.study.verdicts import all_of

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results"
PAGE = ROOT / "docs" / "findings.md"
BEGIN, END = "<!-- table: written by docs/claims.py -->\n", "<!-- end of table -->"
MARKED = re.compile(f"{re.escape(BEGIN)}(.*?){re.escape(END)}", re.DOTALL)
FIGURES = ("fig1", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig10", "table1", "table2")
EXPLAINED = ("waiting", "paths", "past", "token", "takeover", "frequency")
OURS = ("controls", "values", "gate", "protocol")
SIGNS = {"supported": "**yes**", "refuted": "**no**", "undecided": "?", "not testable here": "–", None: ""}


@cache
def tests() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """By experiment and model. Models without training and the planted one are in other tables."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.rglob("*.json")):
        if path.name == "manifest.json" or {"untrained", "planted"} & set(path.relative_to(RESULTS).parts):
            continue
        said = json.loads(path.read_text(encoding="utf-8"))
        for test in said["tests"] if "verdict" in said else ():  # other files are no findings
            found.setdefault((path.stem, test["model"]), []).append(test)
    return found


@cache
def claim(name: str) -> str:
    """As the experiment states it."""
    path = next(path for path in sorted(RESULTS.rglob(f"{name}.json")) if "untrained" not in path.parts)
    return json.loads(path.read_text(encoding="utf-8"))["paper"]


def testbeds() -> list[str]:
    """Small models first, real ones after them."""
    return sorted({model for _, model in tests()}, key=lambda model: (not model.startswith("mini-"), model))


def verdict(name: str, model: str) -> str | None:
    found = tests().get((name, model))
    return None if found is None else all_of([test["verdict"] for test in found])


def rows(names: tuple[str, ...]) -> list[str]:
    known = [name for name in names if any(name == experiment for experiment, _ in tests())]
    return [
        f"| `{name}` {claim(name)} | {' | '.join(SIGNS[verdict(name, model)] for model in testbeds())} |"
        for name in known
    ]


def table() -> str:
    columns = [f"`{model}`" for model in testbeds()]
    parts = {"What the paper shows": FIGURES, "What it explains": EXPLAINED, "What we ask beyond it": OURS}
    lines = [f"| claim | {' | '.join(columns)} |", f"| --- | {' | '.join(':---:' for _ in columns)} |"]
    for title, names in parts.items():
        lines += [f"| *{title}* |{' |' * len(columns)}", *rows(names)]
    return "\n".join(lines) + "\n"


def gate() -> str:
    """Who has a true sink on its first token: a line for each autoregressive model."""
    lines = [
        "| | α₁ | heads above 0.3 | values, first to others | nats lost: newest row | every row | a partner, newest row | "
        "passes |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | :---: |",
    ]
    for path in sorted(RESULTS.glob("gate/*/gate.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        for values in found["tables"][0]["rows"]:
            row = dict(zip(found["tables"][0]["columns"], values, strict=True))
            cells = [f"`{row['model']}`", f"{row['α₁']:.2f}", f"{row['heads above 0.3']:.0f} of {row['of']}"]
            cells += [f"{row['length of values, first to others']:.2f}"]
            cells += [spread(row, name) for name in ("newest row", "every row", "a partner, newest row")]
            lines.append(f"| {' | '.join([*cells, SIGNS[verdict('gate', row['model'])]])} |")
    return "\n".join(lines) + "\n"


def spread(row: dict[str, Any], name: str) -> str:
    value, low, high = row[f"nats lost: {name}"], row[f"{name}: low"], row[f"{name}: high"]
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


def page() -> str:
    """With both tables written anew."""
    text = PAGE.read_text(encoding="utf-8")
    (first, _, second, _, last), made = MARKED.split(text), (table(), gate())
    return f"{first}{BEGIN}{made[0]}{END}{second}{BEGIN}{made[1]}{END}{last}"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit("docs/findings.md is not as its results say" if PAGE.read_text(encoding="utf-8") != page() else 0)
    PAGE.write_text(page(), encoding="utf-8")
