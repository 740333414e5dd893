"""`jaxsink study`: run all or some experiments on one or several models, resume, and leave results a reader can check."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from jaxsink_experiments import BEYOND, EXPLAINED, FULL, INSIDE, PAPER, QUICK, short

from jaxsink.checkpoints.gcs import local
from jaxsink.cli.main import Commands, add_command, add_reading_options, add_sandbox_option, reading_options, resumable
from jaxsink.sandbox.levels import describe
from jaxsink.sandbox.runner import check_sandbox

if TYPE_CHECKING:
    from jaxsink.study import Finding, Study, Tested

EXAMPLES = f"""examples:
  jaxsink study                                    the paper's figures and tables on the built-in models, in minutes
  jaxsink study fig7 table1 --out results          two of them
  jaxsink study --full --runs runs                 everything, at full count
  jaxsink study --model ./llada --out llada-study --rows 16    another model, cut over all devices
  jaxsink study --model ./llada --prompts gsm8k --data-file gsm8k_test.jsonl --out llada-gsm8k --rows 16
  jaxsink study protocol --model ./smollm2 --prompts text --data-file book.txt --answers 12 --out protocol
  jaxsink study --model untrained:mini-llada --out nothing      random weights: nothing may be supported

the paper's experiments: {", ".join(short(m) for m in PAPER)}
and beyond it: {", ".join(short(m) for m in BEYOND)}
what the paper explains but does not test: {", ".join(short(m) for m in EXPLAINED)}
what others say of the inside: {", ".join(short(m) for m in INSIDE)}"""

WIDE = 160  # characters of a table that goes to a file
OPTIONS = (
    *("full", "problems", "generations", "rows", "mesh", "runs", "seed"),
    *("prompts", "data_file", "allow_code_execution", "sandbox", "untrained"),
    *("answers", "stepped", "tokens", "cache", "longest", "window"),
)


def add_parser(commands: Commands) -> None:
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
    add_problem_options(parser)
    parser.add_argument(
        "--untrained",
        type=int,
        default=8,
        metavar="N",
        help="models with random weights that each model is held against; fewer than 4 are no null (default: 8)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the problems and all draws (default: 0)")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    add_reading_options(parser)


def add_problem_options(parser: argparse.ArgumentParser) -> None:
    """What models are asked, how they answer, and how many of the answers an experiment takes."""
    parser.add_argument(
        "--prompts",
        default="task",
        metavar="WHAT",
        help="what models are asked: task (the built-in problems, the default), gsm8k, humaneval, text (with --data-file) "
        "or a file: a prompt per line, or JSON lines with prompt and answer",
    )
    parser.add_argument(
        "--data-file", metavar="FILE", help="the published file of gsm8k or humaneval, if it is here, or the text"
    )
    parser.add_argument("--longest", type=int, metavar="N", help="leave out prompts of more than N tokens")
    parser.add_argument(
        "--window", type=int, default=96, metavar="N", help="tokens of text at a time, half of them given (default: 96)"
    )
    parser.add_argument(
        "--tokens", type=int, metavar="N", help="that models write, and that given answers have at most"
    )
    parser.add_argument(
        "--cache", choices=("prefix", "dual"), help="diffusion models write on cached keys and values (LLaDA, Dream)"
    )
    parser.add_argument(
        "--answers", type=int, metavar="N", help="problems that the protocol experiment has answered (default: all)"
    )
    parser.add_argument(
        "--stepped", type=int, metavar="N", help="given answers that it has written step by step (default: all)"
    )
    parser.add_argument("--allow-code-execution", action="store_true", help="run the programs that humaneval asks for")
    add_sandbox_option(parser)


def run(args: argparse.Namespace) -> int:
    folder = local(args.out, "--out")

    import jaxsink
    from jaxsink.runs.compile_cache import enable_compilation_cache

    enable_compilation_cache()
    options = {name: getattr(args, name) for name in OPTIONS}
    if args.prompts == "humaneval" and args.allow_code_execution:
        check_sandbox(args.sandbox)
        print(describe(args.sandbox), file=sys.stderr)
    with resumable(folder, "finished measurements") as is_stopped:
        findings, study = jaxsink.study(
            args.names, args.model, folder, is_stopped=is_stopped, **options, **reading_options(args)
        )
    if args.json:
        said = ({"name": f.name, "verdict": f.verdict, "found": f.found, "tests": f.tests} for f in findings)
        print(json.dumps(list(said), indent=2, default=asdict))
    else:
        show(findings, study)
    return 0


def show(findings: list[Finding], study: Study) -> None:
    from rich.markup import escape
    from rich.table import Table

    from jaxsink.cli.console import Console

    table = Table(title=escape(f"results in {study.folder}"), title_justify="left")
    for name in ("experiment", "model", "statistic", "value [95 % interval]", "against", "verdict"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        lines = [test_cells(test) for test in finding.tests] or [("", "", "", finding.found, finding.verdict)]
        for number, cells in enumerate(lines):
            title = f"{finding.title}: {finding.verdict}" if number == 0 else ""
            table.add_row(escape(title), *map(escape, cells))
        table.add_section()
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    console.print(table)
    console.print(
        f"Up to {study.problems} problems per condition, {study.generations} recorded generations, {study.untrained} "
        "untrained models as a null; verdicts are corrected for all tests (Holm). More: --full, --problems, --generations."
    )
    console.print(f"Open {study.folder / 'report.html'} in a browser.", soft_wrap=True, markup=False)


def test_cells(test: Tested) -> tuple[str, ...]:
    """A line of the table, after the experiment."""
    from jaxsink.study.verdicts import number

    value = f"{number(test.value)} [{number(test.low)}, {number(test.high)}]" if test.comparisons else test.why
    against = "; ".join(f"{number(one.difference, '+')} to {one.null}" for one in test.comparisons)
    return test.model, test.statistic, value, against, test.verdict
