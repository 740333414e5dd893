"""The state of a run on the disk: complete or not there, and restored bit for bit.

    states/00002000/
      state.json       how long the run has taken
      arrays/          an Orbax checkpoint, by the names of the tree

A state is written beside its target and renamed, then those before it are removed.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxsink.checkpoints.storage import abandon, first_line, orbax, without_chatter
from jaxsink.errors import JaxsinkError
from jaxsink.nn.fingerprint import hash_of
from jaxsink.runs.atomic import new_directory
from jaxsink.training.step import Metrics, State

MARKER = "state.json"
KEPT = 2  # the newest states; one more than needed, should the disk lose the last


@dataclass(frozen=True)
class Passed:
    """What a run has behind it, beside its weights. waiting: metrics of steps that are not on the curve yet."""

    seconds: float = 0.0
    waiting: tuple[Metrics, ...] = ()


def save_state(folder: Path, state: State, passed: Passed) -> None:
    """Add the state of `state.step` to the folder, and remove those that are no longer needed."""
    step = int(state.step)
    wrong = [name for name, array in _named(state).items() if not bool(jnp.isfinite(array).all())]
    if wrong:
        raise JaxsinkError(
            f"training: step {step} made {wrong[0]!r} NaN or infinite, so its state is not saved; lower the learning rate."
        )
    about = {
        "step": step,
        "seconds": passed.seconds,
        "waiting": [[float(value) for value in metrics] for metrics in passed.waiting],
        "sums": hash_of(_named(state).items()),
    }
    target = folder / f"{step:08d}"
    with without_chatter(), new_directory(target, MARKER, overwrite=True) as partial:
        orbax().save(_arrays(partial), _named(state))
        (partial / MARKER).write_text(json.dumps(about) + "\n", encoding="utf-8")
    for old in _steps(folder)[:-KEPT]:
        shutil.rmtree(folder / f"{old:08d}")


def latest(folder: Path) -> int | None:
    """The newest step whose state is there."""
    return next(iter(reversed(_steps(folder))), None)


def restore_state(folder: Path, step: int, like: State) -> tuple[State, Passed]:
    """The state, and what it had behind it; `like` gives the tree, its shapes and where the arrays belong."""
    state = folder / f"{step:08d}"
    wanted = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like)
    try:
        with without_chatter():
            found = orbax().load(_arrays(state), _named(wanted))
        restored = jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in _named(wanted)])
        about = json.loads((state / MARKER).read_text(encoding="utf-8"))
        if about["sums"] != hash_of(_named(restored).items()):
            raise ValueError("its arrays are not those that were written")
        passed = Passed(float(about["seconds"]), tuple(Metrics(*values) for values in about["waiting"]))
    except Exception as error:  # Orbax raises many kinds
        abandon(error)
        raise JaxsinkError(
            f"{state} is damaged ({first_line(error)}); delete it to continue from the one before."
        ) from error
    return restored, passed


def _arrays(state: Path) -> Path:
    """Orbax takes absolute paths only."""
    return state.absolute() / "arrays"


def _named(state: Any) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _steps(folder: Path) -> list[int]:
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdigit() and (folder / name / MARKER).is_file())
