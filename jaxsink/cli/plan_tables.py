"""What `jaxsink plan` prints: a column for each slice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from jaxsink.cli.console import Console
from jaxsink.planner.cost import Hours
from jaxsink.planner.evaluation import EvaluationPlan
from jaxsink.planner.plan import Planned
from jaxsink.planner.planner import Plan
from jaxsink.planner.timing import Timing
from jaxsink.planner.topology import GIB

NOTES = {
    "tpu": "Of TPUs: estimates, not measurements: the compiler's; of collectives, kernels and sorts ours "
    "(docs/tpu-performance.md). MFU: 8B-class training is published at 45-65 % of the peak.",
    "gpu": "Of GPUs: memory is the compiler's estimate, of time it has none; times are a wide range from the roofline, 65 "
    "to 25 % of the peak, and its middle; nothing was measured (docs/gpu.md).",
}
PRICES = "Prices per hour are of 2025, an assumption; --price takes yours."
WHOLE = "Answers that end early are counted in full, loading and compiling not at all."


def gib(size: float | None) -> str:
    return "" if size is None else "?" if math.isinf(size) else f"{size / GIB:.2f}"


def show(planned: Planned) -> None:
    console = Console()
    if planned.runs:
        show_runs(console, planned)
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
    console.print(notes(planned), style="dim", highlight=False)


def notes(planned: Planned) -> str:
    """What stands below: where memory and times are from, then of hours and dollars."""
    chips = [plan.topology.chip for plan in planned.runs or planned.evaluations]
    said = [NOTES[name] for name in dict.fromkeys(chip.accelerator for chip in chips)]
    if planned.totals:
        said += [WHOLE] if planned.price is not None else [WHOLE, PRICES]
    return " ".join(said)


def spread(values: Iterable[float], form: str) -> str:
    values = list(values)
    return f"{min(values):{form}} to {max(values):{form}}"


def step_range(timing: Timing | None) -> str:
    return "" if timing is None or timing.range is None else spread((1e3 * end for end in timing.range), ".3g")


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
        "ms per step, estimate": "" if timing is None else f"{timing.total * 1e3:.0f}",
        "  range": step_range(timing),
        "  share of the roofline": "" if plan.share is None else f"{plan.share:.0%}",
        "steps": str(busiest.steps),
        "batches": str(sum(bucket.batches for bucket in plan.buckets)),
        "hours, estimate": "" if hours is None else f"{hours.estimate:.1f}",
        "hours at shares of the peak": "" if hours is None else at_shares(hours),
        "programs compiled": str(plan.compiles),
    }


def at_shares(hours: Hours) -> str:
    best, worst = (f"{share * 100:.0f}" for share in hours.shares)
    return f"{hours.fast:.1f}-{hours.slow:.1f} ({best}-{worst} % MFU)"


def name_of(total: Mapping[str, Any]) -> str:
    return total["tpu"] if "tpu" in total else total["gpu"]


def total_line(total: Mapping[str, Any]) -> str:
    line = f"{name_of(total)}: {spread(total['hours'].values(), '.1f')} hours in all"
    if "compiler_estimate" in total["hours"]:
        line += f" ({total['hours']['compiler_estimate']:.1f} by the compiler's estimate)"
    if total["dollars"] is not None:
        line += f", ${spread(total['dollars'].values(), '.0f')} at ${total['price_per_chip_hour']:g} per chip and hour"
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


def show_runs(console: Console, planned: Planned) -> None:
    plans, job = planned.runs, planned.runs[0].compiled.job
    title = f"{planned.model}, batch {job.batch}, {job.prompt} + {job.response} tokens, {job.steps} steps"
    totals = {name_of(total): total for total in planned.totals}
    columns = [{**facts(plan), **cost(plan, totals.get(plan.topology.name))} for plan in plans]
    print_table(console, title, [plan.topology.name for plan in plans], columns)
    for plan in plans:
        for line in plan.suggestions:
            console.print(f"{plan.topology.name}: {line}", highlight=False)
    console.print(notes(planned), style="dim", highlight=False)


def cost(plan: Plan, total: Mapping[str, Any] | None) -> dict[str, str]:
    """The last rows of the table: what the whole run takes."""
    hours = plan.hours
    dollars = None if total is None else total["dollars"]
    shares = " ({:.0f}-{:.0f} %)".format(*(100 * share for share in plan.topology.chip.shares))
    return {
        "hours, estimate": "" if hours is None else small(hours.estimate),
        "  at shares of the peak": "" if hours is None else between([hours.fast, hours.slow]) + shares,
        "dollars": "" if dollars is None else between(dollars.values()),
        "  per chip and hour": "" if total is None or dollars is None else f"{total['price_per_chip_hour']:g}",
    }


def small(value: float) -> str:
    """Hours and dollars of a single run, often a fraction of one."""
    if 0 < value < 0.001:
        return "< 0.001"
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def between(values: Iterable[float]) -> str:
    values = list(values)
    low, high = small(min(values)), small(max(values))
    return low if low == high else f"{low} to {high}"


def facts(plan: Plan) -> dict[str, str]:
    """The rows of the table on memory and on a step."""
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
    rows["  at best and worst"] = step_range(timing)
    rows["  share of the roofline"] = "" if share is None else f"{share['roofline']:.0%} ({limit.bound})"
    rows["  highest share, of any mesh"] = highest(plan)
    for part in ("compute", "memory"):
        rows[f"  {part} alone, ms"] = f"{getattr(limit, part) * 1e3:.2f}"
    rows["  collectives, ms"] = "" if timing is None else f"{timing.collective * 1e3:.2f}"
    rows["collectives per step"] = "" if timing is None else collectives(timing.collectives) or "none"
    rows["compile time, s"] = f"{compiled.seconds:.0f}"
    return rows


def highest(plan: Plan) -> str:
    """The mesh with the highest share of its roofline, which may be slower than the chosen one."""
    best = plan.highest
    return "" if best is None else "{:.0%} on {} x {}, {:.2f} ms".format(best.roofline, *best.mesh, best.step * 1e3)


def collectives(counts: Any) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
