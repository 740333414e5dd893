"""The command `jaxsink generate`: text from a prompt, shown while it is written; attention statistics on request."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from jaxsink.cli.main import Commands, add_reading_options, reading_options
from jaxsink.cli.sampler_options import add_sampler_options, make_sampler, positive
from jaxsink.errors import JaxsinkError
from jaxsink.runs.progress import stage
from jaxsink.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from jaxsink.cli.shared import Found, RecordFile
    from jaxsink.text.tokenizer import Tokenizer

EXAMPLES = """examples:
  jaxsink generate mini-llada "Tom has 11 flowers and gives 7 flowers to Max. How many flowers does Tom have left?"
  jaxsink generate mini-dream "A bus has 12 people. Then 9 get off. How many people are on the bus?" --delay 0.2
  jaxsink generate mini-llama "Tom has 11 flowers" --no-chat --temperature 0.8 --seed 7
  jaxsink generate mini-llada "Tom has 11 flowers." --record run.npz --record-what received,entropy --every 4
  jaxsink generate mini-llada --ids 1,45,17 --tokens 16 --json        ids instead of text
  jaxsink generate ./llada - --tokens 256 --steps 64 < question.txt
  jaxsink generate ./dream "2 + 2 =" --json | jq .text
  jaxsink generate GSAI-ML/LLaDA-8B-Instruct "Why is the sky blue?"   from the hub, converted once

A model brings the sampler that it was made for, with all its settings (`jaxsink models` lists them); each option changes
one of them.
Compiled programs are kept in ~/.cache/jaxsink/xla (JAXSINK_COMPILE_CACHE=DIR or off).
"""
BUCKET = 32  # prompts are padded to a multiple of this, so that other prompts find the program compiled


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "generate",
        help="write text with a model, and show how it comes about",
        description="Write a response to a prompt. In a terminal the canvas is shown while it is unmasked. Only the "
        "response goes to stdout, up to the model's first end token (--json has all ids).",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
        help="comma separated: received, by_query, last_row, top, counts, kinds, entropy, key_norm, value_norm, "
        "hidden_max, maps (default: received)",
    )
    out.add_argument("--every", metavar="N", type=positive, help="record every N-th step only (default: 1)")
    out.add_argument("--overwrite", action="store_true", help="replace FILE.npz if it exists")
    running = parser.add_argument_group("running")
    running.add_argument("--seed", type=int, default=0, help="seed of all random draws (default: 0)")
    running.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16", "int8"),
        help="type of the weights; int8: of the layers' only (default: as stored)",
    )
    running.add_argument("--backend", help="attention backend: naive, blocked or pallas (default: by device and size)")
    running.add_argument("--no-compile-cache", action="store_true", help="do not keep compiled programs on the disk")
    add_reading_options(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class Job:
    """Everything decided before any weight is read."""

    found: Found
    tokenizer: Tokenizer | None
    template: str | None  # of the chat, if it is one
    ids: list[int]
    sampler: Any
    record: RecordFile | None
    total: int  # steps at most
    start: int  # where the response starts: at the first mask of a prompt that has some, else after the prompt

    @property
    def length(self) -> int:
        return len(self.ids) + self.sampler.response_length

    @property
    def is_autoregressive(self) -> bool:
        return self.sampler.is_autoregressive


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from jaxsink.checkpoints.load import load
    from jaxsink.runs.compile_cache import enable_compilation_cache
    from jaxsink.runs.reporter import is_watched

    console = Console(stderr=True)
    watched = is_watched(console) and not args.no_live
    enable_compilation_cache(not args.no_compile_cache)
    job = prepare(args)
    begin = time.perf_counter()
    model = load(job.found.path, args.dtype, **reading_options(args))
    loading = time.perf_counter() - begin
    gen, seconds = execute(job, model, args, console if watched else None)
    result = describe(job, model, gen, args)
    result["seconds"] = {"load": loading, **seconds}
    if job.record is not None:
        job.record.write(gen, result, job.tokenizer)
    if args.json:
        print(json.dumps(result))
    else:
        say(" ".join(map(str, result["ids"])) if result["text"] is None else result["text"])
    if result["empty"] is not None:
        note(f"the answer is empty: {result['empty']}.")
    if watched:
        done, ran = sum(step >= 0 for step in result["committed_at"]), seconds["run"]
        speed = f"{done} tokens in {result['steps']} steps, {ran:.1f} s ({done / ran:.1f} tokens/s)"
        console.print(f"{speed}, after {seconds['compile']:.1f} s of compiling", style="dim", highlight=False)
    return 0


def prepare(args: argparse.Namespace) -> Job:
    """Check everything that can be checked, so that a mistake costs no time."""
    from jaxsink.cli.shared import Found, RecordFile, Shape
    from jaxsink.nn.attention import choose_backend
    from jaxsink.sampling.inputs import pad_prompts

    found = Found.at(args.model, **reading_options(args))
    config = found.config
    sampler = make_sampler(args, config, found.sampler)
    choose_backend(args.backend, 1, 1)
    tokenizer, template, ids = encode(args, found)
    pad_prompts(config, [ids], None, None)
    masks = [n for n, token in enumerate(ids) if config.is_diffusion and token == config.mask_id]
    total = sampler.total_steps(len(masks) + sampler.response_length)
    length, target = len(ids) + sampler.response_length, None
    if length > config.max_positions:
        note(f"prompt and response have {length} tokens, and the model was made for {config.max_positions}.")
    if args.record is not None:
        shape = Shape(config, total, 1 if sampler.is_autoregressive else length, length)
        target = RecordFile.plan(args.record, args.record_what or "received", args.every or 1, shape, args.overwrite)
        if target.warning:
            note(target.warning)
    elif args.record_what is not None or args.every is not None or args.overwrite:
        raise JaxsinkError("--record-what, --every and --overwrite say how to record, and need --record FILE.npz.")
    return Job(found, tokenizer, template, ids, sampler, target, total, masks[0] if masks else len(ids))


def encode(args: argparse.Namespace, found: Found) -> tuple[Tokenizer | None, str | None, list[int]]:
    """(tokenizer, name of the chat template if one is used, ids of the prompt)."""
    from jaxsink.cli.shared import parse_ids, read_prompt
    from jaxsink.sampling.prompts import encode_text, unknown_note, unknown_words
    from jaxsink.text.tokenizer import check_special_ids

    if (args.prompt is None) == (args.ids is None):
        raise JaxsinkError("give either a PROMPT (- for stdin) or token ids (--ids 1,2,3).")
    if args.system is not None and args.chat is False:
        raise JaxsinkError("--system needs the chat template, which --no-chat forbids.")
    if args.ids is not None and (args.chat or args.system is not None):
        raise JaxsinkError("--chat and --system need a PROMPT; --ids are taken as they are.")
    try:
        tokenizer = found.tokenizer()
    except JaxsinkError:
        if args.ids is None:
            raise
        return None, None, parse_ids(args.ids)
    for warning in check_special_ids(tokenizer, found.config):
        note(warning)
    if args.ids is not None:
        return tokenizer, None, parse_ids(args.ids)
    text = read_prompt(args.prompt)
    if unknown := unknown_words(tokenizer, text):
        note(unknown_note(tokenizer, unknown))
    if args.chat or args.system is not None or (args.chat is None and found.prefers_chat(tokenizer)):
        system = [] if args.system is None else [{"role": "system", "content": args.system}]
        return tokenizer, tokenizer.template, tokenizer.chat([*system, {"role": "user", "content": text}])
    return tokenizer, None, encode_text(tokenizer, text, chat=False)


def execute(job: Job, model: Any, args: argparse.Namespace, console: Console | None) -> tuple[Any, dict[str, float]]:
    """(generation, {"compile", "run"} in seconds); shows it on the console, if there is one."""
    import numpy as np

    from jaxsink.cli import live
    from jaxsink.recording.recorders import received
    from jaxsink.recording.reductions import sink_share
    from jaxsink.runs.compile_cache import CompileClock
    from jaxsink.sampling.generate import generate

    config, every = model.config, 1 if job.record is None else job.record.every
    padding = -len(job.ids) % BUCKET
    if job.record is not None or (config.positions == "learned" and job.length + padding > config.max_positions):
        padding = 0
    stream = job.total if job.record is None else job.record.chunk()
    record = {} if job.record is None else dict(job.record.what)
    mask_id = None if job.is_autoregressive else config.mask_id
    canvas = None
    if console is not None and sys.stdout.isatty():
        inline = job.start < len(job.ids)
        canvas = live.Canvas(console, live.Pieces(job.tokenizer), padding + job.start, mask_id, padding, inline)
        record[live.LIVE] = received().then(sink_share())
    delay = args.delay if canvas is not None else 0.0
    pace = live.FRAME if console is not None else live.PLAIN
    steps = 1 if delay else steps_per_frame(model, 1 if job.is_autoregressive else job.length, pace)
    stream = min(stream, every * max(1, steps // every))
    at_once = stream >= job.total
    with CompileClock() as clock:
        display = live.Display(canvas, job.total, lambda: clock.running, delay)
        with stage("compiling", total=job.total, unit="steps", body=display) as display.task:
            gen = generate(
                model,
                [job.ids],
                job.sampler,
                record=record or None,
                seed=args.seed,
                every=every,
                stream=None if at_once else stream,
                pad_to=len(job.ids) + padding,
                backend=args.backend,
                listener=None if at_once else display,
            )
            tokens, committed_at = np.asarray(gen.tokens), np.asarray(gen.committed_at)  # waits
        kept = {name: value for name, value in (gen.record or {}).items() if name != live.LIVE}
        gen = replace(gen, tokens=tokens, committed_at=committed_at, record=kept or None)
        return gen, {"compile": clock.compiling, "run": clock.running}


def steps_per_frame(model: Any, positions: int, frame: float) -> int:
    """Steps that take about `frame` seconds, by a rough guess; what is shown after them needs a trip to the host."""
    import jax

    leaves = jax.tree.leaves(model)
    slow = jax.default_backend() == "cpu"
    arithmetic = 2 * positions * sum(leaf.size for leaf in leaves) / (5e10 if slow else 5e13)
    reading = sum(leaf.nbytes for leaf in leaves) / (1e10 if slow else 5e11)
    return max(1, min(round(240 * frame), round(frame / max(arithmetic, reading))))


def describe(job: Job, model: Any, gen: Any, args: argparse.Namespace) -> dict[str, Any]:
    """What --json prints, but for the times."""
    from jaxsink.nn.attention import choose_backend
    from jaxsink.nn.quantization import weights_dtype
    from jaxsink.sampling.generation import before_end, end_ids

    skip = gen.prompt_length - len(job.ids)  # padding
    steps = int(gen.steps[0])
    stop = len(job.ids) + steps if job.is_autoregressive else job.length
    tokens, committed_at = gen.tokens[0, skip:][:stop].tolist(), gen.committed_at[0, skip:][:stop].tolist()
    text = None
    if job.tokenizer is not None:
        response = tokens[len(job.ids) :]
        ends = () if args.stop_at_eos is False else end_ids(job.found.config)
        text = job.tokenizer.decode(tokens[job.start : len(job.ids)] + before_end(response, ends))
    return {
        "text": text,
        "empty": why_empty(tokens[job.start :], end_ids(job.found.config)) if text == "" else None,
        "ids": tokens[job.start :],
        "committed_at": committed_at[job.start :],
        "start": job.start,
        "prompt_ids": job.ids,
        "chat": job.template,
        "steps": steps,
        "sampler": {"name": type(job.sampler).__name__, **asdict(job.sampler)},
        "approximate": gen.approximate,
        "seed": args.seed,
        "model": str(job.found.path),
        "family": job.found.config.family,
        "dtype": weights_dtype(model),
        "backend": choose_backend(args.backend, gen.tokens.shape[1], gen.tokens.shape[1]),
        "record": None if job.record is None else {"file": str(job.record.path), "what": list(job.record.what)},
        "jaxsink": __version__,
    }


def why_empty(ids: list[int], ends: Sequence[int]) -> str:
    """Why nothing is to be read in these ids."""
    if all(token in ends for token in ids):
        return f"all {len(ids)} tokens are end tokens" if len(ids) > 1 else "its only token is an end token"
    if ids[0] in ends:
        count = sum(token in ends for token in ids)
        return f"{count} of its {len(ids)} tokens are end tokens, the first one among them"
    return "its tokens are special ones, which have no text (--json shows them)"


def seconds(text: str) -> float:
    """For argparse: a time to wait."""
    value = float(text)
    if not 0 <= value <= 60:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds between 0 and 60")
    return value


def note(message: str) -> None:
    """One line on stderr that stops nothing."""
    print(f"jaxsink: note: {message}", file=sys.stderr)


def say(text: str) -> None:
    """The result on stdout; a terminal gets no control characters."""
    from jaxsink.cli.live import printable

    print(printable(text) if sys.stdout.isatty() else text)
