"""What the commands that run models share: the cache of compiled programs, finding a model, its prompt, its records."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxsink.checkpoints.gcs import local
from jaxsink.checkpoints.load import describe_checkpoint
from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.origin import Origin
from jaxsink.recording import recorders
from jaxsink.recording import reductions as reduce
from jaxsink.runs.progress import human_bytes
from jaxsink.sampling.generation import end_ids
from jaxsink.text.tokenizer import Tokenizer
from jaxsink.zoo.names import no_such_model
from jaxsink.zoo.recommend import recommended
from jaxsink.zoo.resolve import resolve

VARIABLE = "JAXSINK_COMPILE_CACHE"
OFF = ("", "0", "no", "off", "false")
SHORTEST = 0.5  # seconds; what compiles faster is not worth a file
LARGE = 2e9  # bytes of a record that deserve a warning
TALKS = {"instruct", "chat", "it", "sft", "dpo", "rl", "mixcot"}  # what names of models made for chats say


def enable_compilation_cache(wanted: bool = True) -> Path | None:
    """Keep compiled programs on the disk, so that the next run with the same shapes starts at once.

    The directory is $JAXSINK_COMPILE_CACHE ("off" for none), else jaxsink/xla in $XDG_CACHE_HOME or ~/.cache. JAX's own
    setting (JAX_COMPILATION_CACHE_DIR) goes first. A directory that cannot be written to means no cache, not an error.
    Returns the directory in use, or None.
    """
    if not wanted:
        jax.config.update("jax_compilation_cache_dir", None)
        return None
    present = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if present:
        return Path(present)
    folder = cache_directory()
    if folder is None or not is_writable(folder):
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)
    return folder


def cache_directory() -> Path | None:
    """Where compiled programs belong; None when the user wants none."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return None if named.strip().lower() in OFF else Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG rules: relative paths are to be ignored
        base = os.path.expanduser("~/.cache")
    return Path(base) / "jaxsink" / "xla" if os.path.isabs(base) else None


def is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


class CompileClock:
    """Counts the seconds that JAX spends tracing and compiling while it is open.

    Programs contain others, so that durations overlap: what counts is the time covered by any of them.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._spans: list[tuple[float, float]] = []
        self._begin = clock()

    def __enter__(self) -> CompileClock:
        self._begin = self._clock()
        jax.monitoring.register_event_duration_secs_listener(self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._hear)

    def _hear(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        """Called when something has just ended."""
        if not event.startswith("/jax/core/compile/"):
            return
        end = self._clock()
        begin = max(end - duration_secs, self._begin)
        while self._spans and self._spans[-1][1] > begin:
            begin = min(begin, self._spans.pop()[0])
        self._spans.append((begin, end))

    @property
    def compiling(self) -> float:
        return sum(end - begin for begin, end in self._spans)

    @property
    def running(self) -> float:
        """Seconds since the start, without the compiling."""
        return self._clock() - self._begin - self.compiling


@dataclass(frozen=True)
class Found:
    """A checkpoint as far as it is known without its weights."""

    path: Path
    config: ModelConfig
    origin: Origin

    @classmethod
    def at(cls, model: str, mask_id: int | None = None, ignore_settings: Sequence[str] = ()) -> Found:
        path = resolve(model)
        if not path.exists():
            raise no_such_model(model)
        return cls(path, *describe_checkpoint(path, mask_id, ignore_settings))

    @property
    def sampler(self) -> Any:
        """The one that the checkpoint recommends."""
        return self.origin.sampler or recommended(self.config, self.origin.names)

    def tokenizer(self) -> Tokenizer:
        try:
            return Tokenizer.load(self.path, self.config.family)
        except JaxsinkError as error:
            raise JaxsinkError(f"{str(error).rstrip('.')}, or give token ids with --ids.") from error

    def prefers_chat(self, tokenizer: Tokenizer) -> bool:
        """Whether the model was made for chats, as far as names and files tell."""
        words = {word for name in self.origin.names for word in re.findall("[a-z]+", name.lower())}
        if tokenizer.template is None or "base" in words:
            return False
        return bool(words & TALKS) or tokenizer.brings_template


def read_prompt(text: str) -> str:
    """The text itself; "-" means stdin, without the line break at its end."""
    if text != "-":
        return text
    try:
        return sys.stdin.read().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise JaxsinkError(f"stdin is not valid text ({error.reason} at byte {error.start}).") from error


def parse_ids(text: str) -> list[int]:
    parts = text.replace(",", " ").split()
    wrong = [part for part in parts if not re.fullmatch("[0-9]{1,9}", part)]
    if wrong or not parts:
        raise JaxsinkError(f"--ids takes token ids such as 1,2,3, not {wrong[0] if wrong else text!r}.")
    return [int(part) for part in parts]


@dataclass(frozen=True)
class Shape:
    """The sizes that say how large a record is; queries: per step."""

    config: ModelConfig
    steps: int
    queries: int
    keys: int


# name: (recorder, numbers per step and layer)
What = tuple[Callable[[Shape], Any], Callable[[Shape], int]]
TOP, EPS = 8, (1.0, 3.0, 10.0)
WHAT: dict[str, What] = {
    "received": (lambda s: recorders.received(), lambda s: s.config.heads * s.keys),
    "by_query": (lambda s: recorders.received_by_query(), lambda s: 3 * s.config.heads * s.keys),
    "last_row": (lambda s: recorders.last_row(), lambda s: s.config.heads * s.keys),
    "top": (
        lambda s: recorders.received().then(reduce.top(min(TOP, s.keys))),
        lambda s: 2 * s.config.heads * min(TOP, s.keys),
    ),
    "counts": (lambda s: recorders.received().then(reduce.sink_counts(EPS)), lambda s: s.config.heads * len(EPS)),
    "kinds": (lambda s: recorders.received().then(reduce.sum_by_kind()), lambda s: 3 * s.config.heads),
    "entropy": (lambda s: recorders.row_entropy(), lambda s: s.config.heads * s.queries),
    "key_norm": (lambda s: recorders.key_norm(), lambda s: s.config.kv_heads * s.keys),
    "value_norm": (lambda s: recorders.value_norm(), lambda s: s.config.kv_heads * s.keys),
    "hidden_max": (lambda s: recorders.hidden_max(), lambda s: 3 * s.queries),
    "maps": (lambda s: recorders.maps(), lambda s: s.config.heads * s.queries * s.keys),
}


def record_names(option: str, text: str) -> list[str]:
    """Keys of WHAT, from a list with commas."""
    names = [name.strip().replace("-", "_") for name in text.split(",") if name.strip()]
    for name in names:
        if name not in WHAT:
            raise JaxsinkError(f"{option}: {name!r} is not known; choose from {', '.join(WHAT)}.")
    if not names:
        raise JaxsinkError(f"{option} names nothing; choose from {', '.join(WHAT)}.")
    return names


GENERATION = ("tokens", "committed_at", "mask", "recorded_steps", "steps", "prompt_length", "autoregressive")


@dataclass(frozen=True)
class RecordFile:
    """A record that is to be written: where, of what, and how large it will be."""

    path: Path
    what: dict[str, Any]  # name: recorder
    every: int
    step_bytes: int  # of one recorded step
    bytes: int

    @classmethod
    def plan(cls, path: str, what: str, every: int, shape: Shape, overwrite: bool) -> RecordFile:
        """Everything that can go wrong is found now, not after the run."""
        names = record_names("--record-what", what)
        target = local(path, "--record")
        if not target.parent.is_dir():
            raise JaxsinkError(f"--record: the directory {target.parent} does not exist; create it first.")
        if target.is_dir() or not os.access(target.parent, os.W_OK):
            raise JaxsinkError(f"--record: {target} cannot be written as a file; choose another name.")
        if os.path.lexists(target) and not overwrite:
            raise JaxsinkError(f"--record: {target} exists already; choose another name, or add --overwrite.")
        step_bytes = 4 * shape.config.layers * sum(WHAT[name][1](shape) for name in dict.fromkeys(names))
        made = {name: WHAT[name][0](shape) for name in names}
        return cls(target, made, every, step_bytes, step_bytes * -(-shape.steps // every))

    @property
    def warning(self) -> str | None:
        if self.bytes <= LARGE:
            return None
        less = "" if set(self.what) <= {"top", "counts", "kinds"} else " or --record-what top,counts"
        return f"the record will take {human_bytes(self.bytes)}; --every {self.every * 8}{less} keeps it small."

    def chunk(self, budget: int = 256 << 20) -> int:
        """Steps between moves to the host, so that the device holds about `budget` bytes of records."""
        return self.every * max(1, budget // max(1, self.step_bytes))

    def write(self, gen: Any, settings: dict[str, Any], tokenizer: Tokenizer | None) -> None:
        """The arrays by name, what `jaxsink report` needs to know of the generation, and the settings as a JSON string."""
        from jaxsink.reporting.generations import token_texts

        arrays = {name: np.asarray(getattr(gen, name)) for name in GENERATION}
        arrays["token_texts"] = np.array([token_texts(tokenizer, ids) for ids in arrays["tokens"]])
        for path, leaf in jax.tree_util.tree_flatten_with_path(gen.record)[0]:
            arrays[".".join(str(key.key) for key in path)] = np.asarray(leaf)
        arrays["settings"] = np.array(json.dumps(settings))
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        try:
            with open(partial, "wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self.path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def first_end(ids: Sequence[int], config: ModelConfig) -> int:
    """How many ids come before the first end token."""
    ends = end_ids(config)
    return next((n for n, token in enumerate(ids) if token in ends), len(ids))
