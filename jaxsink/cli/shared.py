"""What the commands that run models share: finding a model, its prompt, its records."""

from __future__ import annotations

import json
import os
import re
import sys
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
from jaxsink.runs.atomic import new_file
from jaxsink.runs.progress import human_bytes
from jaxsink.text.tokenizer import Tokenizer
from jaxsink.zoo.names import no_such_model
from jaxsink.zoo.recommend import recommended
from jaxsink.zoo.resolve import resolve

LARGE = 2e9  # bytes of a record that deserve a warning
TALKS = {"instruct", "chat", "it", "sft", "dpo", "rl", "mixcot"}  # what names of models made for chats say


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
        from jaxsink.report.generations import token_texts

        arrays = {name: np.asarray(getattr(gen, name)) for name in GENERATION}
        arrays["token_texts"] = np.array([token_texts(tokenizer, ids) for ids in arrays["tokens"]])
        for path, leaf in jax.tree_util.tree_flatten_with_path(gen.record)[0]:
            arrays[".".join(str(key.key) for key in path)] = np.asarray(leaf)
        arrays["settings"] = np.array(json.dumps(settings))
        with new_file(self.path) as partial, partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
