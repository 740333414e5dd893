"""Generations on the disk: the .npz file that `jaxsink generate --record` writes and `jaxsink report` reads."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import PyTree

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checkpoints.gcs import local
from jaxsink.errors import JaxsinkError
from jaxsink.nn.recorder import Recorder
from jaxsink.recording.named import Shape, named_recorders, step_bytes
from jaxsink.runs.atomic import check_replaceable, new_file
from jaxsink.runs.files import interpreting
from jaxsink.runs.progress import human_bytes
from jaxsink.sampling.canvas import Appending
from jaxsink.sampling.generation import Generation
from jaxsink.text.token_texts import token_texts
from jaxsink.text.tokenizer import Tokenizer

LARGE = 2e9  # bytes of a record that deserve a warning
FIELDS = ("tokens", "committed_at", "mask", "recorded_steps", "steps", "prompt_length", "autoregressive")
COMMITS = "commits"  # only of samplers that edit what they wrote


@dataclass(frozen=True)
class RecordFile:
    """A record that is to be written: where, of what, and how large it will be."""

    path: Path
    what: Mapping[str, Recorder]
    every: int
    step_bytes: int  # of one recorded step
    bytes: int

    @classmethod
    def plan(
        cls, path: str | os.PathLike[str], what: str | Sequence[str], every: int, shape: Shape, overwrite: bool
    ) -> RecordFile:
        """Everything that can go wrong is found now, not after the run."""
        recorders = named_recorders("--record-what", what, shape)
        target = local(path, "--record")
        if not target.parent.is_dir():
            raise JaxsinkError(f"--record: the directory {target.parent} does not exist; create it first.")
        if target.is_dir() or not os.access(target.parent, os.W_OK):
            raise JaxsinkError(f"--record: {target} cannot be written as a file; choose another name.")
        check_replaceable(target)
        if os.path.lexists(target) and not overwrite:
            raise JaxsinkError(f"--record: {target} exists already; choose another name, or add --overwrite.")
        size = step_bytes(list(recorders), shape)
        return cls(target, recorders, every, size, size * -(-shape.steps // every))

    @property
    def warning(self) -> str | None:
        if self.bytes <= LARGE:
            return None
        less = "" if set(self.what) <= {"top", "counts", "kinds"} else " or --record-what top,counts"
        return f"the record will take {human_bytes(self.bytes)}; --every {self.every * 8}{less} keeps it small."

    def chunk(self, budget: int = 256 << 20) -> int:
        """Steps between moves to the host, so that the device holds about `budget` bytes of records."""
        return self.every * max(1, budget // max(1, self.step_bytes))

    def write(self, generation: Generation, settings: JsonObject, tokenizer: Tokenizer | None) -> None:
        """The arrays by name, what the page needs to know of the generation, and the settings as a JSON string."""
        arrays = {name: np.asarray(getattr(generation, name)) for name in FIELDS}
        if generation.commits is not None:
            arrays[COMMITS] = np.asarray(generation.commits)
        arrays["token_texts"] = np.array([token_texts(tokenizer, ids) for ids in arrays["tokens"]])
        arrays |= flatten(generation.record)
        if generation.appending is not None:
            arrays["appending"] = np.array(astuple(generation.appending))
        arrays["settings"] = np.array(json.dumps(settings))
        with new_file(self.path) as partial, partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)


def read_record(file: Path) -> tuple[Generation, list[list[str]], JsonObject]:
    """(generation, texts of the tokens, settings) that a RecordFile wrote."""
    if not file.is_file():
        raise JaxsinkError(f"{file} is not a file; give one that `jaxsink generate --record` wrote.")
    with interpreting(file):
        return _read_record(file)


def _read_record(file: Path) -> tuple[Generation, list[list[str]], JsonObject]:
    data = read_arrays(file)
    try:
        settings = json.loads(str(data.pop("settings", "{}")))
    except ValueError as error:
        raise JaxsinkError(f"{file} is not a readable .npz file: {error}.") from error
    missing = [key for key in (*FIELDS, "token_texts") if key not in data]
    if missing:
        raise JaxsinkError(f"{file} lacks {', '.join(missing)}; record it again with `jaxsink generate --record`.")
    known: dict[str, Any] = {key: data.pop(key) for key in FIELDS} | {"commits": data.pop(COMMITS, None)}
    texts = [[str(text) for text in texts_of_one] for texts_of_one in data.pop("token_texts")]
    known["prompt_length"], known["autoregressive"] = int(known["prompt_length"]), bool(known["autoregressive"])
    if "appending" in data:
        block, seeds, drafts = data.pop("appending").tolist()
        known["appending"] = Appending(block, bool(seeds), bool(drafts))
    return Generation(record=unflatten(data), **known), texts, settings


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz file, or a sentence that names it."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise JaxsinkError(f"{file} is not a readable .npz file: {error}.") from error


def flatten(record: PyTree, prefix: str = "") -> dict[str, np.ndarray]:
    """Leaves of a tree of dicts by path, "split.masked"; a single array has the empty path."""
    if not isinstance(record, Mapping):
        return {prefix.removesuffix("."): np.asarray(record)}
    return {name: leaf for key, part in record.items() for name, leaf in flatten(part, f"{prefix}{key}.").items()}


def unflatten(leaves: Mapping[str, np.ndarray]) -> JsonObject:
    """The inverse: a tree of dicts from paths."""
    tree: JsonObject = {}
    for name, leaf in leaves.items():
        *outer, last = name.split(".")
        node = tree
        for key in outer:
            node = node.setdefault(key, {})
        node[last] = leaf
    return tree
