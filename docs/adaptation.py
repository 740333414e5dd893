"""Writes the table of docs/adaptation.md from the committed files of the runs in experiments/results/adaptation/.

    python docs/adaptation.py          write the page anew
    python docs/adaptation.py --check  say whether it is as it would be written

arm.csv and opened.csv are the first line of a run's sinks.csv, before any training, with the objectives "causal" and
"adaptation"; seed-N.csv is the sinks.csv of an adaptation.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results" / "adaptation"
PAGE = ROOT / "docs" / "adaptation.md"
BEGIN, END = "<!-- table: written by docs/adaptation.py -->\n", "<!-- end of table -->"
HEAD = (
    "| | loss on held-out text | α₁ | heads above 0.3 | Eq. 3 sinks per head | strongest key | values of the first token |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
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
    ]
    return "| " + " | ".join([name, *cells]) + " |"


def table() -> str:
    lines = [
        line("the ARM itself, causal", looks("arm.csv")[0]),
        line("its mask opened, untrained", looks("opened.csv")[0]),
    ]
    for path in sorted(RESULTS.glob("seed-*.csv")):
        seed = path.stem.removeprefix("seed-")
        lines += [
            line(f"{look['step']:.0f} steps (order {seed})", look) for look in looks(path.name) if look["step"] > 0
        ]
    return "\n".join([HEAD, *lines]) + "\n"


def page() -> str:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit("docs/adaptation.md is not as its results say" if PAGE.read_text(encoding="utf-8") != page() else 0)
    PAGE.write_text(page(), encoding="utf-8")
