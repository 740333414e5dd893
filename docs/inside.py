"""Writes the tables of docs/inside.md from the committed files of the runs in experiments/results/inside/.

    python docs/inside.py          write the page anew
    python docs/inside.py --check  say whether it is as it would be written

The runs: of the built-in models, and in folders of their own of two models trained on stories ("triple"), of SmolLM2-135M,
of planted sinks and of random weights.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results" / "inside"
PAGE = ROOT / "docs" / "inside.md"
BEGIN, END = "<!-- tables: written by docs/inside.py -->\n", "<!-- end of tables -->"
NAMES = ("next", "agreement", "outlier")
TRAINED, KNOWN = ("", "triple", "smollm2"), ("planted", "untrained")
SIGNS = {"supported": "**yes**", "refuted": "**no**", "undecided": "?", "not testable here": "–"}
PAIRS = (
    "all pairs",
    "neighbouring layers",
    "the last in the first",
    "later layers in the middle one",
    "another text",
    "each layer moved round",
)
Line = dict[str, str]


def lines(name: str, run: str = "") -> list[Line]:
    """Of a table; none where a run has no such experiment."""
    if not (RESULTS / run / f"{name}.csv").is_file():
        return []
    with (RESULTS / run / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def of_all(name: str) -> Iterator[Line]:
    """Of this table, the lines of all trained models."""
    for run in TRAINED:
        yield from lines(name, run)


def tests(run: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(experiment, test) of a run."""
    for name in NAMES:
        path = RESULTS / run / f"{name}.json"
        if path.is_file():
            yield from ((name, test) for test in json.loads(path.read_text(encoding="utf-8"))["tests"])


def spread(line: Line, name: str, low: str, high: str, sign: str = "") -> str:
    value, *ends = (float(line[column]) for column in (name, low, high))
    return f"{value:{sign}.2f} [{ends[0]:{sign}.2f}, {ends[1]:{sign}.2f}]"


def markdown(columns: list[str], rows: Iterator[list[str]], words: int) -> str:
    """words: how many columns, from the left, are no numbers."""
    head = [columns, ["---" if n < words else "---:" for n in range(len(columns))]]
    return "\n".join(f"| {' | '.join(line)} |" for line in [*head, *rows])


def verdicts() -> str:
    """Every test of a trained model with its verdict."""

    def rows() -> Iterator[list[str]]:
        for run in TRAINED:
            for name, test in tests(run):
                against = "; ".join(
                    f"{one['difference']:+.2f} [{one['low']:+.2f}, {one['high']:+.2f}] to {one['null']}"
                    for one in test["comparisons"]
                )
                value = f"{test['value']:.2f}" if test["comparisons"] else ""
                cells = [f"`{name}` {test['statistic']}", test["model"], value, against or test["why"]]
                yield [*cells, SIGNS[test["verdict"]]]

    return markdown(["prediction", "model", "found", "against", "verdict"], rows(), 5)


def where_it_is_known() -> str:
    """How many tests there were of models whose answer is known, and how many of them said yes."""

    def rows() -> Iterator[list[str]]:
        for run in KNOWN:
            for name in NAMES:
                found = [test for one, test in tests(run) if one == name]
                count = {sign: sum(test["verdict"] == sign for test in found) for sign in SIGNS}
                if found:
                    yield [run, f"`{name}`", *(str(count[sign]) for sign in SIGNS)]

    return markdown(["model", "experiment", *SIGNS], rows(), 2)


def what_decodes_next() -> str:
    def rows() -> Iterator[list[str]]:
        for line in of_all("next-1"):
            yield [
                line["model"],
                line["ranked by"],
                spread(line, "all others", "low", "high"),
                spread(line, "neighbours", "neighbours: low", "neighbours: high"),
                f"{float(line['kept for 90 %']):.0%}",
            ]

    return markdown(["model", "ranked by", "over all others", "over its neighbours", "kept for 90 %"], rows(), 2)


def agreement() -> str:
    def rows() -> Iterator[list[str]]:
        models = dict.fromkeys(line["model"] for line in of_all("agreement-1"))
        for model in models:
            found = {line["pairs"]: line for line in of_all("agreement-1") if line["model"] == model}
            yield [model, *(spread(found[name], "share", "low", "high") for name in PAIRS)]

    return markdown(["model", *PAIRS], rows(), 1)


def channels() -> str:
    def rows() -> Iterator[list[str]]:
        for line in of_all("outlier-1"):
            cells = [line["model"], f"{line['channel']} of {line['of']}"]
            cells += [f"{float(line[name]):.1f}×" for name in ("in medians", "the second")]
            yield [*cells, f"{float(line['largest of tokens']):.0%}"]

    columns = ["model", "channel", "its size, in medians", "that of the second", "largest of so many tokens"]
    return markdown(columns, rows(), 2)


def taken_out() -> str:
    def share(line: Line, name: str) -> str:
        return f"{float(line[name]):.0%}" if line.get(name) else ""

    def rows() -> Iterator[list[str]]:
        for line in of_all("outlier-2"):
            cells = [line["model"], line["taken out"], line["channels"]]
            cells += [spread(line, "nats per token lost", "low", "high", "+")]
            yield [*cells, share(line, "solved"), share(line, "repeated")]

    columns = ["model", "taken out", "channels", "nats per token lost", "solved", "repeated 4-grams"]
    return markdown(columns, rows(), 2)


def page() -> str:
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    parts = {
        "What decodes next": what_decodes_next(),
        "What of one layer's three sinks another layer has": agreement(),
        "The largest channel": channels(),
        "Channels taken out": taken_out(),
        "All tests": verdicts(),
        "Where the answer is known": where_it_is_known(),
    }
    made = "\n\n".join(f"### {title}\n\n{table}" for title, table in parts.items())
    return f"{before}{BEGIN}\n{made}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit("docs/inside.md is not as its results say" if PAGE.read_text(encoding="utf-8") != page() else 0)
    PAGE.write_text(page(), encoding="utf-8")
