"""Writes the tables of docs/lens.md from committed results: estimates and the benchmark in benchmarks/results/lens.json,
and the experiments in experiments/results/lens/.

python docs/lens.py          write the page anew
python docs/lens.py --check  say whether it is as it would be written
"""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENTS = ROOT / "experiments" / "results" / "lens"
BENCHMARK = ROOT / "benchmarks" / "results" / "lens.json"
PAGE = ROOT / "docs" / "lens.md"
NAMES = ("holds", "residual", "scratchpad")
GIB = 1 << 30


def results() -> dict[str, Any]:
    return json.loads(BENCHMARK.read_text(encoding="utf-8"))


def costs() -> list[str]:
    lines = ["| recorded beside the scores | mesh | GiB per device | step, ms |", "| --- | --- | ---: | ---: |"]
    for line in results()["tpu"]:
        mesh, what = f"{line['mesh']['data']} x {line['mesh']['model']}", line["inside"] or "nothing"
        seconds = line["step_seconds"]
        time = "does not fit" if seconds is None else f"{1e3 * seconds['total']:.1f}"
        lines.append(f"| {what} | {mesh} | {line['needed_per_device'] / GIB:.2f} | {time} |")
    return lines


NAMED = {"ours": "here", "torch": "an eager PyTorch loop", "transformer_lens": "TransformerLens {transformer-lens}"}


def benchmark() -> list[str]:
    found = results()["cpu"]
    shape = "{layers} layers x {width}, vocabulary {vocab}, {batch} prompts of {prompt} + {new} new".format(
        **found["shape"]
    )
    lines = [
        f"| {shape} | time, with ours as 1 | peak memory, MiB | of it before the run |",
        "| --- | ---: | ---: | ---: |",
    ]
    for kind, name in NAMED.items():
        memory, time = found["peak_mib"][kind], found["over_ours"].get(kind, 1.0)
        words = name.format(**found["versions"])
        lines.append(f"| {words} | {time:.2f} | {memory['peak']:.0f} | {memory['before']:.0f} |")
    same = min(found["same_best_token"].values())
    return [
        *lines,
        "",
        f"Medians of {found['rounds']} rounds that took turns on a loaded machine and differ widely: the times say which "
        "side is faster, not exactly by how much, and do not tell the two others apart. Peaks differ less. "
        "Ours includes compilation, and the times do not. A run with the lens here "
        f"takes {found['lens_over_plain']:.1f} times one without, which needs {found['peak_mib']['plain']['peak']:.0f} MiB. "
        f"The best token is the same in {same:.2%} of the cells.",
    ]


def experiments() -> list[str]:
    lines = ["| experiment | model | statistic | found | against | verdict |", "| --- | --- | --- | ---: | --- | --- |"]
    for name in NAMES:
        said = json.loads((EXPERIMENTS / f"{name}.json").read_text(encoding="utf-8"))
        for test in said["tests"]:
            known = test["value"] is not None
            found = f"{test['value']:.3f} [{test['low']:.3f}, {test['high']:.3f}]" if known else ""
            against = "; ".join(f"{one['null_value']:.3f}, {one['null']}" for one in test["comparisons"])
            cells = [name, test["model"], test["statistic"], found, against or test["why"], test["verdict"]]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def lines_of(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((EXPERIMENTS / f"{name}.csv").read_text(encoding="utf-8").splitlines()))


def whole_runs() -> list[str]:
    """Of each edit, the mean over the layers in which it was made, one at a time."""
    lines = [
        "| model | the sink's stream | in steps | other texts | those at the second token | solved | at the second token |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    found = lines_of("residual-2")
    for model in dict.fromkeys(line["model"] for line in found):
        mine = [line for line in found if line["model"] == model]
        (plain,) = (line for line in mine if line["change"] == "nothing")
        lines.append(f"| {model} | as it is | | | | {float(plain['solved']):.0%} | |")
        for change, when in dict.fromkeys((line["change"], line["steps"]) for line in mine if line is not plain):
            cells = [model, {"zero": "at zero", "patch": "another sequence's"}[change], when]
            for column in ("other texts", "solved"):
                for place in ("sink", "second token"):
                    of = [line for line in mine if (line["change"], line["steps"], line["at"]) == (change, when, place)]
                    cells.append(f"{sum(float(line[column]) for line in of) / len(of):.0%}")
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def waits() -> list[str]:
    lines = ["| model | steps until it is written | at sinks | at other masks |", "| --- | --- | ---: | ---: |"]
    for line in lines_of("holds-2"):
        shares = [line[f"readable: {place}"] for place in ("sinks", "others")]
        cells = ["" if share == "nan" else f"{float(share):.2f}" for share in shares]
        lines.append("| " + " | ".join([line["model"], line["steps until it is written"], *cells]) + " |")
    return lines


def layers() -> list[str]:
    kept = [(value, place) for value in ("readable", "kl") for place in ("sinks", "others")]
    lines = [
        "| model | half of the run | layer | read at sinks | at other masks | nats at sinks | at other masks |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for line in lines_of("holds-1"):
        cells = [line["model"], line["half of the run"], line["layer"]]
        cells += [f"{float(line[f'{value}: {place}']):.2f}" for value, place in kept]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


TABLES = {
    "costs": costs,
    "benchmark": benchmark,
    "experiments": experiments,
    "whole_runs": whole_runs,
    "waits": waits,
    "layers": layers,
}


def page() -> str:
    text = PAGE.read_text(encoding="utf-8")
    for name, make in TABLES.items():
        begin, end = f"<!-- {name}: written by docs/lens.py -->\n", f"<!-- end of {name} -->"
        made = begin + "\n".join(make()) + "\n" + end
        text = re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _, made=made: made, text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit("docs/lens.md is not as its results say" if PAGE.read_text(encoding="utf-8") != page() else 0)
    PAGE.write_text(page(), encoding="utf-8")
