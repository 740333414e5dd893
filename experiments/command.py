"""`jaxsink study`: run all or some experiments on one or several models, resume, and leave results a reader can check."""

from __future__ import annotations

import argparse
import json
from typing import Any

from jaxsink_experiments import BEYOND, FULL, PAPER, QUICK, short

from jaxsink.checkpoints.gcs import local
from jaxsink.cli.main import add_command, add_reading_options, reading_options, resumable

EXAMPLES = f"""examples:
  jaxsink study                                    the paper's figures and tables on the built-in models, in minutes
  jaxsink study fig7 table1 --out results          two of them
  jaxsink study --full --runs runs                 everything, at full count
  jaxsink study --model ./llada --out llada-study --rows 16    another model, cut over all devices

the paper's experiments: {", ".join(short(m) for m in PAPER)}
and beyond it: {", ".join(short(m) for m in BEYOND)}"""

OPTIONS = ("full", "problems", "generations", "rows", "mesh", "runs", "seed")


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "study",
        run,
        "the paper's study on one or several models, with controls and verdicts",
        "Run experiments and write results (JSON, CSV, npz), figures (SVG, PNG, PDF), a manifest and a page. A "
        "run that was stopped, however, goes on where it stopped when the same command is given again.",
        EXAMPLES,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments (default: the paper's; with --full, all)")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="MODEL",
        help="built-in name, hub id or checkpoint; may be repeated",
    )
    parser.add_argument("--out", default="jaxsink-study", metavar="DIR", help="where results go (default: %(default)s)")
    parser.add_argument(
        "--full", action="store_true", help=f"all experiments, {FULL[0]} problems per condition instead of {QUICK[0]}"
    )
    parser.add_argument("--problems", type=int, metavar="N", help="problems per condition")
    parser.add_argument("--generations", type=int, metavar="N", help="generations recorded in full")
    parser.add_argument("--rows", type=int, default=200, metavar="N", help="sequences of a batch, about (default: 200)")
    parser.add_argument(
        "--mesh", metavar="DxM", help="cut checkpoints over D x M devices: batch x weights (default: 1 x all)"
    )
    parser.add_argument("--runs", metavar="DIR", help="training runs, for the experiments on training")
    parser.add_argument("--seed", type=int, default=0, help="of the problems and all draws (default: 0)")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    add_reading_options(parser)


def run(args: argparse.Namespace) -> int:
    folder = local(args.out, "--out")

    import jaxsink
    from jaxsink.runs.compile_cache import enable_compilation_cache

    enable_compilation_cache()
    options: Any = {name: getattr(args, name) for name in OPTIONS}
    with resumable(folder, "finished measurements") as is_stopped:
        findings, study = jaxsink.study(
            args.names, args.model, folder, is_stopped=is_stopped, **options, **reading_options(args)
        )
    if args.json:
        print(json.dumps([{"name": f.name, "verdict": f.verdict, "found": f.found} for f in findings], indent=2))
    else:
        show(findings, study)
    return 0


def show(findings: list[Any], study: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    from jaxsink.evals.statistics import wilson

    table = Table("experiment", "verdict", "what we find", title=f"results in {study.folder}", title_justify="left")
    for finding in findings:
        table.add_row(finding.title, finding.verdict, finding.found)
    console = Console()
    console.print(table)
    widest = wilson(study.problems // 2, study.problems)
    console.print(
        f"{study.problems} problems per condition (95 % intervals of ±{(widest.high - widest.low) / 2:.0%} or narrower) and "
        f"{study.generations} recorded generations; more of both: --full, or --problems and --generations."
    )
    console.print(f"Open {study.folder / 'report.html'} in a browser.", soft_wrap=True)
