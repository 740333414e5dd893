"""The command `jaxsink plan`: what a run would need and take on TPU slices, by the TPU compiler, without a TPU."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxsink.cli import Commands, add_reading_options, reading_options
from jaxsink.commands.sampler_options import add_sampler_options, make_sampler, positive
from jaxsink.errors import JaxsinkError
from jaxsink.progress import stage

if TYPE_CHECKING:
    from jaxsink.config import ModelConfig
    from jaxsink.plan.job import Job
    from jaxsink.plan.planner import Plan

EXAMPLES = """examples:
  jaxsink plan llada-8b-instruct --tpu v5e:2x4                     does it fit, how fast, what does Table 1 cost
  jaxsink plan llada-8b-instruct --tpu v5e:2x4 v6e:2x4 v5p:2x2x1   several slices side by side
  jaxsink plan dream-7b-instruct --tpu v5e:2x4 --prompt 256 --gen 256 --batch 16 --record received --every 4
  jaxsink plan ./my-checkpoint --tpu v5e:1x1 --batch 1 --no-search --json
  jaxsink plan llama-3.1-8b --tpu v5e:2x2 --batch 32 --mesh 1x4 --price 0.9

The sampler's own program is compiled for the slice with shapes in the place of weights: nothing is allocated or run, and no
TPU is needed, only its compiler (extra `tpu`). Slices: v5e:1x1 2x2 2x4 4x4 …, v6e:1x1 2x2 2x4 …, v4:2x2x1 …, v5p:2x2x1 …,
tpu7x:2x2x1 …. Times are the compiler's estimates; collectives, kernels and sorts, for which it gives none, are ours.
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "plan",
        help="memory, time and cost of a run on TPU slices, without a TPU",
        description="Compile the sampler for TPU slices and say whether it fits, what fills the memory of each device, the "
        "largest batch, the estimated time of a step against the chip's roofline, and what Table 1 would take and cost.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", metavar="MODEL", help="a published model (such as llada-8b-instruct), a built-in one, or a checkpoint"
    )
    parser.add_argument("--tpu", metavar="SLICE", nargs="+", required=True, help="slices such as v5e:2x4")
    run_ = parser.add_argument_group("run")
    run_.add_argument("--batch", metavar="N", type=positive, default=16, help="rows (default: %(default)s)")
    run_.add_argument("--prompt", metavar="N", type=positive, default=256, help="its tokens (default: %(default)s)")
    run_.add_argument(
        "--record",
        metavar="NAMES",
        default="top",
        help="statistics of every step, as in `jaxsink generate --record-what`; none for none (default: %(default)s)",
    )
    run_.add_argument("--every", metavar="N", type=positive, default=1, help="record every N-th step (default: 1)")
    run_.add_argument("--mask", metavar="K", type=positive, help="hide the top K sinks of each head, as in Table 1")
    run_.add_argument(
        "--dtype",
        choices=("bfloat16", "float32", "int8"),
        default="bfloat16",
        help="of the weights (default: %(default)s)",
    )
    run_.add_argument("--backend", help="attention backend (default: by size)")
    run_.add_argument("--unrolled", action="store_true", help="one program per layer: compiles far longer")
    add_sampler_options(parser.add_argument_group("sampling (each model's sampler has some of these)"), "--gen", 256)
    how = parser.add_argument_group("planning")
    how.add_argument("--mesh", metavar="DxM", help="batch x weights over the devices (default: the best that fits)")
    how.add_argument("--no-search", action="store_true", help="do not look for the largest batch (faster)")
    how.add_argument("--price", metavar="X", type=float, help="dollars per chip and hour (default: list prices)")
    how.add_argument("--json", action="store_true", help="print as JSON")
    add_reading_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX starts: a real TPU, if there is one, stays free
    from jaxsink.plan.planner import make_plan
    from jaxsink.plan.topology import parse_topology

    if args.price is not None and args.price < 0:
        raise JaxsinkError(f"--price must not be negative, and is {args.price}.")
    slices = [parse_topology(name) for name in dict.fromkeys(args.tpu)]
    job, mesh = make_job(args), parse_mesh(args.mesh)
    plans = []
    with stage("planning") as task:
        for topology in slices:
            plans.append(
                make_plan(job, topology, mesh, args.price, not args.no_search, lambda text: task.update(what=text))
            )
    if args.json:
        print(json.dumps({"model": args.model, "plans": [plan.to_dict() for plan in plans]}, indent=2))
    else:
        show(args.model, plans)
    return 0


def make_job(args: argparse.Namespace) -> Job:
    from jaxsink.commands.shared import WHAT, Shape, record_names
    from jaxsink.plan.job import Job
    from jaxsink.sinks.mask import MaskSinks

    config = find_config(args.model, **reading_options(args))
    job = Job(
        config, make_sampler(args, config), args.batch, args.prompt, every=args.every, dtype=args.dtype,
        backend=args.backend, unrolled=args.unrolled,
        intervene=None if args.mask is None else MaskSinks(args.mask),
    )  # fmt: skip
    if config.positions == "learned" and job.length > config.max_positions:
        raise JaxsinkError(f"{job.length} tokens are more than the {config.max_positions} this model has learned.")
    if args.record.strip() == "none":
        return job
    shape = Shape(config, job.steps, 1 if job.is_autoregressive else job.length, job.length)
    return job.replace(record={name: WHAT[name][0](shape) for name in record_names("--record", args.record)})


def find_config(model: str, mask_id: int | None = None, ignore_settings: Sequence[str] = ()) -> ModelConfig:
    """Of a published model by name, or of a checkpoint, whose weights are not read."""
    from jaxsink.commands.shared import Found
    from jaxsink.models import resolve
    from jaxsink.presets import PRESETS

    if model in PRESETS and not resolve(model).exists():
        return PRESETS[model]
    try:
        return Found.at(model, mask_id, ignore_settings).config
    except JaxsinkError as error:
        if resolve(model).exists():
            raise
        known = ", ".join(PRESETS)
        raise JaxsinkError(
            f"{model}: no checkpoint is there, and no published model has that name: {known}."
        ) from error


def parse_mesh(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if found is None:
        raise JaxsinkError(f"--mesh takes two numbers such as 2x4 (batch x weights), not {text!r}.")
    return int(found[1]), int(found[2])


def show(model: str, plans: list[Plan]) -> None:
    from rich.console import Console
    from rich.table import Table

    job = plans[0].compiled.job
    title = f"{model}, batch {job.batch}, {job.prompt} + {job.response} tokens, {job.steps} steps"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, header_style="bold")
    table.add_column("")
    for plan in plans:
        table.add_column(plan.compiled.topology.name, justify="right")
    columns = [facts(plan) for plan in plans]
    for name in columns[0]:
        table.add_row(f"[dim]{name}[/dim]", *[column[name] for column in columns])
    console = Console()
    console.print(table)
    for plan in plans:
        for line in plan.suggestions:
            console.print(f"{plan.compiled.topology.name}: {line}", highlight=False)
    console.print(
        "Estimates, not measurements: the compiler's; of collectives, kernels and sorts ours (docs/tpu-performance.md).",
        style="dim",
        highlight=False,
    )


def facts(plan: Plan) -> dict[str, str]:
    """The rows of the table."""
    import math

    from jaxsink.plan.topology import GIB

    compiled, timing, limit, bill = plan.compiled, plan.timing, plan.roofline, plan.bill
    chip, memory = compiled.topology.chip, compiled.memory

    def gib(size: float | None) -> str:
        return "" if size is None else "?" if math.isinf(size) else f"{size / GIB:.2f}"

    rows = {
        "mesh (data x model)": "{} x {}".format(*compiled.mesh),
        "fits": "yes" if compiled.fits else "NO",
        "GiB per device": f"{gib(compiled.needed)} of {gib(chip.hbm)}",
    }
    for part in ("weights", "record", "temporaries"):
        rows[f"  {part}"] = gib(None if memory is None else getattr(memory, part))
    rows["  state and code"] = gib(None if memory is None else memory.state + memory.code)
    rows["largest batch"] = "" if plan.largest is None else str(plan.largest)
    share = None if timing is None else limit.shares(timing.total, timing.collective)
    rows["ms per step"] = "" if timing is None else f"{timing.total * 1e3:.2f}"
    rows["  share of the roofline"] = "" if share is None else f"{share['roofline']:.0%} ({limit.bound})"
    for part in ("compute", "memory"):
        rows[f"  {part} alone, ms"] = f"{getattr(limit, part) * 1e3:.2f}"
    rows["  collectives, ms"] = "" if timing is None else f"{timing.collective * 1e3:.2f}"
    rows["collectives per step"] = "" if timing is None else collectives(timing.collectives) or "none"
    rows["compile time, s"] = f"{compiled.seconds:.0f}"
    rows["Table 1, hours"] = "" if bill is None else f"{bill.hours:.1f}"
    rows["Table 1, dollars"] = "" if bill is None or bill.dollars is None else f"{bill.dollars:.0f} (at {bill.price:g})"
    return rows


def collectives(counts: Any) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
