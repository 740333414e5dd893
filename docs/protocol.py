"""Writes the tables of docs/protocol.md and the figure docs/protocol.svg, every number from the committed results.

    python docs/protocol.py          write both anew
    python docs/protocol.py --check  say whether they are as they would be written

The results are those of `jaxsink study protocol`, one directory under experiments/results/protocol/ for each run: its
`experiments/protocol*` and its manifest. A run that is added there appears on the page.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxsink.study import plots

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results" / "protocol"
PAGE, FIGURE = ROOT / "docs" / "protocol.md", ROOT / "docs" / "protocol.svg"
BEGIN, END = "<!-- tables: written by docs/protocol.py -->", "<!-- end of tables -->"
EVERY, FEW = "every row", "newest or decoded rows"
SIGNS = {"supported": "**yes**", "refuted": "**no**", "undecided": "?", "not testable here": "–"}
Line = dict[str, Any]


@cache
def finding(run: str) -> Line:
    return json.loads((RESULTS / run / "protocol.json").read_text(encoding="utf-8"))


def runs() -> list[str]:
    """Real models first."""
    found = sorted(path.parent.name for path in RESULTS.glob("*/protocol.json"))
    return sorted(found, key=lambda run: run.startswith("builtin"))


def table(run: str, title: str) -> list[Line]:
    (found,) = (one for one in finding(run)["tables"] if one["title"].startswith(title))
    return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]


def line_of(run: str, model: str, hidden: str) -> Line:
    """What was lost with these keys hidden."""
    (found,) = (one for one in table(run, "Loss") if one["model"] == model and one["hidden"] == hidden)
    return found


def label(run: str, model: str) -> str:
    """smollm2, text: the model, and what it was given if that is not its own task."""
    _, _, given = run.partition("-")
    return f"{model}, {given}" if given else model


def spread(line: Line, name: str) -> str:
    """A value with its interval, and the number of its texts where it is not that of the line."""
    if line.get(name, "") == "":
        return ""
    count = line[f"{name}: texts"]
    few = "" if count == line["texts"] else f" ({count})"
    return f"{line[name]:+.3f} [{line[f'{name}: low']:+.3f}, {line[f'{name}: high']:+.3f}]{few}"


def markdown(columns: list[str], rows: Iterator[list[str]]) -> str:
    lines = [columns, ["---" if n < 2 else "---:" for n in range(len(columns))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def losses() -> str:
    """Nats per token lost: model × keys × protocol."""

    def rows() -> Iterator[list[str]]:
        for run in runs():
            for line in table(run, "Loss"):
                name, plain = label(run, line["model"]), f"{line['nothing hidden']:.3f} ({line['texts']})"
                yield [name, line["hidden"], plain, *(spread(line, part) for part in (EVERY, FEW, "difference"))]

    return markdown(["model", "hidden", "loss of nothing hidden (texts)", EVERY, FEW, "second − first"], rows())


def verdicts() -> str:
    """Every test with its verdict."""

    def rows() -> Iterator[list[str]]:
        for run in runs():
            for test in finding(run)["tests"]:
                against = "; ".join(
                    f"{one['difference']:+.3f} [{one['low']:+.3f}, {one['high']:+.3f}] to {one['null']}"
                    for one in test["comparisons"]
                )
                value = f"{test['value']:.3f}" if test["comparisons"] else test["why"]
                name, sign = label(run, test["model"]), SIGNS[test["verdict"]]
                yield [name, test["statistic"], value, against, str(test["problems"]), sign]

    return markdown(["model", "statistic", "value", "against", "problems", "verdict"], rows())


def answers() -> str:
    """What was written under each condition."""

    def shown(line: Line, name: str) -> str:
        return "" if line.get(name, "") == "" else f"{line[name]:.2f}"

    def rows() -> Iterator[list[str]]:
        names = ("solved", "change of text", "repeated", "unfinished")
        for run in runs():
            for line in table(run, "Written"):
                who = [label(run, line["model"]), line["hidden"], line["from"], str(line["answers"])]
                yield [*who, *(shown(line, name) for name in names)]

    columns = ["model", "hidden", "from", "answers", "solved", "change of text", "repeated 4-grams", "unfinished"]
    return markdown(columns, rows())


def succession() -> str:
    """Shares of the attention before and after the first token is hidden."""

    def pair(line: Line, name: str) -> str:
        return f"{line[f'{name}: before']:.3f} → {line[f'{name}: after']:.3f}"

    def rows() -> Iterator[list[str]]:
        for run in runs():
            for line in table(run, "Where"):
                who = [label(run, line["model"]), line["rows"]]
                shares = [pair(line, str(position)) for position in range(3)]
                to = f"{line['successor']}: {pair(line, 'successor')}"
                yield [*who, *shares, to, str(line["steps needed"]), pair(line, "diagonal"), pair(line, "largest")]

    columns = [
        "model",
        "rows",
        "on token 0",
        "on token 1",
        "on token 2",
        "successor",
        "steps",
        "on itself",
        "strongest key",
    ]
    return markdown(columns, rows())


def draw_losses(axis: Axes, run: str, model: str) -> None:
    lines = [line for line in table(run, "Loss") if line["model"] == model]
    for number, protocol in enumerate((EVERY, FEW)):
        y = [place + 0.18 * (2 * number - 1) for place in range(len(lines))]
        x = [line[protocol] for line in lines]
        reach = [line[f"{protocol}: high"] - line[protocol] for line in lines]
        colour, marker = plots.COLOURS[number], plots.MARKERS[number]
        axis.errorbar(x, y, xerr=reach, fmt=marker, color=colour, label=protocol, capsize=2)
    axis.axvline(0, color=plots.GUIDE, linewidth=0.6)
    axis.set(xlabel="nats per token lost", title=label(run, model))
    axis.set_yticks(range(len(lines)), [line["hidden"] for line in lines])
    axis.set_ylim(len(lines) - 0.5, -0.5)


def draw_succession(axis: Axes, run: str, model: str, rows: str, over: str) -> None:
    """The hidden key before, and its successor before and after, by layer or by step."""
    lines = [one for one in table(run, f"By {over}") if one["model"] == model and one["rows"] == rows]
    x = [line[over] for line in lines]
    to = f"token {lines[0]['successor']}"
    for number, (name, words) in enumerate(
        (("first: before", "token 0, nothing hidden"), ("successor: before", f"{to}, nothing hidden"),
         ("successor: after", f"{to}, token 0 hidden"))
    ):  # fmt: skip
        axis.plot(x, [line[name] for line in lines], color=plots.COLOURS[number], label=words)
    axis.set(xlabel=over, ylabel="share of the attention", title=f"{label(run, model)}, {rows} rows", ylim=(0, None))
    axis.legend(fontsize=6)
    plots.whole_ticks(axis)


def models_of(run: str) -> list[str]:
    return list(dict.fromkeys(line["model"] for line in table(run, "Loss")))


def figure() -> Figure:
    """Losses of all models under both protocols; below, where the attention of the first real model goes."""
    shown = [(run, model) for run in runs() for model in models_of(run) if "cache" not in run]
    columns = max(3, len(shown))
    drawn, axes = plots.canvas(2, columns, height=5.2)
    for axis, (run, model) in zip(axes[0], shown, strict=False):
        draw_losses(axis, run, model)
    run, model = shown[0]
    lines = [line for line in table(run, "Where") if line["model"] == model]
    cases = [(line["rows"], over) for line in lines for over in ("layer", "step")]
    for axis, (rows, over) in zip(axes[1], cases, strict=False):
        draw_succession(axis, run, model, rows, over)
    for axis in (*axes[0, len(shown) :], *axes[1, len(cases) :]):
        axis.set_axis_off()
    for axis in axes[0, 1:]:
        axis.set_yticklabels([])
    drawn.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize=7)
    return drawn


def digest() -> str:
    """Of the results that the figure shows."""
    return hashlib.sha256(b"".join((RESULTS / run / "protocol.json").read_bytes() for run in runs())).hexdigest()


def page() -> str:
    """docs/protocol.md with its tables written anew."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    parts = {
        "Loss of given text": losses(),
        "Where the attention goes": succession(),
        "Written answers": answers(),
        "All tests": verdicts(),
    }
    return f"{before}{BEGIN}\n" + "\n\n".join(f"### {k}\n\n{v}" for k, v in parts.items()) + f"\n{END}{after}"


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == text else f"written by hand: {PAGE}")
    PAGE.write_text(text, encoding="utf-8")
    with plots.styled():
        figure().savefig(FIGURE, metadata={"Date": None, "Creator": None, "Description": digest()})
