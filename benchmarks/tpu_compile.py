"""Compile the real samplers for TPU slices on a machine without a TPU, and compare the compiler's memory with budgets.

    python benchmarks/tpu_compile.py --check               small set with memory budgets, for CI; exit code 1 if exceeded
    python benchmarks/tpu_compile.py --json

Needs the extra `tpu` (for its compiler, libtpu). Nothing is allocated: weights are shapes. Figures are compiler
estimates, not measurements. `jaxsink plan` gives the same figures, and more, for any model and slice.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

# (model, slice, mesh, batch, budget in GiB per device): what a change must not exceed
BUDGETS = [
    ("llada-8b-instruct", "v5e:2x4", (1, 8), 8, 2.5),
    ("dream-7b-instruct", "v5e:2x4", (1, 8), 8, 3.0),
    ("llada-8b-instruct", "v5e:1x1", (1, 1), 1, 15.75),
]


def measure(name: str, tpu: str, mesh: tuple[int, int], batch: int) -> dict[str, Any]:
    """256 + 256 tokens, all steps in one program, the eight largest received scores of every head recorded."""
    import jaxsink
    from jaxsink.plan.job import Job
    from jaxsink.plan.planner import make_plan
    from jaxsink.plan.topology import parse_topology

    config = jaxsink.preset(name)
    sampler = jaxsink.DreamSampler(256, 256) if config.shift_logits else jaxsink.LLaDASampler(256, 256, block_length=32)
    job = Job(config, sampler, batch, prompt=256, record=jaxsink.record.received().then(jaxsink.reduce.top(8)))
    return {"model": name, **make_plan(job, parse_topology(tpu), mesh, search=False).to_dict()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if a budget is exceeded")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    results, failed = [], False
    for name, tpu, mesh, batch, budget in BUDGETS:
        result = measure(name, tpu, mesh, batch)
        needed = (result["needed_per_device"] or float("inf")) / (1 << 30)
        over = not result["fits"] or needed > budget
        failed |= over
        results.append({**result, "budget_gib": budget, "over_budget": over})
        if not args.json:
            step = result["step_seconds"]
            figures = "" if step is None else f", {step['total'] * 1e3:.1f} ms per step (estimate)"
            print(f"{name} on {tpu}, batch {batch}: {needed:.2f} of {budget} GiB per device{figures}", end="")
            print(", OVER BUDGET" if over else "", flush=True)
    if args.json:
        print(json.dumps(results, indent=2))
    return int(failed and args.check)


if __name__ == "__main__":
    sys.exit(main())
