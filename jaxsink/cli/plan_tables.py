"""What `jaxsink plan` prints: a column for each slice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from jaxsink.cli.console import Console
from jaxsink.planner.evaluation import EvaluationPlan
from jaxsink.planner.plan import Planned
from jaxsink.planner.planner import Plan
from jaxsink.planner.topology import GIB

NOTE = "Estimates, not measurements: the compiler's; of collectives, kernels and sorts ours (docs/tpu-performance.md)."
RANGE = (
    "MFU: 8B-class training is published at 45-65 % of the peak; the range takes 65 to 40 %. Answers that end early are "
    "counted in full, loading and compiling not at all."
)


def gib(size: float | None) -> str:
    return "" if size is None else "?" if math.isinf(size) else f"{size / GIB:.2f}"


def show(planned: Planned) -> None:
    console = Console()
    if planned.runs:
        show_runs(console, planned.model, planned.runs)
    else:
        show_evaluations(console, planned)


def show_evaluations(console: Console, planned: Planned) -> None:
    """A table for each setting, then what all of them take on each slice."""
    plans = planned.evaluations
    for name in dict.fromkeys(plan.work.name for plan in plans):
        here = [plan for plan in plans if plan.work.name == name]
        work = here[0].work
        title = f"{planned.model}: {name}, {len(work.lengths):,} questions x {len(work.conditions)} conditions"
        print_table(console, title, [plan.topology.name for plan in here], [evaluation_facts(plan) for plan in here])
        console.print(
            f"prompts of {min(work.lengths)} to {max(work.lengths)} tokens, counted with {work.counted}\n", style="dim"
        )
    for line in planned.totals:
        console.print(total_line(line), highlight=False)
    for plan in plans:
        console.print(f"{plan.topology.name}: {advice(plan)}", highlight=False, soft_wrap=True)
    console.print(f"{NOTE} {RANGE}", style="dim", highlight=False)


def evaluation_facts(plan: EvaluationPlan) -> dict[str, str]:
    """The rows of the table."""
    timing, hours, memory = plan.timing, plan.hours, plan.largest.memory
    largest, busiest = plan.largest.job, plan.busiest.job
    return {
        "mesh (data x model)": "{} x {}".format(*plan.mesh),
        "sequences of a batch, at most": str(plan.rows),
        "largest batch": f"{largest.batch} x ({largest.prompt} + {largest.response})",
        "fits": "yes" if plan.fits else "NO",
        "GiB per device": f"{gib(plan.largest.needed)} of {gib(plan.topology.chip.hbm)}",
        "  weights": gib(None if memory is None else memory.weights),
        "most work": f"{busiest.batch} x ({busiest.prompt} + {busiest.response})",
        "ms per step, compiler estimate": "" if timing is None else f"{timing.total * 1e3:.0f}",
        "  share of the roofline": "" if plan.share is None else f"{plan.share:.0%}",
        "steps": str(busiest.steps),
        "batches": str(sum(bucket.batches for bucket in plan.buckets)),
        "hours, compiler estimate": "" if hours is None else f"{hours.compiler:.1f}",
        "hours at 65-40 % MFU": "" if hours is None else f"{hours.fast:.1f}-{hours.slow:.1f}",
        "programs compiled": str(plan.compiles),
    }


def total_line(total: dict[str, Any]) -> str:
    def spread(values: dict[str, float], form: str) -> str:
        return f"{min(values.values()):{form}} to {max(values.values()):{form}}"

    line = f"{total['tpu']}: {spread(total['hours'], '.1f')} hours in all"
    line += f" ({total['hours']['compiler_estimate']:.1f} by the compiler's estimate)"
    if total["dollars"] is not None:
        line += f", ${spread(total['dollars'], '.0f')} at ${total['price_per_chip_hour']:g} per chip and hour"
    return line


def advice(plan: EvaluationPlan) -> str:
    if plan.fits:
        mesh = "{}x{}".format(*plan.mesh)
        return f"jaxsink evaluate MODEL {plan.work.name} --out DIR --rows {plan.rows} --mesh {mesh}"
    return f"{plan.work.name} does not fit: give fewer --rows, another --mesh, --dtype int8, or a larger slice"


def print_table(console: Console, title: str, names: Sequence[str], columns: Sequence[dict[str, str]]) -> None:
    console.print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
    table = Table(box=None, header_style="bold")
    table.add_column("")
    for name in names:
        table.add_column(escape(name), justify="right")
    for name in columns[0]:
        table.add_row(f"[dim]{escape(name)}[/dim]", *[escape(column[name]) for column in columns])
    console.print(table)


def show_runs(console: Console, model: str, plans: Sequence[Plan]) -> None:
    job = plans[0].compiled.job
    title = f"{model}, batch {job.batch}, {job.prompt} + {job.response} tokens, {job.steps} steps"
    print_table(console, title, [plan.compiled.topology.name for plan in plans], [facts(plan) for plan in plans])
    for plan in plans:
        for line in plan.suggestions:
            console.print(f"{plan.compiled.topology.name}: {line}", highlight=False)
    console.print(NOTE, style="dim", highlight=False)


def facts(plan: Plan) -> dict[str, str]:
    """The rows of the table."""
    compiled, timing, limit = plan.compiled, plan.timing, plan.roofline
    chip, memory = compiled.topology.chip, compiled.memory

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
    return rows


def collectives(counts: Any) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
