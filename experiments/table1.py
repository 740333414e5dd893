"""Table 1 of arXiv 2510.15731 at full size, and Table 2 from the same runs: the command `jaxsink table1`.

LLaDA-8B-Instruct, Dream-7B-Instruct, MMaDA-8B-MixCoT and Llama-3.1-8B-Instruct on the whole of GSM8K (1,319 questions)
and HumanEval (164), K = 0, 1, 5, 10 top sinks masked per head, and as many random and bottom keys. Hardware: a TPU slice of
8 chips, see docs/tpu.md for hours and costs. One command per model and dataset (`jaxsink table1` prints all eight):

    jaxsink evaluate ./llada-8b-instruct llada-8b-instruct/gsm8k/study --out runs/llada-8b-instruct-gsm8k --mesh 4x2
    …
    jaxsink table1 runs/* --out table1

The same on the built-in models and their own word problems takes minutes on a CPU:

    jaxsink evaluate mini-llada task --out runs/mini-llada --limit 200
    jaxsink table1 runs/mini-llada
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from jaxsink.checkpoints.gcs import local
from jaxsink.errors import JaxsinkError

EXAMPLES = """examples:
  jaxsink table1                                   the paper's figures, and the eight commands that repeat them
  jaxsink table1 runs/llada-gsm8k runs/dream-gsm8k
  jaxsink table1 runs/* --out table1               also as files: table1.csv, table2.csv, tables.json, tables.md
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "table1",
        help="Tables 1 and 2 of several evaluations, beside the paper's",
        description="Put directories of `jaxsink evaluate` together into Table 1 (accuracy with sinks masked) and "
        "Table 2 (which tokens are sinks), beside the paper's, with two-sided tests corrected for their number.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="*", metavar="DIR", help="directories that `jaxsink evaluate` wrote")
    parser.add_argument("--out", metavar="DIR", help="write the tables there, too")
    parser.add_argument("--json", action="store_true", help="print the tables as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from jaxsink.cli.tables import print_merged
    from jaxsink.evals.summary import read_summary
    from jaxsink.evals.tables import table1, table2, write_tables

    if not args.runs:
        if args.out:
            raise JaxsinkError("there is nothing to write; name directories that `jaxsink evaluate` wrote.")
        print(json.dumps(paper(), indent=2) if args.json else "\n".join(described()))
        return 0
    summaries = [read_summary(local(run, "DIR")) for run in dict.fromkeys(args.runs)]
    if args.out:
        write_tables(local(args.out, "--out"), summaries)
    if args.json:
        print(json.dumps({"table1": table1(summaries), "table2": table2(summaries)}, indent=2))
    else:
        print_merged(summaries)
    return 0


def command(setting: str) -> str:
    """What repeats a column of the paper's Table 1; the checkpoint lies in a directory named after the model."""
    model, benchmark, _ = setting.split("/")
    leave = " --allow-code-execution" if benchmark == "humaneval" else ""
    return f"jaxsink evaluate ./{model} {setting} --out runs/{model}-{benchmark} --mesh 4x2{leave}"


def paper() -> list[dict[str, Any]]:
    from jaxsink.evals.paper import COUNTS, TABLE1

    return [
        {"setting": setting, "percent": dict(zip(map(str, COUNTS), figures, strict=True)), "command": command(setting)}
        for setting, figures in TABLE1.items()
    ]


def described() -> list[str]:
    """The paper's Table 1, and how to repeat it."""
    lines = ["accuracy in % with the top-K sinks masked, K = 0, 1, 5, 10 (arXiv 2510.15731, Table 1):"]
    lines += [f"  {one['setting']:40}{''.join(f'{p:5}' for p in one['percent'].values())}" for one in paper()]
    lines += ["", "each with both controls, on 8 devices (docs/tpu.md):", *(f"  {one['command']}" for one in paper())]
    return [*lines, "", "then:", "  jaxsink table1 runs/* --out table1"]
