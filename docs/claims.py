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

from jaxsink.study.seeds import kind_of
from jaxsink.study.verdicts import all_of

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results"
PAGE = ROOT / "docs" / "findings.md"
BEGIN, END = "<!-- table: written by docs/claims.py -->\n", "<!-- end of table -->"
MARKED = re.compile(f"{re.escape(BEGIN)}(.*?){re.escape(END)}", re.DOTALL)
FIGURES = ("fig1", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig10", "table1", "table2")
EXPLAINED = ("waiting", "paths", "past", "token", "takeover", "frequency")
OURS = ("controls", "values", "gate", "protocol")
INSIDE = ("next", "agreement", "outlier", "holds", "residual", "scratchpad")
# An experiment that asks several things has a line for each; a statistic belongs to the first whose words it has.
PARTS = {
    "protocol": {
        "not with others": "No control was run. Our prediction: under either protocol the top key, or the 5 top keys, cost "
        "more than as many partners and than keys of equal mass.",
        "the top key hidden, ": "Table 1: an autoregressive model loses more than a diffusion model, whatever the protocol.",
        "": "Our prediction: for either kind, hiding a sink from few rows costs more than hiding it from every row, so that "
        "Table 1, which does the first to Llama and the second to diffusion models, says nothing of the kind of model.",
    }
}
SIGNS = {"supported": "**yes**", "refuted": "**no**", "undecided": "?", "not testable here": "–", None: ""}


@cache
def tests() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """By experiment and model; of a kind with seeds what holds over these, not what one of its runs says elsewhere. Models
    without training and the planted one are in other tables."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    over_seeds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.rglob("*.json")):
        if path.name == "manifest.json" or {"untrained", "planted"} & set(path.relative_to(RESULTS).parts):
            continue
        said = json.loads(path.read_text(encoding="utf-8"))
        kept = over_seeds if path.stem == "seeds" else found
        for test in said["tests"] if "verdict" in said else ():  # other files are no findings
            kept.setdefault(place_of(path.stem, test), []).append(test)
    return found | over_seeds


def place_of(finding: str, test: dict[str, Any]) -> tuple[str, str]:
    """(experiment, model). A finding over seeds has both in its words: "fig1: …" of "arm (3 seeds)"."""
    if finding != "seeds":
        return finding, test["model"]
    return test["statistic"].partition(":")[0], test["model"].partition(" (")[0]


@cache
def claim(name: str) -> str:
    """As the experiment states it."""
    path = next(path for path in sorted(RESULTS.rglob(f"{name}.json")) if "untrained" not in path.parts)
    return json.loads(path.read_text(encoding="utf-8"))["paper"]


def testbeds() -> list[str]:
    """Small models first, real ones after them; of kinds with several seeds, what holds over these."""
    found = {model for _, model in tests() if kind_of(model) is None}
    return sorted(found, key=lambda model: (not model.startswith("mini-"), model))


def part_of(name: str, statistic: str) -> str:
    return next((words for words in PARTS.get(name, ()) if words in statistic), "")


def verdict(name: str, model: str, part: str = "") -> str | None:
    found = [test for test in tests().get((name, model), ()) if part_of(name, test["statistic"]) == part]
    return all_of([test["verdict"] for test in found]) if found else None


def rows(names: tuple[str, ...]) -> list[str]:
    known = [name for name in names if any(name == experiment for experiment, _ in tests())]
    asked = [(name, part, said) for name in known for part, said in PARTS.get(name, {"": claim(name)}).items()]
    return [
        f"| `{name}` {said} | {' | '.join(SIGNS[verdict(name, model, part)] for model in testbeds())} |"
        for name, part, said in asked
    ]


def table() -> str:
    columns = [f"`{model}`" for model in testbeds()]
    parts = {
        "What the paper shows": FIGURES,
        "What it explains": EXPLAINED,
        "What we ask beyond it": OURS,
        "What others say of the inside": INSIDE,
    }
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
