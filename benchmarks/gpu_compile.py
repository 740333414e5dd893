"""Compile the real samplers for GPUs on a machine without one: memory, largest batch, collectives, shapes of S x S.

    python benchmarks/gpu_compile.py                       models x GPUs, meshes, long sequences, int8 (an hour)
    python benchmarks/gpu_compile.py --check               those with a memory budget, for CI; exit code 1 if one is exceeded
    python benchmarks/gpu_compile.py --out FILE            as JSON, written after every case; goes on with those that it has

Needs the extra `cuda` (for XLA's GPU compiler). Nothing is allocated: weights are shapes. Memory is the compiler's estimate,
not a measurement. `jaxsink plan --gpu` gives the same figures, and more, for any model.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
from gpu_kernel import launches

import jaxsink
from jaxsink.parallel import make_mesh
from jaxsink.planner.compile import lower
from jaxsink.planner.gpu import has_compiler, parse_gpus
from jaxsink.planner.job import Job
from jaxsink.planner.planner import make_plan
from jaxsink.planner.topology import Topology

LLADA, DREAM, LLAMA = "llada-8b-instruct", "dream-7b-instruct", "llama-3.1-8b-instruct"
MMADA, NEMOTRON, LLADA2 = "mmada-8b-mixcot", "nemotron-labs-diffusion-8b", "llada2.0-mini"
BD3LM = "qwen3-0.6b-diffusion-bd3lm"
GIB = 1 << 30


@dataclass(frozen=True)
class Case:
    """Half of `length` is prompt, half response, one step per new token; the eight largest scores of a head recorded."""

    model: str
    gpu: str
    batch: int = 8
    length: int = 512
    dtype: str = "bfloat16"
    asked_mesh: tuple[int, int] | None = None  # data x model; None: the planner's choice
    search: bool = True  # for the largest batch
    budget: float | None = None  # GiB per device that a change must not exceed


CASES = [
    Case(LLADA, "h100", budget=15.8),
    Case(LLADA, "h100:8", batch=64, budget=15.8),
    Case(LLADA, "h100:8", asked_mesh=(1, 8), budget=2.2),
    Case(DREAM, "h100:8", asked_mesh=(1, 8), search=False),
    Case(DREAM, "h100:8", asked_mesh=(2, 4), search=False),
    Case(LLADA, "rtx4090", batch=1, dtype="int8", budget=9.5),
    Case(LLADA, "rtx4090:2", batch=1, asked_mesh=(1, 2)),
    Case(LLADA, "h100", length=8192, budget=24.0),
    Case(DREAM, "h100", budget=15.8),
    Case(LLAMA, "h100"),
    Case(MMADA, "h100"),
    Case(NEMOTRON, "h100", search=False),
    Case(LLADA2, "h100", length=640, search=False),  # 512 x 512 would be tokens x an expert's width
    Case(BD3LM, "h100", search=False),
    Case(LLADA, "rtx4090", batch=1),
    Case(LLADA, "l4", batch=1, dtype="int8"),
    Case(LLADA, "l40s"),
    Case(LLADA, "a100-80g"),
    Case(DREAM, "rtx4090", batch=1, length=640, dtype="int8"),  # 512 x 512 are its keys: tokens x kv heads
    Case(LLAMA, "rtx4090", batch=1, dtype="int8"),
    Case(LLADA, "l4:4"),
    Case(LLADA, "b200"),
    Case(LLADA, "a100-40g"),
    Case(LLADA, "rtx3090", batch=1, dtype="int8"),
    Case(LLADA, "rtx5090", batch=1),
    Case(DREAM, "a100-80g"),
    Case(DREAM, "l40s"),
]
SAMPLERS = {  # others have LLaDA's, in blocks of 32
    DREAM: lambda new: jaxsink.DreamSampler(new, new),
    NEMOTRON: lambda new: jaxsink.NemotronSampler(new),
    LLADA2: lambda new: jaxsink.LLaDA2Sampler(new),
    BD3LM: lambda new: jaxsink.BD3LMSampler(new, new),
    LLAMA: lambda new: jaxsink.ARSampler(new),
}


def job_of(case: Case) -> Job:
    config, half = jaxsink.preset(case.model), case.length // 2
    sampler = SAMPLERS.get(case.model, lambda new: jaxsink.LLaDASampler(new, new, 32))(half)
    record = jaxsink.record.received().then(jaxsink.reduce.top(8))
    return Job(config, sampler, case.batch, prompt=half, record=record, dtype=case.dtype)


def measure(case: Case, quick: bool = False) -> dict[str, Any]:
    """quick: without what the kernels take."""
    job, topology = job_of(case), parse_gpus(case.gpu)
    plan = make_plan(job, topology, case.asked_mesh, search=case.search)
    maps = set(re.findall(rf"\w+\[(?:\d+,)*{case.length},{case.length}\]", plan.compiled.text or ""))
    kernels = len(re.findall(r"custom-call\(.*__gpu\$xla\.gpu\.triton", plan.compiled.text or ""))
    programs = {} if quick else attention_programs(job, topology, plan.compiled.mesh)
    return {**asdict(case), **plan.to_dict(), "maps": len(maps), "kernels": kernels, "programs": programs}


def attention_programs(job: Job, topology: Topology, shape: tuple[int, int]) -> dict[str, dict[str, int]]:
    """Registers and shared memory of the attention kernels in the sampler's program, which is compiled once more."""
    mesh = make_mesh(*shape, topology.chip.describe(topology))
    with tempfile.TemporaryDirectory() as dump, jax.set_mesh(mesh):
        lower(job, mesh).compile(compiler_options={**topology.chip.compiler_options, "xla_dump_to": dump})
        return launches(Path(dump))


def wrong(result: dict[str, Any]) -> bool:
    """Too large for the GPU or the budget, or with a map of all pairs of tokens."""
    if result["budget"] is None:
        return bool(result["maps"])
    return not result["fits"] or result["needed_per_device"] > result["budget"] * GIB or bool(result["maps"])


def line(result: dict[str, Any]) -> str:
    parts = [
        "{model} on {gpu}, batch {batch}, S = {length}, {dtype}".format(**result),
        "mesh {data} x {model}".format(**result["mesh"]),
        f"{result['needed_per_device'] / GIB:.2f} of {result['hbm_per_device'] / GIB:.2f} GiB per device",
        f"largest batch {result['largest_batch']}",
        f"{result['maps']} maps of S x S",
        f"{result['kernels']} attention kernels",
        f"collectives {result['collectives_per_step']}",
    ]
    if result["budget"] is not None:
        parts.append(f"{result['budget']} GiB allowed")
    return ", ".join(parts) + ("  WRONG" if wrong(result) else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="only those with a budget, and no search for the largest batch"
    )
    parser.add_argument("--out", type=Path, metavar="FILE")
    args = parser.parse_args()
    if not has_compiler():
        print("skipped: the extra `cuda` is not installed, and with it XLA's GPU compiler")
        return 0
    cases = [case for case in CASES if case.budget is not None] if args.check else CASES
    known = json.loads(args.out.read_text()) if args.out is not None and args.out.exists() else []
    results = []
    for case in cases:
        case = replace(case, search=case.search and not args.check)
        facts = json.loads(json.dumps(asdict(case)))
        result = next((one for one in known if {name: one.get(name) for name in facts} == facts), None) or measure(
            case, quick=args.check
        )
        results.append(result)
        print(line(result), flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(results, indent=1) + "\n")
    return int(args.check and any(wrong(result) for result in results))


if __name__ == "__main__":
    sys.exit(main())
