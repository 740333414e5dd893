"""Writes the tables of docs/gpu.md from what the GPU compiler said (benchmarks/results/gpu_*.json).

python docs/gpu.py          write the page anew
python docs/gpu.py --check  say whether it is as it would be written
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jaxsink
from jaxsink.planner.gpu import CHIPS, LOOKED_UP

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "gpu.md"
BEGIN, END = "<!-- tables: written by docs/gpu.py -->\n", "<!-- end of tables -->"
GIB = 1 << 30
MEMORY = (
    "| model | GPU, mesh | weights | batch x tokens | fits | GiB per device | largest batch | S x S shapes | registers | "
    "shared KiB |\n"
    "| --- | --- | --- | --- | --- | --- | ---: | ---: | --- | --- |"
)
TIME = (
    "| model | GPU, mesh | weights | batch x tokens | ms per step, from roofline | collectives in a step |\n"
    "| --- | --- | --- | --- | --- | --- |"
)
GPUS = (
    "| GPU | TFLOP/s | GB/s | GiB | link, GB/s | dollars an hour, assumed | source of the peak figures |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | --- |"
)
KERNEL = (
    "| GPU | compute capability | head size | type | blocks | registers: outputs, sums | shared KiB: outputs, sums | of | "
    "spilled bytes | temporaries MiB | S x S shapes |\n"
    "| --- | --- | ---: | --- | --- | --- | --- | ---: | ---: | ---: | ---: |"
)
OTHERS = "| attention | what keys receive | temporaries MiB | S x S shapes |\n| --- | --- | ---: | ---: |"
SHARED = {"8.0": 163, "8.6": 99, "8.9": 99, "9.0": 227, "10.0": 227, "12.0": 99}  # KiB that a program may have


def read(name: str) -> list[dict[str, Any]]:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def table(head: str, rows: list[list[Any]]) -> str:
    return "\n".join([head, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)])


def run_of(one: dict[str, Any]) -> list[Any]:
    """What was compiled, as the first cells of a line; several GPUs with their mesh."""
    mesh = ", {data} x {model}".format(**one["mesh"]) if one["devices"] > 1 else ""
    return [one["model"], one["gpu"] + mesh, one["dtype"], f"{one['batch']} x {one['length']}"]


def memory_row(one: dict[str, Any]) -> list[Any]:
    needed, room = one["needed_per_device"] / GIB, one["hbm_per_device"] / GIB
    fits = "yes" if one["fits"] else "no"
    registers, shared = (of_kernels(one, what) for what in ("registers", "shared bytes"))
    return [
        *run_of(one),
        fits,
        f"{needed:.2f} of {room:.2f}",
        one["largest_batch"] or "not searched",
        one["maps"],
        ", ".join(str(most) for most in registers),
        ", ".join(f"{most / 1024:.0f}" for most in shared),
    ]


def of_kernels(one: dict[str, Any], what: str) -> list[int]:
    """The most that the kernels of outputs take, and those of sums, where the program has any."""
    sums = [facts[what] for name, facts in one["programs"].items() if "columns" in name]
    outputs = [facts[what] for name, facts in one["programs"].items() if "columns" not in name]
    return [max(values) for values in (outputs, sums) if values]


def time_row(one: dict[str, Any]) -> list[Any]:
    collectives = ", ".join(f"{count} {kind}" for kind, count in (one["collectives_per_step"] or {}).items())
    between = " to ".join(f"{1e3 * seconds:.0f}" for seconds in one["step_seconds"]["range"])
    return [*run_of(one), between, collectives or "none"]


def has_experts(one: dict[str, Any]) -> bool:
    return bool(jaxsink.preset(one["model"]).experts)


def gpu_row(chip: Any) -> list[Any]:
    memory, price = f"{chip.memory / GIB:g}", f"{chip.price:.2f}"
    rates = [f"{chip.flops / 1e12:g}", f"{chip.bandwidth / 1e9:g}", memory, f"{chip.link / 1e9:g}"]
    return [chip.name, *rates, price, f"{chip.sheet}, {LOOKED_UP}"]


def kernel_row(one: dict[str, Any]) -> list[Any]:
    programs = list(one["programs"].values())
    return [
        one["gpu"],
        one["capability"],
        one["head size"],
        one["type"],
        one["blocks"],
        ", ".join(str(program["registers"]) for program in programs),
        ", ".join(f"{program['shared bytes'] / 1024:.0f}" for program in programs),
        SHARED[one["capability"]],
        sum(program["spilled bytes"] for program in programs),
        one["temporaries MiB"],
        one["maps"],
    ]


def other_row(one: dict[str, Any]) -> list[Any]:
    return [one["backend"], one["record"], one["temporaries MiB"], one["maps"]]


def tables() -> str:
    compiled, kernel = read("gpu_compile.json"), read("gpu_kernel.json")
    ours = [one for one in kernel if one["backend"] == "pallas" and one["record"] == "by kind"]
    compared = [one for one in kernel if one["gpu"] == "h100" and one["head size"] == 128 and one["type"] == "bfloat16"]
    return "\n\n".join(
        [
            "### Memory",
            table(MEMORY, [memory_row(one) for one in compiled]),
            "### Time",
            table(TIME, [time_row(one) for one in compiled if not has_experts(one)]),
            "### The kernel",
            "One sequence of 4096 tokens, 4 heads on 2 kv heads, causal, hidden keys, sums by kind of query:",
            table(KERNEL, [kernel_row(one) for one in ours]),
            "Beside other ways to compute the same layer, on h100, head size 128, bfloat16:",
            table(OTHERS, [other_row(one) for one in compared]),
            "### The GPUs",
            table(GPUS, [gpu_row(chip) for chip in CHIPS.values()]),
        ]
    )


def page(text: str) -> str:
    """The page with its tables as the results have them."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{tables()}\n\n{END}{after}"


def main() -> int:
    text = PAGE.read_text(encoding="utf-8")
    wanted = page(text)
    if "--check" in sys.argv[1:]:
        return int(text != wanted)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
