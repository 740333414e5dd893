"""Generations on the disk: the .npz file that `jaxsink generate --record` writes and `jaxsink report` reads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
from jaxtyping import Bool, Float, Int, PyTree, Shaped

from jaxsink.arrays import check_axes, check_texts
from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checkpoints.gcs import local
from jaxsink.checks import ANY, Range, at_least, check_value
from jaxsink.errors import JaxsinkError
from jaxsink.nn.recorder import Recorder
from jaxsink.recording.named import Shape, named_recorders, step_bytes
from jaxsink.runs.atomic import check_writable, new_file
from jaxsink.runs.files import first_words, interpreting, parse_json
from jaxsink.runs.progress import human_bytes
from jaxsink.sampling.canvas import Appending
from jaxsink.sampling.generation import Generation
from jaxsink.text.token_texts import token_texts
from jaxsink.text.tokenizer import Tokenizer

LARGE = 2e9  # bytes of a record that deserve a warning
FIELDS = ("tokens", "committed_at", "mask", "recorded_steps", "steps", "prompt_length", "autoregressive")
LARGEST = 2**31 - 1  # of what is stored as int32
COMMITS = "commits"  # only of samplers that edit what they wrote
KINDS: dict[str, tuple[Any, Range]] = {  # of the arrays, and between which numbers
    "tokens": (Int[np.ndarray, "B S"], at_least(0, LARGEST)),
    "committed_at": (Int[np.ndarray, "B S"], at_least(-1, LARGEST)),
    "mask": (Bool[np.ndarray, "B S"], ANY),
    "recorded_steps": (Int[np.ndarray, " T"], at_least(0, LARGEST)),
    "steps": (Int[np.ndarray, " B"], at_least(0, LARGEST)),
    "prompt_length": (Int[np.ndarray, ""], at_least(0, LARGEST)),
    "autoregressive": (Bool[np.ndarray, ""], ANY),
    COMMITS: (Int[np.ndarray, "N B S"], at_least(-1, LARGEST)),
    "appending": (Int[np.ndarray, " 5"], at_least(0, LARGEST)),
}
SHARES = {"received", "masked", "unmasked", "prompt", "last_row", "maps"}  # of attention, which are never negative
RECORDED = Shaped[np.ndarray, "T L B ..."]
LENS_KINDS: dict[str, tuple[Any, Range]] = {  # of what `record.lens()` kept
    "token": (Int[np.ndarray, "T L B Q K"], at_least(-1, LARGEST)),
    "log_prob": (Float[np.ndarray, "T L B Q K"], ANY),
    "position": (Int[np.ndarray, "T L B Q"], at_least(-1, LARGEST)),
}
WORDS = "words"  # of the settings: the texts of the tokens that a lens names


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
        if target.is_dir():
            raise JaxsinkError(f"--record: {target} cannot be written as a file; choose another name.")
        check_writable(target)
        if target.suffix.lower() != ".npz":
            raise JaxsinkError(f"--record: {target} must end in .npz, which `jaxsink report` reads.")
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
        ids = named_tokens(generation.record)
        words = {WORDS: dict(zip(map(str, ids), token_texts(tokenizer, ids), strict=True))} if ids else {}
        arrays["settings"] = np.array(json.dumps(settings | words))
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
    missing = [key for key in (*FIELDS, "token_texts") if key not in data]
    if missing:
        raise JaxsinkError(f"{file} lacks {', '.join(missing)}; record it again with `jaxsink generate --record`.")
    settings = read_settings(file, data.pop("settings", np.array("{}")))
    record = {name: leaf for name, leaf in data.items() if name not in (*KINDS, "token_texts")}
    check_arrays(file, data, record)
    known: dict[str, Any] = {key: data[key] for key in FIELDS} | {"commits": data.get(COMMITS)}
    known["prompt_length"], known["autoregressive"] = int(known["prompt_length"]), bool(known["autoregressive"])
    if "appending" in data:
        block, *flags = data["appending"].tolist()
        known["appending"] = Appending(block, *map(bool, flags))
    return Generation(record=unflatten(record), **known), data["token_texts"].tolist(), settings


def check_arrays(file: Path, data: Mapping[str, np.ndarray], record: Mapping[str, np.ndarray]) -> None:
    """Every array is of its kind, of the shape that the others have, and between its numbers."""
    sizes: dict[str, tuple[str, int]] = {}
    for name, (hint, allowed) in KINDS.items():
        if name in data:
            check_axes(name, data[name], hint, allowed, str(file), sizes)
    check_texts(f"{file}: token_texts", data["token_texts"], data["tokens"].shape)
    for name, leaf in record.items():
        allowed = at_least(0) if name.rpartition(".")[2] in SHARES else ANY
        check_axes(name or "the record", leaf, RECORDED, allowed, str(file), {axis: sizes[axis] for axis in "TB"})
    length, ends = data["tokens"].shape[1], dict[str, int]()
    for lens in {name.rpartition("token")[0] for name in record}:
        if all(f"{lens}{name}" in record for name in LENS_KINDS):
            shared = {axis: sizes[axis] for axis in "TB"}
            for name, (hint, allowed) in LENS_KINDS.items():
                check_axes(f"{lens}{name}", record[f"{lens}{name}"], hint, allowed, str(file), shared)
            ends[f"{lens}position"] = length + 1  # where logits are shifted, the last query speaks of what is not there
    positions = [name for name in record if name.rpartition(".")[2] == "position"]
    wrong = {
        "prompt_length must lie inside the sequence": data["prompt_length"] > length,
        "mask must have a real token in every sequence": not data["mask"].any(axis=1).all(),
        "recorded_steps must increase": (np.diff(data["recorded_steps"]) <= 0).any(),
        "appending must be a length of blocks and four truth values": "appending" in data
        and not is_appending(data["appending"].tolist()),
        "a recorded position lies outside the sequence": any(
            (record[name] >= ends.get(name, length)).any() for name in positions
        ),
    }
    for what, is_wrong in wrong.items():
        if is_wrong:
            raise JaxsinkError(f"{file}: {what}; record it again with `jaxsink generate --record`.")


def is_appending(values: list[int]) -> bool:
    return len(values) == 5 and values[0] > 0 and set(values[1:]) <= {0, 1}


def read_settings(file: Path, array: np.ndarray) -> JsonObject:
    """How it was made, and the words that a lens names."""
    check_texts(f"{file}: settings", array, ())
    settings = parse_json(file, str(array).encode())
    for name, hint in {"model": str, WORDS: dict[str, str]}.items():
        if name in settings:
            check_value(f"{file}: settings {name}", settings[name], hint)
    return settings


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz file, or a sentence that names it."""
    if file.is_file() and not is_zipfile(file):
        what = "no zip archive" if file.stat().st_size else "empty"
        raise JaxsinkError(f"{file} is not a readable .npz file: it is {what}.")
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except Exception as error:  # whatever a damaged header makes the readers of zip, numpy and Python stumble over
        raise JaxsinkError(f"{file} is not a readable .npz file: {first_words(error)}.") from error


def named_tokens(record: PyTree) -> list[int]:
    """The tokens that a lens names."""
    leaves = [leaf for name, leaf in flatten(record).items() if name.rpartition(".")[2] == "token"]
    return [int(token) for leaf in leaves for token in np.unique(leaf) if token >= 0]


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
