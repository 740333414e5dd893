"""Compile the real samplers for TPU slices on a machine without a TPU: memory, estimated time, share of the roofline.

    python benchmarks/tpu_compile.py                       models x slices, long sequences, int8, one chip (ten minutes)
    python benchmarks/tpu_compile.py --check               those with a memory budget, for CI; exit code 1 if one is exceeded
    python benchmarks/tpu_compile.py --json
    python benchmarks/tpu_compile.py --of nemotron llada2 --out benchmarks/results/tpu_blocks.json  models of these names;
                                                           the file keeps its figures of all other cases
    python benchmarks/tpu_compile.py --inside benchmarks/results/lens.json  what taps and lenses cost, and runs without them

Needs the extra `tpu` (for its compiler, libtpu). Nothing is allocated: weights are shapes. Figures are compiler
estimates, not measurements. `jaxsink plan` gives the same figures, and more, for any model and slice.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

LLADA, DREAM, MMADA = "llada-8b-instruct", "dream-7b-instruct", "mmada-8b-mixcot"
LLADA2, NEMOTRON = "llada2.0-mini", "nemotron-labs-diffusion-8b"
GIB = 1 << 30
LONG = 4096  # from here on no shape may end in S x S


@dataclass(frozen=True)
class Case:
    """Half of `length` is prompt, half response, one step per new token; the eight largest scores of a head recorded."""

    model: str
    tpu: str
    batch: int = 8
    mesh: tuple[int, int] | None = None  # data x model; None: the planner's choice
    length: int = 512
    dtype: str = "bfloat16"
    statistics: bool = True
    inside: str | None = None  # recorded beside those scores, see INSIDE
    masking: bool = False  # one sink of each head is hidden: all tokens run in every step
    budget: float | None = None  # GiB per device that a change must not exceed


INSIDE = (None, "tap", "lens", "lens of all")  # residual_norm; of the block's queries; of all
INSIDE_KEEPS = ("tpu", "batch", "mesh", "inside", "needed_per_device", "step_seconds")
CASES = [
    Case(LLADA, "v5e:2x4", budget=15.2),
    Case(DREAM, "v5e:2x4", budget=14.6),
    Case(MMADA, "v5e:2x4", budget=15.3),
    Case(LLADA, "v5e:2x4", mesh=(1, 8), budget=2.2),
    Case(DREAM, "v5e:2x4", mesh=(1, 8), budget=2.8),
    Case(LLADA, "v5e:2x4", batch=32, budget=15.6),
    Case(LLADA, "v5e:1x1", batch=1, budget=15.2),
    Case(LLADA, "v5e:2x4", length=8192, budget=10.0),
    Case(LLADA2, "v5e:2x4", budget=8.2),
    Case(LLADA2, "v6e:2x4", budget=8.2),
    *(Case(NEMOTRON, tpu, batch) for tpu in ("v5e:2x4", "v6e:2x4") for batch in (8, 64)),
    Case(NEMOTRON, "v5e:2x4", mesh=(4, 2)),
    *(Case(NEMOTRON, "v5e:2x4", batch, mesh=(8, 1), dtype="int8") for batch in (8, 64)),
    *(Case(NEMOTRON, "v6e:2x4", batch, mesh=(8, 1)) for batch in (8, 16, 64)),
    *(Case(NEMOTRON, tpu, masking=True) for tpu in ("v5e:2x4", "v6e:2x4")),
    Case(NEMOTRON, "v5e:2x4", mesh=(8, 1), dtype="int8", masking=True),
    Case(NEMOTRON, "v6e:2x4", 16, masking=True),
    Case(LLADA, "v6e:2x4", length=8192),
    Case(LLADA, "v5p:2x2x1", length=8192),
    Case(LLADA, "v5e:2x4", statistics=False),
    Case(LLADA, "v5e:2x4", inside="tap"),
    Case(LLADA, "v5e:2x4", inside="lens"),
    Case(LLADA, "v5e:2x4", mesh=(8, 1), inside="lens of all"),
    Case(LLADA, "v5e:1x1", batch=1, inside="lens"),
    Case(LLADA, "v5e:2x4", mesh=(1, 8), inside="lens", budget=2.05),
    Case(LLADA, "v5e:2x4", mesh=(1, 8), inside="lens of all"),
    Case(LLADA, "v5e:2x4", dtype="int8"),
    Case(LLADA, "v5e:2x4", dtype="int8", batch=32),
    *(Case(m, tpu) for m in (LLADA, DREAM, MMADA) for tpu in ("v5e:2x2", "v6e:2x4", "v4:2x2x1", "v5p:2x2x1")),
]


def measure(case: Case) -> dict[str, Any]:
    import jaxsink
    from jaxsink.planner.job import Job
    from jaxsink.planner.planner import make_plan
    from jaxsink.planner.tpu import parse_slice

    config, half = jaxsink.preset(case.model), case.length // 2
    sampler = jaxsink.DreamSampler(half, half) if config.shift_logits else jaxsink.LLaDASampler(half, half, 32)
    if config.block_length is not None:
        sampler = jaxsink.LLaDA2Sampler(half)
    if case.model == NEMOTRON:
        sampler = jaxsink.NemotronSampler(half)
    record: Any = jaxsink.record.received().then(jaxsink.reduce.top(8)) if case.statistics else None
    if case.inside == "tap":
        record = [record, jaxsink.record.residual_norm()]
    if case.inside in ("lens", "lens of all"):
        record = [record, jaxsink.record.lens(4, "window" if case.inside == "lens" else None)]
    hide = jaxsink.sinks.MaskSinks(k=1) if case.masking else None
    job = Job(config, sampler, case.batch, prompt=half, record=record, dtype=case.dtype, intervene=hide)
    plan = make_plan(job, parse_slice(case.tpu), case.mesh, search=False)
    experts = gathered_experts(plan.compiled.text or "", config)
    maps = len(re.findall(rf"\w+\[(?:\d+,)*{case.length},{case.length}\]", plan.compiled.text or ""))
    return {
        **asdict(case),
        "asked_mesh": case.mesh,
        **plan.to_dict(),
        "maps": maps if case.length >= LONG else None,
        "gathered": experts,
    }


def gathered_experts(text: str, config: Any) -> int:
    """How many arrays with an expert's matrices devices send each other."""
    matrix = rf"(?:{config.mlp_width},{config.width}|{config.width},{config.mlp_width})\]"
    wanted = rf"\[(?:\d+,)+{matrix}\S* all-gather" if config.experts else r"(?!)"
    return len(re.findall(wanted, text))


def wrong(result: dict[str, Any]) -> bool:
    """Too large for the slice or the budget, with a map of all pairs of tokens, or with experts that are sent about."""
    too_large = result["budget"] is not None and (result["needed_per_device"] or 0) > result["budget"] * GIB
    return not result["fits"] or too_large or bool(result["maps"]) or result["gathered"] > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only those with a budget")
    parser.add_argument(
        "--of", nargs="*", metavar="NAME", default=[""], help="only models whose names have one of these in them"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, help="put the figures into this JSON file, beside those of other cases")
    parser.add_argument(
        "--inside", type=Path, metavar="FILE", help="only taps and lenses; figures go into FILE, under tpu"
    )
    args = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    results, failed = [], False
    for case in CASES:
        if (args.check and case.budget is None) or not any(name in case.model for name in args.of):
            continue
        if args.inside is not None and not is_of_the_inside(case):
            continue
        results.append(result := measure(case))
        failed |= wrong(result)
        if args.out is not None:
            put(args.out, result)
        if args.inside is not None:
            put_inside(args.inside, result)
        if not args.json:
            print(line(result), flush=True)
    if args.json:
        print(json.dumps(results, indent=2))
    return int(failed and args.check)


def put(path: Path, result: dict[str, Any]) -> None:
    """Into the file, for older figures of the same case; in the order of CASES, without cases that are no more."""
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    by_case = {what(one): one for one in [*kept, json.loads(json.dumps(result))]}
    order = [what({**asdict(case), "asked_mesh": case.mesh}) for case in CASES]
    found = [by_case[case] for case in order if case in by_case]
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def is_of_the_inside(case: Case) -> bool:
    """With a tap or a lens, or the same without."""
    bare = [replace(one, inside=None, budget=None) for one in CASES if one.inside is not None]
    return replace(case, inside=None, budget=None) in bare


def put_inside(path: Path, result: dict[str, Any]) -> None:
    """What the page on the inside compares, for older figures of the same case; on larger meshes of data first."""
    kept = json.loads(path.read_text(encoding="utf-8"))

    def order(one: dict[str, Any]) -> tuple[int, int, int]:
        return -one["mesh"]["data"], one["mesh"]["model"], INSIDE.index(one["inside"])

    by_case = {order(one): one for one in [*kept["tpu"], {name: result[name] for name in INSIDE_KEEPS}]}
    kept["tpu"] = [by_case[key] for key in sorted(by_case)]
    path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def what(result: dict[str, Any]) -> str:
    """What was asked: all of a case but its budget, and the mesh only if it was not left to the planner."""
    names = ("model", "tpu", "batch", "asked_mesh", "length", "dtype", "statistics", "inside", "masking")
    return json.dumps([result.get(name) for name in names])


def line(result: dict[str, Any]) -> str:
    needed, step = result["needed_per_device"], result["step_seconds"]
    recorded = "" if result["inside"] is None else f" and {result['inside']}"
    memory = "more" if needed is None else f"{needed / GIB:.2f}"
    parts = [
        "{model} on {tpu}, batch {batch}, S = {length}, {dtype}".format(**result) + recorded,
        "mesh {data} x {model}".format(**result["mesh"]),
        f"{memory} GiB per device" + ("" if result["budget"] is None else f" of {result['budget']} allowed"),
    ]
    if step is not None:
        parts.append(f"{step['total'] * 1e3:.1f} ms per step, {result['shares']['roofline']:.0%} of the roofline")
    if result["masking"]:
        parts.append("with a sink of each head hidden")
    if result["maps"] is not None:
        parts.append(f"{result['maps']} maps of S x S")
    return ", ".join(parts) + ("  WRONG" if wrong(result) else "")


if __name__ == "__main__":
    sys.exit(main())
