"""The command `jaxsink generate`: text from a prompt, shown while it is written; attention statistics on request."""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import TYPE_CHECKING

from jaxsink.cli.main import Commands, add_command, add_reading_options, reading_options
from jaxsink.cli.sampling import add_sampler_options, positive, sampler_options
from jaxsink.errors import JaxsinkError
from jaxsink.recording.named import NAMED

if TYPE_CHECKING:
    from jaxsink.sampling.respond import Options

EXAMPLES = """examples:
  jaxsink generate mini-llada "Tom has 11 flowers and gives 7 flowers to Max. How many flowers does Tom have left?"
  jaxsink generate mini-dream "A bus has 12 people. Then 9 get off. How many people are on the bus?" --delay 0.2
  jaxsink generate mini-llama "Tom has 11 flowers" --no-chat --temperature 0.8 --seed 7
  jaxsink generate mini-llada "Tom has 11 flowers." --record run.npz --record-what received,entropy --every 4
  jaxsink generate mini-llada "Tom has 11 flowers." --record lens.npz --record-what received,lens,residual_norm
  jaxsink generate mini-llada --ids 1,45,17 --tokens 16 --json        ids instead of text
  jaxsink generate ./llada - --tokens 256 --steps 64 < question.txt
  jaxsink generate ./dream "2 + 2 =" --json | jq .text
  jaxsink generate GSAI-ML/LLaDA-8B-Instruct "Why is the sky blue?"   from the hub, converted once

A model brings the sampler that it was made for, with all its settings (`jaxsink models` lists them); each option changes
one of them.
Compiled programs are kept in ~/.cache/jaxsink/xla (JAXSINK_COMPILE_CACHE=DIR or off).
"""
PLAIN_OPTIONS = ("tokens", "chat", "system", "record", "record_what", "every", "overwrite", "seed", "dtype", "backend")


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "generate",
        run,
        "write text with a model, and show how it comes about",
        "Write a response to a prompt. In a terminal the canvas is shown while it is unmasked. Only the "
        "response goes to stdout, up to the model's first end token (--json has all ids).",
        EXAMPLES,
    )
    parser.add_argument("model", metavar="MODEL", help="name, hub id, converted checkpoint or Hugging Face directory")
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="text; - reads it from stdin")
    prompt = parser.add_argument_group("prompt")
    prompt.add_argument("--ids", metavar="1,2,3", help="token ids instead of PROMPT")
    prompt.add_argument(
        "--chat",
        action=argparse.BooleanOptionalAction,
        help="put PROMPT into the model's chat template (default: if we know the template and the model's name says "
        "instruct or chat, or says nothing and its tokenizer brings the template; never if the name says base)",
    )
    prompt.add_argument("--system", metavar="TEXT", help="system message; implies --chat")
    add_sampler_options(parser.add_argument_group("sampling (each model's sampler has some of these)"))
    out = parser.add_argument_group("output")
    out.add_argument("--json", action="store_true", help="one JSON object on stdout: text, ids, steps, settings, times")
    out.add_argument("--no-live", action="store_true", help="do not show the canvas")
    out.add_argument(
        "--delay",
        metavar="SECONDS",
        type=seconds,
        default=0.0,
        help="rest after each step that a terminal shows, to watch a fast model",
    )
    out.add_argument("--record", metavar="FILE.npz", help="write attention statistics of every step to this file")
    out.add_argument(
        "--record-what",
        metavar="NAMES",
        help=f"comma separated: {', '.join(NAMED)} (default: received)",
    )
    out.add_argument("--every", metavar="N", type=positive, help="record every N-th step only (default: 1)")
    out.add_argument("--overwrite", action="store_true", help="replace FILE.npz if it exists")
    running = parser.add_argument_group("running")
    running.add_argument("--seed", type=int, default=0, help="seed of all random draws (default: 0)")
    running.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16", "int8"),
        help="type of the weights; int8: of the layers' only (default: as stored; built-in models: float32)",
    )
    running.add_argument("--backend", help="attention backend: naive, blocked or pallas (default: by device and size)")
    running.add_argument("--no-compile-cache", action="store_true", help="do not keep compiled programs on the disk")
    add_reading_options(parser)


def run(args: argparse.Namespace) -> int:
    import jaxsink
    from jaxsink.cli.console import Console
    from jaxsink.cli.live import Watch, printable
    from jaxsink.runs.compile_cache import enable_compilation_cache
    from jaxsink.runs.reporter import is_watched

    console = Console(stderr=True)
    watched = is_watched(console) and not args.no_live
    enable_compilation_cache(not args.no_compile_cache)
    watch = Watch(console if watched else None, args.delay)
    response = jaxsink.respond(args.model, read_prompt(args.prompt), say=note, watch=watch, **options(args))
    if args.json:
        print(json.dumps(response.to_dict()))
    else:
        text = " ".join(map(str, response.ids)) if response.text is None else response.text
        print(printable(text) if sys.stdout.isatty() else text)
    if response.empty is not None:
        note(f"the answer is empty: {response.empty}.")
    if watched:
        done, ran = sum(step >= 0 for step in response.committed_at), response.seconds["run"]
        speed = f"{done} tokens in {response.steps} steps, {ran:.1f} s ({done / ran:.1f} tokens/s)"
        console.print(f"{speed}, after {response.seconds['compile']:.1f} s of compiling", style="dim", highlight=False)
    return 0


def options(args: argparse.Namespace) -> Options:
    """The keywords of `jaxsink.respond`."""
    plain = {name: getattr(args, name) for name in PLAIN_OPTIONS}
    return {**plain, "ids": parse_ids(args.ids), **sampler_options(args), **reading_options(args)}  # pyright: ignore


def read_prompt(text: str | None) -> str | None:
    """The text itself; "-" means stdin, without the line break at its end."""
    if text != "-":
        return text
    try:
        return sys.stdin.read().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise JaxsinkError(f"stdin is not valid text ({error.reason} at byte {error.start}).") from error


def parse_ids(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = text.replace(",", " ").split()
    wrong = [part for part in parts if not re.fullmatch("[0-9]{1,9}", part)]
    if wrong or not parts:
        raise JaxsinkError(f"--ids takes token ids such as 1,2,3, not {wrong[0] if wrong else text!r}.")
    return [int(part) for part in parts]


def seconds(text: str) -> float:
    """For argparse: a time to wait."""
    value = float(text)
    if not 0 <= value <= 60:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds between 0 and 60")
    return value


def note(message: str) -> None:
    """One line on stderr that stops nothing."""
    print(f"jaxsink: note: {message}", file=sys.stderr)
