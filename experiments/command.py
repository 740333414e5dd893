"""`jaxsink study`: run all or some experiments on one or several models, resume, and leave results a reader can check."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from jaxsink_experiments import ORDER

from jaxsink.errors import JaxsinkError
from jaxsink.version import __version__

DEFAULT_MODELS = ("mini-llada", "mini-dream", "mini-llama")
SHORT = {module.split("_")[1] if module.startswith("beyond_") else module.split("_")[0]: module for module in ORDER}
QUICK, FULL = (100, 30), (1000, 100)  # problems per condition, generations recorded


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "study",
        help="the paper's study on one or several models, with controls and verdicts",
        description="Run experiments and write results (JSON, CSV, npz), figures (SVG, PNG) and a manifest. A run that was "
        "stopped, however, goes on where it stopped when the same command is given again.",
        epilog="examples:\n  jaxsink study\n  jaxsink study fig7 table1 --out results\n  jaxsink study --full\n"
        "  jaxsink study --model ./llada --problems 200\n\nexperiments: " + ", ".join(SHORT),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments (default: all)")
    parser.add_argument(
        "--model", action="append", metavar="MODEL", help="built-in name or checkpoint; may be repeated"
    )
    parser.add_argument("--out", default="jaxsink-study", metavar="DIR", help="where results go (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help=f"{FULL[0]} problems per condition instead of {QUICK[0]}")
    parser.add_argument("--problems", type=int, metavar="N", help="problems per condition")
    parser.add_argument("--generations", type=int, metavar="N", help="generations recorded in full")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    unknown = [name for name in args.names if name not in SHORT]
    if unknown:
        raise JaxsinkError(f"there is no experiment {unknown[0]!r}; there are {', '.join(SHORT)}.")
    problems, generations = FULL if args.full else QUICK
    problems, generations = args.problems or problems, args.generations or generations
    if problems < 1 or generations < 2:
        raise JaxsinkError("a study needs at least one problem and two generations.")

    from jaxsink.commands.shared import enable_compilation_cache
    from jaxsink.study import Study, subject

    enable_compilation_cache()
    names = args.model or list(DEFAULT_MODELS)
    folder, begun = Path(args.out), time.monotonic()

    def report(text: str) -> None:
        print(f"[{time.monotonic() - begun:6.0f} s] {text}", file=sys.stderr, flush=True)

    study = Study([subject(name) for name in names], folder, problems, generations, seed=args.seed, report=report)
    write_manifest(study, args)
    wanted = args.names or list(SHORT)
    findings = []
    for number, name in enumerate(wanted, 1):
        report(f"{name} ({number} of {len(wanted)})")
        finding = import_module(f"jaxsink_experiments.{SHORT[name]}").run(study)
        finding.save(folder / "experiments")
        findings.append(finding)
    if args.json:
        print(json.dumps([{"name": f.name, "verdict": f.verdict, "found": f.found} for f in findings], indent=2))
    else:
        show(findings, folder)
    return 0


def show(findings: list[Any], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("experiment", "verdict", "what we find", title=f"results in {folder}", title_justify="left")
    for finding in findings:
        table.add_row(finding.title, finding.verdict, finding.found)
    Console().print(table)


def write_manifest(study: Any, args: argparse.Namespace) -> None:
    """What a reader needs to run it again: versions, settings, the models' hashes, the machine."""
    import jax
    import numpy as np

    from jaxsink.atomic import new_file

    manifest = {
        "jaxsink": __version__,
        "versions": {"jax": jax.__version__, "numpy": np.__version__, "python": platform.python_version()},
        "settings": {
            "problems": study.problems, "generations": study.generations, "eps": study.eps, "seed": study.seed,
            "full": bool(args.full),
        },
        "models": {
            s.name: {"sha256": s.fingerprint, "sampler": repr(s.sampler), "parameters": _parameters(s.model)}
            for s in study.subjects
        },
        "machine": {"devices": [str(d.device_kind) for d in jax.devices()], "cores": os.cpu_count()},
    }  # fmt: skip
    with new_file(study.folder / "manifest.json") as partial:
        partial.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _parameters(model: Any) -> int:
    import jax

    return sum(leaf.size for leaf in jax.tree.leaves(model))
