"""The command line: parsing, signs of life, and errors as one sentence. Only commands that need JAX import it."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypedDict

from jaxsink.cli.interrupts import delivered_interrupts, end_process
from jaxsink.cli.platform import use_cpu_if_alone
from jaxsink.errors import JaxsinkError
from jaxsink.runs.progress import human_bytes as human_bytes
from jaxsink.runs.progress import reporting, stage
from jaxsink.runs.stopping import INTERRUPTED, IsStopped, StoppedError, stop_on_sigterm
from jaxsink.sandbox.levels import LEVELS
from jaxsink.version import __version__

Commands = Any  # argparse's subparsers object, whose type has no public name
Run = Callable[[argparse.Namespace], int]


class ReadingOptions(TypedDict, total=False):
    """Keyword arguments of `jaxsink.load`."""

    mask_id: int
    ignore_settings: list[str]


BAD_INPUT, UNEXPECTED = 2, 1


def main(argv: list[str] | None = None) -> int:
    """Run one command. Exit code 0: done, 2: bad input (one sentence on stderr), 1: our fault, 130: interrupted, 143:
    stopped by SIGTERM."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may hold what the terminal cannot show
    try:
        args = build_parser().parse_args(argv)
        use_cpu_if_alone()
        with (
            delivered_interrupts(),
            nullcontext() if argv is not None else reporting(),  # a program that calls us is no person
            stage("starting"),
        ):
            code = args.run(args)
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except JaxsinkError as error:
        return fail(str(error), BAD_INPUT)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return fail(f"{where}{error.strerror or error}.", BAD_INPUT)
    except UnicodeEncodeError as error:  # an argument or a file name that is no text
        return fail(f"{error.object[:100]!a} holds bytes that are no text; give UTF-8.", BAD_INPUT)
    except StoppedError as error:
        code = fail(str(error), error.code)
        return end_process(code) if argv is None else code
    except KeyboardInterrupt:
        code = fail("interrupted; nothing half-written was left.", INTERRUPTED)
        return end_process(code) if argv is None else code
    except Exception as error:
        if os.environ.get("JAXSINK_DEBUG"):
            raise
        lines = str(error).strip().splitlines() or [""]
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
            return fail(
                f"out of memory ({lines[0][:300]}); try less at once, int8 weights, or more devices.", BAD_INPUT
            )
        name = type(error).__name__
        return fail(f"unexpected {name}: {lines[0][:300]} (JAXSINK_DEBUG=1 shows where).", UNEXPECTED)


def fail(message: str, code: int) -> int:
    """One line on stderr, whatever the message quotes from a file."""
    line = "".join(char if char.isprintable() else " " for char in " ".join(message.split()))
    print(f"jaxsink: {line if len(line) <= 500 else line[:497] + '...'}", file=sys.stderr)
    return code


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxsink", description="Attention sinks in masked diffusion and autoregressive language models, in JAX."
    )
    parser.add_argument("--version", action="version", version=f"jaxsink {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_inspect(commands)
    for command in sorted(entry_points(group="jaxsink.commands"), key=lambda entry: entry.name):
        command.load()(commands)
    return parser


def add_command(
    commands: Commands, name: str, run: Run, summary: str, description: str, examples: str
) -> argparse.ArgumentParser:
    """A parser whose arguments go to `run`, which returns an exit code; examples stand below all options."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(name, help=summary, description=description, epilog=examples, formatter_class=raw)
    parser.set_defaults(run=run)
    return parser


def add_inspect(commands: Commands) -> None:
    parser = add_command(
        commands,
        "inspect",
        run_inspect,
        "family, sizes, parameters and memory of a checkpoint or a published model",
        "What a model is and needs: a converted checkpoint, a Hugging Face directory, a .gguf file, or the "
        "name of a published model (which needs no weights).",
        "examples:\n  jaxsink inspect ./llada\n  jaxsink inspect llada-8b-instruct --json",
    )
    parser.add_argument("path", metavar="PATH", help="checkpoint, or the name of a published model")
    add_reading_options(parser)
    parser.add_argument("--json", action="store_true", help="print as JSON")


def run_inspect(args: argparse.Namespace) -> int:
    import jaxsink

    facts = jaxsink.describe(args.path, **reading_options(args))
    if args.json:
        print(json.dumps(facts, indent=2))
    else:
        from rich.markup import escape
        from rich.table import Table

        from jaxsink.cli.console import Console

        title = escape(str(args.path))
        table = Table(show_header=False, box=None, title=title, title_justify="left", title_style="bold")
        for key, value in facts["summary"].items():
            table.add_row(f"[dim]{key}[/dim]", escape(str(value)))
        Console().print(table)
    return 0


def resumable(folder: str | Path, what: str, interrupts: bool = False) -> AbstractContextManager[IsStopped]:
    """Around a long job: SIGTERM lets it end where nothing is lost. interrupts: so does Ctrl-C."""
    kept = f"all {what} are in {folder}, and the same command continues."
    return stop_on_sigterm(f"stopped by SIGTERM; {kept}", f"interrupted; {kept}" if interrupts else None)


def add_sandbox_option(group: argparse._ActionsContainer) -> None:
    """Where programs may run."""
    group.add_argument(
        "--sandbox",
        choices=LEVELS,
        default=LEVELS[0],
        help="how they are confined; limits is weaker, for machines without namespaces, and never taken unasked "
        "(default: %(default)s; docs/sandbox.md)",
    )


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """What one may have to say about a Hugging Face directory or a GGUF file, beyond what its own files say."""
    group = parser.add_argument_group("reading other formats")
    group.add_argument(
        "--ignore-setting",
        action="append",
        default=[],
        metavar="KEY",
        help="a config key that jaxsink does not know, and that does not change the model; may be repeated",
    )
    group.add_argument(
        "--mask-id", type=int, metavar="ID", help="the mask token of a diffusion model whose files do not name it"
    )


def reading_options(args: argparse.Namespace) -> ReadingOptions:
    """Those that were given."""
    options: ReadingOptions = {}
    if args.mask_id is not None:
        options["mask_id"] = args.mask_id
    if args.ignore_setting:
        options["ignore_settings"] = args.ignore_setting
    return options
