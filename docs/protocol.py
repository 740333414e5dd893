"""Writes the tables of docs/protocol.md and the figure docs/protocol.svg, every number from the committed results.

    python docs/protocol.py          write both anew
    python docs/protocol.py --check  say whether they are as they would be written

The results are those of `jaxsink study protocol`, one directory under experiments/results/protocol/ for each run: its
`experiments/protocol*` and its manifest. A run that is added there appears on the page. Of models with seeds the page has
what these come to together; one by one they are in the results.
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

from jaxsink.evals.statistics import Estimate
from jaxsink.study import plots
from jaxsink.study.seeds import error_of, kind_of, over_runs, seeded

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results" / "protocol"
PAGE, FIGURE = ROOT / "docs" / "protocol.md", ROOT / "docs" / "protocol.svg"
BEGIN, END = "<!-- tables: written by docs/protocol.py -->", "<!-- end of tables -->"
EVERY, FEW = "every row", "newest or decoded rows"
OLDER = 8  # texts of runs that do not say how many
SIGNS = {"supported": "**yes**", "refuted": "**no**", "undecided": "?", "not testable here": "–"}
TRAINED_HERE = ("shakespeare", "triple")  # of docs/testbeds.md
Line = dict[str, Any]


@cache
def finding(run: str) -> Line:
    return json.loads((RESULTS / run / "protocol.json").read_text(encoding="utf-8"))


def on_cache(run: str) -> bool:
    """Whether diffusion models wrote on cached keys and values."""
    return run.endswith("-cache")


def has_seeds(run: str) -> bool:
    return (RESULTS / run / "seeds.json").exists()


def runs() -> list[str]:
    """Real models first, then the built-in ones, those of docs/testbeds.md, and those that write on a cache."""
    found = sorted(path.parent.name for path in RESULTS.glob("*/protocol.json"))
    return sorted(found, key=lambda run: (on_cache(run), run in TRAINED_HERE, run.startswith("builtin")))


def table(run: str, title: str) -> list[Line]:
    """Its lines; a table without lines is left out of a finding."""
    found = [one for one in finding(run)["tables"] if one["title"].startswith(title)]
    return [dict(zip(one["columns"], row, strict=True)) for one in found for row in one["rows"]]


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


def over_seeds(lines: list[Line]) -> list[Line]:
    """A line for each kind of model and choice of keys: the mean of its runs, with intervals that know their spread."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((kind_of(line["model"]) or line["model"], line["hidden"]), []).append(line)
    return [together(seeded(kind, len(found)), found) for (kind, _), found in groups.items()]


def together(name: str, found: list[Line]) -> Line:
    plain = sum(line["nothing hidden"] for line in found) / len(found)
    made = {**found[0], "model": name, "nothing hidden": plain}
    for part in (EVERY, FEW, "difference"):
        low, high = (mean := mean_of(found, part)).interval()
        made |= {part: mean.value, f"{part}: low": low, f"{part}: high": high}
    return made


def mean_of(found: list[Line], part: str) -> Estimate:
    errors = [error_of(line[f"{part}: low"], line[f"{part}: high"]) for line in found]
    return over_runs([line[part] for line in found], errors)


def losses() -> str:
    """Nats per token lost: model × keys × protocol."""

    def rows() -> Iterator[list[str]]:
        for run in (run for run in runs() if not on_cache(run)):  # given text needs no cache
            lines = table(run, "Loss")
            for line in over_seeds(lines) if has_seeds(run) else lines:
                name, plain = label(run, line["model"]), f"{line['nothing hidden']:.3f} ({line['texts']})"
                yield [name, line["hidden"], plain, *(spread(line, part) for part in (EVERY, FEW, "difference"))]

    columns = ["model", "hidden", "loss of nothing hidden (texts)", EVERY, FEW, "second − first"]
    return f"{markdown(columns, rows())}\n\n{gaps('Loss')}"


def gaps(title: str) -> str:
    """Which keys were hidden from some models alone; where nothing was measured, no line stands."""
    asked = {
        label(run, model): {line["hidden"] for line in table(run, title) if line["model"] == model}
        for run in runs()
        for model in dict.fromkeys(line["model"] for line in table(run, title))
    }
    everything = list(dict.fromkeys(hidden for found in asked.values() for hidden in sorted(found)))
    missing = [hidden for hidden in everything if any(hidden not in found for found in asked.values())]
    had = {model for model, found in asked.items() if set(missing) <= found}
    names_of = sorted({model.partition(", ")[0] for model in had})
    assert all(not set(missing) & found for model, found in asked.items() if model not in had)
    names = " and ".join(f"*{hidden}*" for hidden in missing)
    return f"{names} were hidden in {', '.join(names_of)} alone; the other runs are older." if missing else ""


def verdicts() -> str:
    """Every test with its verdict; those over seeds are on docs/testbeds.md."""

    def rows() -> Iterator[list[str]]:
        for run in runs():
            for test in () if has_seeds(run) else finding(run)["tests"]:
                if on_cache(run) and test["statistic"].startswith("nats"):
                    continue
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
        if line.get(name, "") == "":
            return ""
        known = line.get(f"{name}: low", "") != ""
        return f"{line[name]:.2f}" + (f" [{line[f'{name}: low']:.2f}, {line[f'{name}: high']:.2f}]" if known else "")

    def rows() -> Iterator[list[str]]:
        names = ("solved", "change of text", "repeated", "unfinished")
        for run in runs():
            for line in table(run, "Written"):
                who = [label(run, line["model"]), line["hidden"], line["from"], str(line["answers"])]
                yield [*who, *(shown(line, name) for name in names)]

    columns = ["model", "hidden", "from", "answers", "solved", "change of text", "repeated 4-grams", "unfinished"]
    return f"{markdown(columns, rows())}\n\n{gaps('Written')}"


def succession() -> str:
    """Shares of the attention before and after the first token is hidden, and the interval of how much more it is."""

    def pair(line: Line, name: str) -> str:
        shares = f"{line[f'{name}: before']:.3f} → {line[f'{name}: after']:.3f}"
        if f"{name}: gain" not in line:
            return shares
        return f"{shares} [{line[f'{name}: gain: low']:+.3f}, {line[f'{name}: gain: high']:+.3f}]"

    def rows() -> Iterator[list[str]]:
        for run in runs():
            for line in table(run, "Where"):
                if has_seeds(run) and not line["model"].endswith("-0"):
                    continue  # one of each kind
                who = [label(run, line["model"]), line["rows"], str(line.get("texts", OLDER))]
                shares = [pair(line, str(position)) for position in range(3)]
                to = f"{line['successor']}: {pair(line, 'successor')}"
                yield [*who, *shares, to, str(line["steps needed"]), pair(line, "diagonal"), pair(line, "largest")]

    columns = [
        "model",
        "rows",
        "texts",
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
    """Losses of SmolLM2 and the built-in models under both protocols; below, where the attention of SmolLM2 goes."""
    adapted = [run for run in runs() if run.startswith("smollm2_")]
    without = [run for run in runs() if not on_cache(run) and run not in (*TRAINED_HERE, *adapted)]
    shown = [(run, model) for run in without for model in models_of(run)]
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
