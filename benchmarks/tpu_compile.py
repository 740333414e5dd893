"""Compile the real samplers for TPU slices on a machine without a TPU: memory, estimated time, share of the roofline.

    python benchmarks/tpu_compile.py                       models x slices, long sequences, int8, one chip (ten minutes)
    python benchmarks/tpu_compile.py --check               those with a memory budget, for CI; exit code 1 if one is exceeded
    python benchmarks/tpu_compile.py --json

Needs the extra `tpu` (for its compiler, libtpu). Nothing is allocated: weights are shapes. Figures are compiler
estimates, not measurements. `jaxsink plan` gives the same figures, and more, for any model and slice.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from dataclasses import asdict, dataclass
from typing import Any

LLADA, DREAM, MMADA = "llada-8b-instruct", "dream-7b-instruct", "mmada-8b-mixcot"
LLADA2 = "llada2.0-mini"
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
    budget: float | None = None  # GiB per device that a change must not exceed


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
    Case(LLADA2, "v6e:2x4"),
    Case(LLADA, "v6e:2x4", length=8192),
    Case(LLADA, "v5p:2x2x1", length=8192),
    Case(LLADA, "v5e:2x4", statistics=False),
    Case(LLADA, "v5e:2x4", dtype="int8"),
    Case(LLADA, "v5e:2x4", dtype="int8", batch=32),
    *(Case(m, tpu) for m in (LLADA, DREAM, MMADA) for tpu in ("v5e:2x2", "v6e:2x4", "v4:2x2x1", "v5p:2x2x1")),
]


def measure(case: Case) -> dict[str, Any]:
    import jaxsink
    from jaxsink.planner.job import Job
    from jaxsink.planner.planner import make_plan
    from jaxsink.planner.topology import parse_topology

    config, half = jaxsink.preset(case.model), case.length // 2
    sampler = jaxsink.DreamSampler(half, half) if config.shift_logits else jaxsink.LLaDASampler(half, half, 32)
    if config.block_length is not None:
        sampler = jaxsink.LLaDA2Sampler(half)
    record = jaxsink.record.received().then(jaxsink.reduce.top(8)) if case.statistics else None
    job = Job(config, sampler, case.batch, prompt=half, record=record, dtype=case.dtype)
    plan = make_plan(job, parse_topology(case.tpu), case.mesh, search=False)
    experts = gathered_experts(plan.compiled.text or "", config)
    maps = len(re.findall(rf"\w+\[(?:\d+,)*{case.length},{case.length}\]", plan.compiled.text or ""))
    return {**asdict(case), **plan.to_dict(), "maps": maps if case.length >= LONG else None, "gathered": experts}


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
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    results, failed = [], False
    for case in CASES:
        if args.check and case.budget is None:
            continue
        results.append(result := measure(case))
        failed |= wrong(result)
        if not args.json:
            print(line(result), flush=True)
    if args.json:
        print(json.dumps(results, indent=2))
    return int(failed and args.check)


def line(result: dict[str, Any]) -> str:
    needed, step = result["needed_per_device"], result["step_seconds"]
    memory = "more" if needed is None else f"{needed / GIB:.2f}"
    parts = [
        "{model} on {tpu}, batch {batch}, S = {length}, {dtype}".format(**result),
        "mesh {data} x {model}".format(**result["mesh"]),
        f"{memory} GiB per device" + ("" if result["budget"] is None else f" of {result['budget']} allowed"),
    ]
    if step is not None:
        parts.append(f"{step['total'] * 1e3:.1f} ms per step, {result['shares']['roofline']:.0%} of the roofline")
    if result["maps"] is not None:
        parts.append(f"{result['maps']} maps of S x S")
    return ", ".join(parts) + ("  WRONG" if wrong(result) else "")


if __name__ == "__main__":
    sys.exit(main())
