"""All benchmarks with one command: figures as JSON, tables as Markdown, the lines of docs/speed.md and the plot of growth.

    python benchmarks/run.py                        everything, into benchmarks/results/ (about 40 minutes on two cores)
    python benchmarks/run.py --only sampler growth  some; the others' last figures stay
    python benchmarks/run.py --tables               only write the tables and the lines of docs/speed.md again

Run it on a quiet machine: ratios are measured side by side in one run, but a busy machine still blurs them. `sampler` and
`growth` need torch (extra `convert`), `tpu_compile` and `kernel` libtpu (extra `tpu`). One that fails is named at the end,
and keeps its last figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from machine import describe

HERE = Path(__file__).parent
SCRIPTS = {
    "sampler": ("sampler.py",),
    "growth": ("growth.py", "--plot", str(HERE / "results" / "growth")),
    "sinks": ("sinks.py",),
    "convert": ("convert.py",),
    "training": ("training.py",),
    "tpu_compile": ("tpu_compile.py",),
    "kernel": ("kernel.py", "--size", "128"),
}
BEGIN, END = "<!-- benchmarks/run.py begins -->\n", "<!-- benchmarks/run.py ends -->\n"
Rows = list[list[str]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, default=list(SCRIPTS), help="which (default: all)")
    parser.add_argument("--out", default=str(HERE / "results"), metavar="DIR")
    parser.add_argument("--tables", action="store_true", help="run nothing")
    args = parser.parse_args()
    folder, failed = Path(args.out), []
    folder.mkdir(parents=True, exist_ok=True)
    stored = folder / "results.json"
    results = json.loads(stored.read_text()) if stored.exists() else {}
    for name in [] if args.tables else args.only:
        machine = describe()
        print(f"{name} …", file=sys.stderr, flush=True)
        command = [sys.executable, str(HERE / SCRIPTS[name][0]), *SCRIPTS[name][1:], "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, "JAX_PLATFORMS": "cpu"})
        try:
            results[name] = {"machine": machine, "figures": json.loads(done.stdout)}
        except json.JSONDecodeError:
            failed.append(name)
            continue
        stored.write_text(json.dumps(results, indent=1) + "\n")
    (folder / "results.md").write_text(page(results))
    speed = HERE.parent / "docs" / "speed.md"
    speed.write_text(with_summary(speed.read_text(), results))
    if failed:
        print(f"these failed, and keep their last figures: {', '.join(failed)}.", file=sys.stderr)
    return int(bool(failed))


def page(results: dict[str, Any]) -> str:
    """A table per script."""
    parts = ["# Benchmarks\n\nWritten by `python benchmarks/run.py`; the figures are in results.json."]
    for name, table in TABLES.items():
        if name in results:
            machine = ", ".join(f"{key} {value}" for key, value in results[name]["machine"].items())
            title, head, rows = table(results[name]["figures"])
            parts.append(f"## {title}\n\n{markdown(head, rows)}\n\n`benchmarks/{name}.py`; {machine}")
    return "\n\n".join(parts) + "\n"


def markdown(head: list[str], rows: Rows) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def sampler_table(figures: Any) -> tuple[str, list[str], Rows]:
    rows = []
    for case in figures:
        rows += [[case["case"], name, f"{ratio:.2f}"] for name, ratio in case["ratios"].items()]
    return "Samplers against PyTorch, float32 on CPU", ["case", "time ratio", "median of the rounds"], rows


def growth_table(figures: Any) -> tuple[str, list[str], Rows]:
    variants = [name for name, value in figures[0].items() if isinstance(value, dict) and "/" not in name]
    head = ["S", *(f"{name}: ms per step, MiB" for name in variants), "jaxsink / PyTorch captured: time", "memory"]
    rows = []
    for row in figures:
        both = [f"{row[name]['ms_per_step']:.0f}, {row[name]['peak_mib']:.0f}" for name in variants]
        ratios = row["jaxsink / PyTorch captured"]
        rows.append([str(row["length"]), *both, f"{ratios['ms_per_step']:.2f}", f"{ratios['peak_mib']:.2f}"])
    return "Growth with the sequence, 12 layers x 768 (growth.png)", head, rows


def sinks_table(figures: Any) -> tuple[str, list[str], Rows]:
    steps, layers, heads, length = figures["record"]
    rows = [[name, f"{value:.3g}"] for name, value in figures.items() if name.startswith("times faster")]
    rows.append(["share of a step of a 12 x 768 model", f"{figures['in a generation']['share']:.2%}"])
    return f"Detecting and tracking sinks, {steps} x {layers} x {heads} x {length}", ["what", "figure"], rows


def convert_table(figures: Any) -> tuple[str, list[str], Rows]:
    rows = [
        [name, f"{run['rate_against_copy']:.2f}", f"{run['peak_rss_above_imports'] / 2**30:.2f}"]
        for name, run in figures["runs"].items()
        if name != "copy"
    ]
    title = f"Converting {figures['source_bytes'] / 2**30:.1f} GiB"
    return title, ["what", "speed against a plain copy", "peak memory above imports, GiB"], rows


def training_table(figures: Any) -> tuple[str, list[str], Rows]:
    rows = [
        [name, f"{case['tokens']:,}", f"{case['gflops']:.0f}", f"{case['peak']:.0f}", f"{case['share']:.0%}"]
        for name, case in figures.items()
    ]
    return (
        "Training steps, AdamW, float32 on CPU",
        ["model", "tokens per step", "GFLOP/s", "a plain product", "share"],
        rows,
    )


def tpu_table(figures: Any) -> tuple[str, list[str], Rows]:
    rows = []
    for plan in figures:
        needed, step = plan["needed_per_device"], plan["step_seconds"]
        options = [f"batch {plan['batch']}", f"S = {plan['length']}"]
        options += [plan["dtype"]] if plan["dtype"] != "bfloat16" else []
        options += [] if plan["statistics"] else ["nothing recorded"]
        estimates = ["?"] * 3
        if step is not None:
            estimates = [f"{step[part] * 1e3:.1f}" for part in ("total", "collective")]
            estimates.append(f"{plan['shares']['roofline']:.0%}")
        rows.append(
            [
                plan["model"],
                plan["tpu"],
                ", ".join(options),
                "{data} x {model}".format(**plan["mesh"]),
                "yes" if plan["fits"] else "no",
                "?" if needed is None else f"{needed / 2**30:.2f}",
                "" if plan["budget"] is None else str(plan["budget"]),
                *estimates,
                "" if plan["maps"] is None else str(plan["maps"]),
            ]
        )
    head = [
        "model",
        "slice",
        "job",
        "mesh",
        "fits",
        "GiB per device",
        "budget",
        "ms per step",
        "collectives",
        "roofline",
        "S x S shapes",
    ]
    return "Samplers compiled for TPU: compiler estimates, not measurements", head, rows


def kernel_table(figures: Any) -> tuple[str, list[str], Rows]:
    head = ["topology", "head size", "length", "backend", "record", "block x tile", "maps", "cycles", "peak share"]
    rows = [["" if case.get(name) is None else str(case[name]) for name in head] for case in figures]
    return "Attention of one layer compiled for TPU: compiler estimates, not measurements", head, rows


TABLES = {
    "sampler": sampler_table,
    "growth": growth_table,
    "sinks": sinks_table,
    "convert": convert_table,
    "training": training_table,
    "tpu_compile": tpu_table,
    "kernel": kernel_table,
}


def summary(results: dict[str, Any]) -> str:
    """The lines of docs/speed.md: what a user would ask first."""
    cases = {case["case"].split(",")[0]: case for case in reversed(results["sampler"]["figures"])}
    diffusion, decoding = cases["diffusion"]["ratios"], cases["decoding"]["ratios"]
    products = diffusion["products alone / PyTorch's"]
    long = results["growth"]["figures"][-1]
    ratios = long["jaxsink / PyTorch captured"]
    sinks, machine = results["sinks"]["figures"], results["sampler"]["machine"]
    rows = [
        [
            "a diffusion step with statistics, against PyTorch that returns its maps (12 x 768, S = 256)",
            f"{diffusion['statistics / PyTorch captured']:.2f} of its time",
        ],
        [
            "the same, where PyTorch has the head on all positions, as LLaDA's own script does",
            f"{diffusion['statistics / PyTorch as published']:.2f} of its time",
        ],
        ["the matrix products alone, against PyTorch's own", f"{products:.2f}"],
        ["statistics, against none", f"{diffusion['statistics / none']:.2f}"],
        [
            f"a diffusion step with statistics at S = {long['length']}, against PyTorch that returns its maps",
            f"{ratios['ms_per_step']:.2f} of its time, {ratios['peak_mib']:.2f} of its memory",
        ],
        [
            "a decoding step of an autoregressive model with the attention of its newest query",
            f"{decoding['last row / PyTorch captured']:.2f} of its time",
        ],
        [
            "detecting and tracking sinks, against vectorised NumPy",
            f"{sinks['times faster than vectorised NumPy']:.1f} times as fast",
        ],
    ]
    where = f"{machine['cores']} cores of an {machine['processor']}, float32, jax {machine['jax']}, torch {machine['torch']}"
    more = "ratios of one run. All figures: `benchmarks/results/results.md`."
    return f"{markdown(['what', 'ratio'], rows)}\n\n{where}; {more}\n"


def with_summary(text: str, results: dict[str, Any]) -> str:
    """docs/speed.md with its lines as the results have them."""
    if BEGIN not in text or not {"sampler", "growth", "sinks"} <= set(results):
        return text
    before, rest = text.split(BEGIN)
    return before + BEGIN + summary(results) + END + rest.split(END)[1]


if __name__ == "__main__":
    sys.exit(main())
