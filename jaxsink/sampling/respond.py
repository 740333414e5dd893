"""`jaxsink.respond`: one prompt and one response, by the name of a model, as `jaxsink generate` has it."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Unpack, runtime_checkable

import jax
import numpy as np

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checkpoints.found import Found
from jaxsink.checkpoints.load import load
from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.nn.attention import choose_backend
from jaxsink.nn.quantization import weights_dtype
from jaxsink.nn.recorder import Recorder
from jaxsink.nn.transformer import Model
from jaxsink.recording.named import Shape
from jaxsink.runs.compile_cache import CompileClock
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.generate import generate
from jaxsink.sampling.generation import Generation, before_end, end_ids
from jaxsink.sampling.inputs import pad_prompts
from jaxsink.sampling.options import Sampling, of_sampler, with_options
from jaxsink.sampling.prompts import encode_text, unknown_note, unknown_words
from jaxsink.sampling.record_file import RecordFile
from jaxsink.sampling.run_options import Listener
from jaxsink.text.tokenizer import Tokenizer, check_special_ids
from jaxsink.version import __version__

BUCKET = 32  # prompts are padded to a multiple of this, so that other prompts find the program compiled
Say = Callable[[str], object]


class Options(Sampling, total=False):
    """What `respond` takes beside the prompt; those of the sampler are in `Sampling`.

    tokens       length of the response
    ids          token ids instead of a prompt
    chat         put the prompt into the model's chat template; None: if the model seems to be made for chats
    system       a system message, which implies chat
    record       write attention statistics of every step to this .npz file, for `jaxsink.report`
    record_what  of which kinds: names in jaxsink.recording.named (default: received)
    every        record every n-th step only
    overwrite    replace the file if it exists
    seed         of all random draws
    dtype        of the weights, as for `load`
    backend      of the attention, as for `forward`
    mask_id, ignore_settings  as for `load`
    """

    tokens: int | None
    ids: Sequence[int] | None
    chat: bool | None
    system: str | None
    record: str | os.PathLike[str] | None
    record_what: str | Sequence[str] | None
    every: int | None
    overwrite: bool
    seed: int
    dtype: str | None
    backend: str | None
    mask_id: int | None
    ignore_settings: Sequence[str]


@dataclass(frozen=True)
class Response:
    """What a model wrote, and how.

    Attributes:
        text: up to the first end token; None where there is no tokenizer
        empty: why there is nothing to read in it, if so
        ids: from `start` on, all of them
        committed_at: the step in which each was filled, -1 for the prompt's
        start: where the response starts: at the first mask of a prompt that has some, else after the prompt
        chat: the template, if one was used
        approximate: the cache that makes it so
        record: {"file", "what"}, if it was recorded
        seconds: {"load", "compile", "run"}

    Examples:
        >>> response = jaxsink.respond("mini-llada", question, tokens=16, steps=8)
        >>> response.steps, response.family, response.sampler["name"]
        (8, 'llada', 'LLaDASampler')
        >>> response.to_dict()["text"] == response.text
        True
    """

    text: str | None
    empty: str | None
    ids: list[int]
    committed_at: list[int]
    start: int
    prompt_ids: list[int]
    chat: str | None
    steps: int
    sampler: JsonObject
    approximate: str | None
    seed: int
    model: str
    family: str
    dtype: str
    backend: str
    record: JsonObject | None
    jaxsink: str
    seconds: Mapping[str, float]

    def to_dict(self) -> JsonObject:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Job:
    """Everything decided before any weight is read."""

    found: Found
    tokenizer: Tokenizer | None
    template: str | None  # of the chat, if it is one
    ids: list[int]
    sampler: Sampler
    record: RecordFile | None
    total: int  # steps at most
    start: int

    @property
    def length(self) -> int:
        return len(self.ids) + self.sampler.response_length

    @property
    def padding(self) -> int:
        """Tokens in front of the prompt. A record has none, and learned positions may have no room for them."""
        config, padding = self.found.config, -len(self.ids) % BUCKET
        full = config.positions == "learned" and self.length + padding > config.max_positions
        return 0 if self.record is not None or full else padding


@runtime_checkable
class Watch(Protocol):
    """Follows a text while it is written.

    frame     seconds between two looks, about; 0: after every step
    record    what it wants to see beside the tokens
    follow    around the run; job: what runs; ran: seconds spent on steps so far
    """

    @property
    def frame(self) -> float: ...

    @property
    def record(self) -> Mapping[str, Recorder]: ...

    def follow(self, job: Job, ran: Callable[[], float]) -> AbstractContextManager[Listener]: ...


def warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)


OPTION_RANGES = {
    **dict.fromkeys(("tokens", "every"), at_least(1)),
    **dict.fromkeys(("ids", "mask_id"), at_least(0)),
}


@checked(**OPTION_RANGES)
def respond(
    model: str | os.PathLike[str],
    prompt: str | None = None,
    *,
    say: Say = warn,
    watch: Watch | None = None,
    **options: Unpack[Options],
) -> Response:
    """Load a model, and let it respond to a prompt with the sampler that it recommends.

    Args:
        model: a built-in name, a checkpoint or a hub id
        prompt: a text; masks in it are filled
        say: is told what is odd, before the weights are read
        watch: is shown the text while it is written
        **options: see `Options`, and `jaxsink.sampling.options.Sampling` for those of the sampler

    Examples:
        >>> jaxsink.respond("mini-llama", question, tokens=16).text.splitlines()[-1]
        '#### 7'
    """
    job = prepare(model, prompt, say, **options)
    begin = time.perf_counter()
    loaded = load(job.found.path, options.get("dtype"), **reading(options))
    loading = time.perf_counter() - begin
    generation, seconds = execute(job, loaded, options, watch)
    response = describe(job, loaded, generation, options, {"load": loading, **seconds})
    if job.record is not None:
        job.record.write(generation, response.to_dict(), job.tokenizer)
    return response


def reading(options: Options) -> dict[str, Any]:
    """Of `load`, those that were given."""
    return {name: value for name, value in options.items() if name in ("mask_id", "ignore_settings")}


def prepare(model: str | os.PathLike[str], prompt: str | None, say: Say, **options: Unpack[Options]) -> Job:
    """Check everything that can be checked, so that a mistake costs no time."""
    found = Found.at(model, **reading(options))
    config = found.config
    sampler = with_options(config, found.sampler, options.get("tokens"), **of_sampler(options))
    choose_backend(options.get("backend"), 1, 1)
    tokenizer, template, ids = encode(found, prompt, options, say)
    pad_prompts(config, [ids], None, None)
    fills = config.is_diffusion and not sampler.is_autoregressive
    masks = [n for n, token in enumerate(ids) if fills and token == config.mask_id]
    total = sampler.total_steps(len(masks) + sampler.response_length)
    length, target = len(ids) + sampler.response_length, None
    if length > config.max_positions:
        say(f"prompt and response have {length} tokens, and the model was made for {config.max_positions}.")
    what, every, overwrite = options.get("record_what"), options.get("every"), options.get("overwrite", False)
    if (path := options.get("record")) is not None:
        window = length if masks else sampler.window(config)  # masks may stand anywhere in the prompt
        shape = Shape(config, total, 1 if sampler.is_autoregressive else length, length, window)
        target = RecordFile.plan(path, what or "received", every or 1, shape, overwrite)
        if target.warning:
            say(target.warning)
    elif what is not None or every is not None or overwrite:
        raise JaxsinkError("--record-what, --every and --overwrite say how to record, and need --record FILE.npz.")
    return Job(found, tokenizer, template, ids, sampler, target, total, masks[0] if masks else len(ids))


def encode(
    found: Found, prompt: str | None, options: Options, say: Say
) -> tuple[Tokenizer | None, str | None, list[int]]:
    """(tokenizer, name of the chat template if one is used, ids of the prompt)."""
    given, chat, system = options.get("ids"), options.get("chat"), options.get("system")
    if (prompt is None) == (given is None):
        raise JaxsinkError("give either a PROMPT (- for stdin) or token ids (--ids 1,2,3).")
    if system is not None and chat is False:
        raise JaxsinkError("--system needs the chat template, which --no-chat forbids.")
    if given is not None and (chat or system is not None):
        raise JaxsinkError("--chat and --system need a PROMPT; --ids are taken as they are.")
    try:
        tokenizer = found.tokenizer()
    except JaxsinkError:
        if given is None:
            raise
        return None, None, list(given)
    for warning in check_special_ids(tokenizer, found.config):
        say(warning)
    if prompt is None:
        return tokenizer, None, list(given or ())
    if unknown := unknown_words(tokenizer, prompt):
        say(unknown_note(tokenizer, unknown))
    if chat or system is not None or (chat is None and found.prefers_chat(tokenizer)):
        before = [] if system is None else [{"role": "system", "content": system}]
        return tokenizer, tokenizer.template, tokenizer.chat([*before, {"role": "user", "content": prompt}])
    return tokenizer, None, encode_text(tokenizer, prompt, chat=False)


def execute(job: Job, model: Model, options: Options, watch: Watch | None) -> tuple[Generation, dict[str, float]]:
    """(generation, {"compile", "run"} in seconds)."""
    every = 1 if job.record is None else job.record.every
    record = {} if job.record is None else dict(job.record.what)
    beside = {} if watch is None else watch.record
    stream = job.total if job.record is None else job.record.chunk()
    if watch is not None:
        positions = 1 if job.sampler.is_autoregressive else job.length
        steps = steps_per_frame(model, positions, watch.frame) if watch.frame else 1
        stream = min(stream, every * max(1, steps // every))
    at_once = stream >= job.total
    with CompileClock() as clock:
        with nullcontext() if watch is None else watch.follow(job, lambda: clock.running) as listener:
            generation = generate(
                model,
                [job.ids],
                job.sampler,
                record={**record, **beside} or None,
                seed=options.get("seed", 0),
                every=every,
                stream=None if at_once else stream,
                pad_to=len(job.ids) + job.padding,
                backend=options.get("backend"),
                listener=None if at_once else listener,
            )
            tokens, committed_at = np.asarray(generation.tokens), np.asarray(generation.committed_at)  # waits
        kept = {name: value for name, value in (generation.record or {}).items() if name in record}
        generation = replace(generation, tokens=tokens, committed_at=committed_at, record=kept or None)
        return generation, {"compile": clock.compiling, "run": clock.running}


def steps_per_frame(model: Model, positions: int, frame: float) -> int:
    """Steps that take about `frame` seconds, by a rough guess; what is shown after them needs a trip to the host."""
    leaves = jax.tree.leaves(model)
    slow = jax.default_backend() == "cpu"
    arithmetic = 2 * positions * sum(leaf.size for leaf in leaves) / (5e10 if slow else 5e13)
    reading = sum(leaf.nbytes for leaf in leaves) / (1e10 if slow else 5e11)
    return max(1, min(round(240 * frame), round(frame / max(arithmetic, reading))))


def describe(
    job: Job, model: Model, generation: Generation, options: Options, seconds: Mapping[str, float]
) -> Response:
    config, steps = job.found.config, int(generation.steps[0])
    skip = generation.prompt_length - len(job.ids)  # padding
    stop = len(job.ids) + steps if job.sampler.is_autoregressive else job.length
    tokens = generation.tokens[0, skip:][:stop].tolist()
    committed_at = generation.committed_at[0, skip:][:stop].tolist()
    text = None
    if job.tokenizer is not None:
        ends = () if options.get("stop_at_eos") is False else end_ids(config)
        text = job.tokenizer.decode(tokens[job.start : len(job.ids)] + before_end(tokens[len(job.ids) :], ends))
    length = generation.tokens.shape[1]
    return Response(
        text=text,
        empty=why_empty(tokens[job.start :], end_ids(config)) if text == "" else None,
        ids=tokens[job.start :],
        committed_at=committed_at[job.start :],
        start=job.start,
        prompt_ids=job.ids,
        chat=job.template,
        steps=steps,
        sampler={"name": type(job.sampler).__name__, **job.sampler.stated()},
        approximate=generation.approximate,
        seed=options.get("seed", 0),
        model=str(job.found.path),
        family=config.family,
        dtype=weights_dtype(model),
        backend=choose_backend(options.get("backend"), length, length),
        record=None if job.record is None else {"file": str(job.record.path), "what": list(job.record.what)},
        jaxsink=__version__,
        seconds=seconds,
    )


def why_empty(ids: list[int], ends: Sequence[int]) -> str:
    """Why nothing is to be read in these ids."""
    if all(token in ends for token in ids):
        return f"all {len(ids)} tokens are end tokens" if len(ids) > 1 else "its only token is an end token"
    if ids[0] in ends:
        count = sum(token in ends for token in ids)
        return f"{count} of its {len(ids)} tokens are end tokens, the first one among them"
    return "its tokens are special ones, which have no text (--json shows them)"
