"""A run: a directory of results with its manifest, which one process at a time goes on with.

identity = {"model": fingerprint(model), "seed": 0}            # what must be the same for the run to go on
with Run.open(Path("out"), "evaluation", identity) as run:
    with run.lines("results") as results:
        results.append(…)

DIR/manifest.json     the identity, and facts for the reader
DIR/.lock             names the process that writes, as long as it does (see locks.py)
DIR/KIND-0001.jsonl   results as lines (see lines.py), a file per part; parts are shared out over processes
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checks import shown
from jaxsink.errors import JaxsinkError
from jaxsink.parallel.hosts import is_main
from jaxsink.runs.atomic import write_json
from jaxsink.runs.files import read_json
from jaxsink.runs.lines import LineFile
from jaxsink.runs.locks import locked
from jaxsink.version import __version__

MANIFEST = "manifest.json"
FORMAT = 2
LIBRARIES = ("jax", "jaxlib", "flax", "numpy", "orbax-checkpoint", "optax", "tokenizers")


@dataclass(frozen=True)
class Run:
    """A directory that this process writes to. part: its share of the work, where several processes have one each."""

    folder: Path
    part: int = 1

    @classmethod
    @contextmanager
    def open(
        cls, folder: Path, kind: str, identity: JsonObject, facts: JsonObject | None = None, part: int = 1
    ) -> Iterator[Run]:
        """Begin the run, or go on with it. kind: what it is, in a word, such as "evaluation".

        A directory that holds something else, or a run with another identity, is refused; so is a second process.
        """
        if not is_main():  # of several hosts that compute together, one writes
            yield cls(folder, part)
            return
        check_free(folder, kind)
        with locked(folder / (".lock" if part == 1 else f".lock-{part:04d}"), folder):
            claim(folder, kind, identity, facts or {})
            yield cls(folder, part)

    def lines(self, kind: str) -> LineFile:
        """This part's file of results of that kind."""
        return LineFile(self.folder / f"{kind}-{self.part:04d}.jsonl")


def check_free(folder: Path, kind: str) -> None:
    """A new directory, an empty one, or one of ours."""
    try:
        if not folder.exists() or (folder / MANIFEST).exists():
            return
        found = next((path for path in folder.iterdir() if not path.name.startswith(".")), None)
    except OSError as error:
        raise JaxsinkError(f"cannot use {folder}: {error.strerror}.") from error
    if found is not None:
        raise JaxsinkError(
            f"{folder} holds {found.name} and no {MANIFEST}, so it is not the directory of a run; choose another for the "
            f"{kind}."
        )


def claim(folder: Path, kind: str, identity: JsonObject, facts: JsonObject) -> None:
    """Write the manifest into a new directory, or see that the directory's own is of this very run."""
    wanted = json.loads(json.dumps(identity))
    if not (folder / MANIFEST).is_file():
        write_json(folder / MANIFEST, {**wanted, **facts, **about(kind)})
        return
    found = read_manifest(folder, kind)
    for key, value in wanted.items():
        if found.get(key) != value:
            raise JaxsinkError(
                f"{folder} holds another {kind}: {difference(key, found.get(key), value)}; choose another --out, or repeat "
                "the command that began it."
            )


def read_manifest(folder: Path, kind: str) -> dict[str, Any]:
    """The manifest of a run of that kind."""
    path = folder / MANIFEST
    if not os.path.lexists(path):
        raise JaxsinkError(f"{folder} holds no {kind}; begin one there first.")
    try:
        found = read_json(path)
        known, form = found["kind"], found["format"]
    except (KeyError, JaxsinkError) as error:
        raise JaxsinkError(f"{path} is not the manifest of a run; choose another directory.") from error
    if known != kind:
        raise JaxsinkError(f"{folder} holds a run of another kind ({known}, not {kind}); choose another directory.")
    if form != FORMAT:
        raise JaxsinkError(
            f"{path} has format {shown(form)}, where this jaxsink ({__version__}) has {FORMAT}; go on with the version that "
            "began the run, or choose another directory."
        )
    return found


def about(kind: str) -> JsonObject:
    """What a reader needs to know of program and machine."""
    return {
        "kind": kind,
        "format": FORMAT,
        "jaxsink": __version__,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        "machine": {
            "devices": [str(device.device_kind) for device in jax.devices()],
            "cores": os.cpu_count(),
            "system": platform.system(),
            "processor": platform.machine(),
        },
    }


def difference(name: str, found: Any, wanted: Any) -> str:
    """Where two parts of manifests differ, in a few words."""
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        key = next(key for key in (*wanted, *found) if found.get(key) != wanted.get(key))
        return difference(f"{name} {key}", found.get(key), wanted.get(key))
    if max(len(str(found)), len(str(wanted))) > 40:
        return f"{name} differs"
    return f"{name} is {found}, not {wanted}"
