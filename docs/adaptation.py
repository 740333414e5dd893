"""Writes the tables of docs/adaptation.md from the committed files of the runs in experiments/results/adaptation/.

    python docs/adaptation.py          write the page anew
    python docs/adaptation.py --check  say whether it is as it would be written

arm.csv and opened.csv are the first line of a run's sinks.csv, before any training, with the objectives "causal" and
"adaptation"; seed-N.csv is the sinks.csv of an adaptation, seed-N-again.csv of the same command once more, and
seed-N_RATE.csv of one with that learning rate (the others have 0.0003). first-1.csv and first-2.csv are those of
`python -m jaxsink_experiments.first_token`.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results" / "adaptation"
PAGE = ROOT / "docs" / "adaptation.md"
BEGIN, END = "<!-- table: written by docs/adaptation.py -->\n", "<!-- end of table -->"
MARKED = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
SHOWN = (10, 20, 40, 80, 160, 320)  # steps
HEAD = (
    "| | loss on held-out text | α₁ | heads above 0.3 | Eq. 3 sinks per head | strongest key | values of the first token | "
    "lost: every row | lost: few rows |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


def looks(name: str) -> list[dict[str, float]]:
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        return [{key: float(value) for key, value in line.items()} for line in csv.DictReader(file)]


def line(name: str, look: dict[str, float]) -> str:
    cells = [
        f"{look['validation_loss']:.2f}",
        f"{look['alpha_first']:.3f}",
        f"{look['heads_above']:.0%}",
        f"{look['sinks_per_head']:.1f}",
        f"{look['largest_share']:.0%}",
        f"{look['value_first']:.2f}",
        *(f"{look[name]:+.3f}" if name in look else "" for name in ("lost_every_row", "lost_few_rows")),
    ]
    return "| " + " | ".join([name, *cells]) + " |"


def table() -> str:
    lines = [
        line("the ARM itself, causal", looks("arm.csv")[0]),
        line("its mask opened, untrained", looks("opened.csv")[0]),
    ]
    for path in sorted(RESULTS.glob("seed-*.csv"), key=lambda path: path.stem):
        if "_" in path.stem:  # in the table of all runs
            continue
        seed = path.stem.removeprefix("seed-").replace("-", ", ")
        lines += [
            line(f"{look['step']:.0f} steps (order {seed})", look) for look in looks(path.name) if look["step"] > 0
        ]
    return "\n".join([HEAD, *lines]) + "\n"


def all_runs() -> str:
    """A line for each, with the attention on the first token at some of its checkpoints."""
    lines = [
        f"| order of the data | learning rate | {' | '.join(f'α₁ after {step}' for step in SHOWN)} | steps |",
        f"| --- | ---: |{' ---: |' * len(SHOWN)} ---: |",
    ]
    for path in sorted(RESULTS.glob("seed-*.csv"), key=lambda path: path.stem):
        seed, _, rate = path.stem.removeprefix("seed-").partition("_")
        alpha = {look["step"]: f"{look['alpha_first']:.3f}" for look in looks(path.name)}
        cells = [seed.replace("-", ", "), rate or "0.0003", *(alpha.get(step, "") for step in SHOWN)]
        lines.append(f"| {' | '.join(cells)} | {max(alpha):.0f} |")
    return "\n".join(lines) + "\n"


def lines_of(name: str) -> list[dict[str, Any]]:
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def first() -> str:
    """What receives the attention, by what begins the texts."""
    lines = [
        "| attention | added to the texts | α of the first token | α of the added one | heads whose strongest key is the "
        "first token | the added one | share of the strongest key | tokens that receive most |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for found in lines_of("first-1.csv"):
        places = ("first", "the added token", "first is the strongest", "the added token is the strongest", "strongest")
        cells = [spread(found, name) for name in places]
        lines.append(f"| {' | '.join([found['attention'], shown(found['added']), *cells, most(found)])} |")
    return "\n".join(lines) + "\n"


def spread(line: dict[str, str], name: str) -> str:
    if line[name] == "":
        return ""
    return "{:.3f} [{:.3f}, {:.3f}]".format(*(float(line[f"{name}{end}"]) for end in ("", ": low", ": high")))


def shown(added: str) -> str:
    """Special tokens as code."""
    token, found, place = added.rpartition("|>")
    return f"`{token}{found}`{place}".replace("|", "\\|") if found else added


def most(case: dict[str, str]) -> str:
    """The three tokens with the most attention, each with its share of the attention and of the text."""
    lines = [one for one in lines_of("first-2.csv") if all(one[key] == case[key] for key in ("attention", "added"))]
    said = []
    for one in lines[:3]:
        token = one["token"] if one["token"].startswith("the first") else "`" + readable(one["token"]) + "`"
        attention, keys = float(one["share of attention"]), float(one["share of keys"])
        said.append(f"{token} {attention:.0%} (of the text {keys:.1%})")
    return ", ".join(said)


def readable(token: str) -> str:
    """Of byte-level BPE, whose letters stand for bytes."""
    return token.replace("Ġ", "␣").replace("Ċ", "⏎").replace("|", "\\|")


def page() -> str:
    """With its tables written anew."""
    text = PAGE.read_text(encoding="utf-8")
    before, *parts = MARKED.split(text)
    made = (table(), all_runs(), first())
    return before + "".join(f"{BEGIN}{one}{END}{part}" for one, part in zip(made, parts, strict=True))


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit("docs/adaptation.md is not as its results say" if PAGE.read_text(encoding="utf-8") != page() else 0)
    PAGE.write_text(page(), encoding="utf-8")
