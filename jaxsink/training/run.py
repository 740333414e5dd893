"""A training run in a directory: start it again and it continues, and ends as if it had never been interrupted.

    DIR/
      run.json            what is trained and how; a directory holds one run
      loss.csv            the loss curve
      states/00002000/    weights and optimizer to continue from
      checkpoints/000250/ models along the way, as `jaxsink.load` reads them
      model/              the trained model with its tokenizer and its card
      result.json         accuracy, minutes, tokens per second

Data, noise and learning rate of a step follow from its number, so that the state of a run is its weights, its
optimizer's moments and that number.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxsink.checkpoints.load import load
from jaxsink.checkpoints.storage import MANIFEST
from jaxsink.checkpoints.writer import writer
from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.transformer import Model
from jaxsink.sampling.registry import to_dict
from jaxsink.tasks import vocabulary
from jaxsink.tasks.batches import LENGTH, training_batch
from jaxsink.training.card import write_card
from jaxsink.training.curve import Curve
from jaxsink.training.evaluate import accuracy
from jaxsink.training.settings import Settings
from jaxsink.training.start import small_model
from jaxsink.training.states import latest, restore_state, save_state
from jaxsink.training.step import Metrics, State, data_mesh, make_step, start
from jaxsink.version import __version__

LOG = 10  # steps per line of the curve; states are saved there only
SAVE_SECONDS = 60.0
STORED = "bfloat16"


@dataclass(frozen=True)
class Progress:
    step: int
    steps: int
    loss: float | None = None  # mean of the last steps; None before there is one
    tokens_per_second: float | None = None  # since this process began
    compiling: bool = False  # the next step waits for its program


Listener = Callable[[Progress], None]


@dataclass(frozen=True)
class Run:
    """name: what the model is called; config: what is trained; sampler: how it writes when it is examined."""

    name: str
    config: ModelConfig
    sampler: Any
    settings: Settings
    out: Path

    def train(self, mesh: Mesh | None = None, listener: Listener | None = None, until: int | None = None) -> State:
        """All steps that are left, or those up to `until`; the model is there after the last."""
        devices = data_mesh() if mesh is None else mesh
        self.settings.check(devices.size)
        self.claim()
        state, seconds = self.begin(devices)
        step, done = make_step(self.settings, devices), int(state.step)
        curve, waiting = Curve.resume(self.out / "loss.csv", done), list[Metrics]()
        begin, saved = time.perf_counter(), 0.0
        first, last = done, self.settings.steps if until is None else min(until, self.settings.steps)
        milestones, now = self.settings.milestones(), Progress(done, self.settings.steps)
        tell = listener or (lambda progress: None)
        while done < last:
            if done in (first, self.settings.opening_steps):
                tell(replace(now, compiling=True))
            batch = training_batch(done, self.settings.batch, self.settings.seed)
            state, metrics = step(state, batch, done)
            waiting.append(metrics)
            if done in (first, self.settings.opening_steps):
                tell(now)
            done += 1
            if done in milestones:
                self.export(state.model, self.out / "checkpoints" / f"{done:06d}", done)
            if done % LOG and done != last:
                continue
            loss, waiting = curve.add(done, waiting), []
            passed = time.perf_counter() - begin
            now = Progress(done, self.settings.steps, loss, (done - first) * self.settings.batch * LENGTH / passed)
            tell(now)
            if passed - saved > SAVE_SECONDS or done == last:
                save_state(self.out / "states", state, seconds + passed)
                saved = passed
        if done == self.settings.steps:
            self.export(state.model, self.out / "model", done)
        return state

    def claim(self) -> None:
        """Write run.json, or find that the directory holds this very run."""
        path = self.out / "run.json"
        if path.is_file():
            found = json.loads(path.read_text(encoding="utf-8"))
            other = difference(found, self)
            if other:
                raise JaxsinkError(f"{self.out} holds another run ({other}); choose another directory.")
            return
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise JaxsinkError(f"{self.out} exists and holds no training run; choose another directory.")
        self.out.mkdir(parents=True, exist_ok=True)
        partial = self.out / ".run.json.partial"
        facts = {"name": self.name, "settings": self.settings.to_dict(), "config": self.config.to_dict()}
        partial.write_text(json.dumps({**facts, "jaxsink": __version__}, indent=2) + "\n", encoding="utf-8")
        partial.rename(path)

    def begin(self, mesh: Mesh) -> tuple[State, float]:
        """The newest state on the disk, or the first of all."""
        state = start(self.first_model(), self.settings, mesh)
        step = latest(self.out / "states")
        return (state, 0.0) if step is None else restore_state(self.out / "states", step, state)

    def first_model(self) -> Model:
        """Random weights, or those of the model that the run starts from, under this run's configuration."""
        fresh = small_model(self.config, self.settings.seed)
        if self.settings.init is None:
            return fresh
        given = dict(named_leaves(load(self.settings.init, "float32"))[0])
        leaves, treedef = named_leaves(fresh)
        if "extra_sink" in dict(leaves):  # a model without that token may get one
            given.setdefault("extra_sink", dict(leaves)["extra_sink"])
        if {name: leaf.shape for name, leaf in given.items()} != {name: leaf.shape for name, leaf in leaves}:
            raise JaxsinkError(f"{self.settings.init} has not the shape of {self.name}; start from one that has.")
        return jax.tree.unflatten(treedef, [given[name] for name, _ in leaves])

    def export(self, model: Model, path: Path, step: int) -> None:
        """Write the model as a checkpoint with its tokenizer, once."""
        if (path / MANIFEST).is_file():
            return
        source = {"kind": "trained", "path": self.name, "step": step, "settings": self.settings.to_dict()}
        with writer(path, self.config, STORED, source, sampler=to_dict(self.sampler)) as out:
            for name, leaf in named_leaves(model.stacked().astype(STORED))[0]:
                out.add_parameter(name, np.asarray(leaf))
            for name in vocabulary.FILES:
                shutil.copy(vocabulary.folder() / name, out.folder / name)

    def examine(self, total: int, command: str) -> dict[str, Any]:
        """Accuracy of the stored model on held-out problems, with the figures of the run; result.json and the card."""
        model = load(self.out / "model", "float32")
        found = accuracy(model, self.sampler, total)
        folder, steps = self.out / "states", self.settings.steps
        seconds = json.loads((folder / f"{steps:08d}" / "state.json").read_text(encoding="utf-8"))["seconds"]
        curve = Curve.resume(self.out / "loss.csv", steps)
        result = {
            "name": self.name,
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(model)),
            "stored": STORED,
            "steps": steps,
            "tokens": steps * self.settings.batch * LENGTH,
            "minutes": seconds / 60,
            "tokens_per_second": steps * self.settings.batch * LENGTH / seconds,
            "accuracy": found.to_dict(),
            "loss": curve.at(12),
        }
        (self.out / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        card = write_card(self.name, self.config, self.sampler, self.settings, result, command)
        (self.out / "model" / "README.md").write_text(card, encoding="utf-8")
        return result


def difference(found: dict[str, Any], run: Run) -> str | None:
    """The first thing in which the run on the disk differs; settings that did not exist then have their defaults."""
    if found["name"] != run.name:
        return f"of {found['name']}"
    before = {**Settings(**found["settings"]).to_dict(), **ModelConfig.from_dict(found["config"]).to_dict()}
    for key, value in {**run.settings.to_dict(), **run.config.to_dict()}.items():
        if before[key] != value:
            return f"{key.replace('_', ' ')} {before[key]}, not {value}"
    return None
