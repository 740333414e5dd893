"""A training run in a directory: start it again and it continues, and ends as if it had never been interrupted.

    DIR/
      manifest.json       what is trained and how
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

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checkpoints.load import load
from jaxsink.checkpoints.storage import MANIFEST
from jaxsink.checkpoints.writer import writer
from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.transformer import Model
from jaxsink.runs.atomic import write_json, write_text
from jaxsink.runs.run import Run
from jaxsink.runs.stopping import IsStopped, StoppedError, never
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.registry import to_dict
from jaxsink.tasks import vocabulary
from jaxsink.tasks.batches import LENGTH, training_batch
from jaxsink.training.card import write_card
from jaxsink.training.curve import Curve
from jaxsink.training.evaluate import accuracy
from jaxsink.training.settings import Settings
from jaxsink.training.start import small_model
from jaxsink.training.states import Passed, latest, restore_state, save_state
from jaxsink.training.step import State, data_mesh, make_step, start

KIND = "training"
LOG = 10  # steps per line of the curve
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
class Training:
    """name: what the model is called; config: what is trained; sampler: how it writes when it is examined."""

    name: str
    config: ModelConfig
    sampler: Sampler
    settings: Settings
    out: Path

    def train(
        self,
        mesh: Mesh | None = None,
        listener: Listener = lambda progress: None,
        until: int | None = None,
        is_stopped: IsStopped = never,
    ) -> State:
        """All steps that are left, or those up to `until`; the model is there after the last.

        Raises StoppedError after the step in which `is_stopped()` turns true, with everything saved.
        """
        devices = data_mesh() if mesh is None else mesh
        self.settings.check(devices.size)
        with Run.open(self.out, KIND, self.identity):
            state = self._take_steps(devices, listener, until, is_stopped)
            if int(state.step) == self.settings.steps:
                self.export(state.model, self.out / "model", self.settings.steps)
        return state

    @property
    def identity(self) -> JsonObject:
        return {"name": self.name, "settings": self.settings.to_dict(), "config": self.config.to_dict()}

    def _take_steps(self, mesh: Mesh, tell: Listener, until: int | None, is_stopped: IsStopped) -> State:
        state, passed = self.begin(mesh)
        first = done = int(state.step)
        last = self.settings.steps if until is None else min(until, self.settings.steps)
        step, milestones = make_step(self.settings, mesh), self.settings.milestones()
        curve, waiting = Curve.resume(self.out / "loss.csv", done), list(passed.waiting)
        begin, saved = time.perf_counter(), 0.0
        now = Progress(done, self.settings.steps)
        while done < last:
            compiles = done in (first, self.settings.opening_steps)
            if compiles:
                tell(replace(now, compiling=True))
            batch = training_batch(done, self.settings.batch, self.settings.seed)
            state, metrics = step(state, batch, done)
            waiting.append(metrics)
            if compiles:
                tell(now)
            done += 1
            if done in milestones:
                self.export(state.model, self.out / "checkpoints" / f"{done:06d}", done)
            seconds = time.perf_counter() - begin
            if done % LOG == 0 or done == last:
                loss, waiting = curve.add(done, waiting), []
                now = Progress(done, self.settings.steps, loss, (done - first) * self.settings.batch * LENGTH / seconds)
                tell(now)
            stopped = is_stopped()
            if stopped or done == last or (not waiting and seconds - saved > SAVE_SECONDS):
                save_state(self.out / "states", state, Passed(passed.seconds + seconds, tuple(waiting)))
                saved = seconds
            if stopped and done < last:
                raise StoppedError
        return state

    def begin(self, mesh: Mesh) -> tuple[State, Passed]:
        """The newest state on the disk, or the first of all."""
        state = start(self.first_model(), self.settings, mesh)
        step = latest(self.out / "states")
        return (state, Passed()) if step is None else restore_state(self.out / "states", step, state)

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
        write_json(self.out / "result.json", result)
        card = write_card(self.name, self.config, self.sampler, self.settings, result, command)
        write_text(self.out / "model" / "README.md", card)
        return result
