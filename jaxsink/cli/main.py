"""The command line: parsing, signs of life, and errors as one sentence. Only commands that need JAX import it."""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import stat
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypedDict

from jaxsink.cli.interrupts import delivered_interrupts, end_process
from jaxsink.cli.platform import use_cpu_if_alone
from jaxsink.errors import JaxsinkError
from jaxsink.runs.progress import human_bytes as human_bytes
from jaxsink.runs.progress import reporting, stage
from jaxsink.runs.stopping import INTERRUPTED, IsStopped, StoppedError, stop_on_sigterm
from jaxsink.sandbox.levels import LEVELS
from jaxsink.version import __version__

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

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
    complete_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may hold what the terminal cannot show
    try:
        if any("\0" in word for word in argv or ()):
            raise JaxsinkError("an argument holds a zero byte, which no name and no text can have.")
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
        drop_output()
        return 0
    except JaxsinkError as error:
        return fail(str(error), BAD_INPUT)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        if is_about_output(error):
            where = "standard output: "
            drop_output()
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


class Parser(argparse.ArgumentParser):
    """argparse passes over what it cannot print; this one says so."""

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        print(message, end="", file=file)
        sys.stdout.flush()


def is_about_output(error: OSError) -> bool:
    """Whether there is no room for what we print. Of files, errors have the name."""
    try:
        kind = os.fstat(1).st_mode
    except OSError:
        return False
    is_file = stat.S_ISREG(kind) or (stat.S_ISCHR(kind) and not os.isatty(1))
    return is_file and not error.filename and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def complete_streams() -> None:
    """Streams that are closed (`>&-`) read nothing and write nowhere. In this order they get their usual numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for as long as the process lives


def drop_output(stream: TextIO | None = None) -> None:
    """What waits for a stream, standard output unless another is named, is forgotten, or Python tries again to write it at
    its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), (stream or sys.stdout).fileno())


def fail(message: str, code: int) -> int:
    """One line on stderr, whatever the message quotes from a file; a stderr that takes nothing changes no exit code."""
    line = "".join(map(printable, " ".join(message.split())))
    try:
        print(f"jaxsink: {line if len(line) <= 500 else line[:497] + '...'}", file=sys.stderr, flush=True)
    except OSError:
        drop_output(sys.stderr)
    return code


def printable(char: str) -> str:
    """A character, or how Python writes it; a byte of a file name that is no text is "\\xff"."""
    if char.isprintable():
        return char
    is_byte = "\udc80" <= char <= "\udcff"  # as Python reads it
    return f"\\x{ord(char) - 0xDC00:02x}" if is_byte else char.encode("unicode_escape").decode()


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
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
