"""A training run in a directory: start it again and it continues, and ends as if it had never been interrupted.

    DIR/
      manifest.json       what is trained and how
      loss.csv            the loss curve
      sinks.csv           loss on held-out data, and sinks, before the first step and at every checkpoint
      states/00002000/    weights and optimizer to continue from
      checkpoints/000250/ models along the way, as `jaxsink.load` reads them
      model/              the trained model with its tokenizer and its card
      result.json         losses, accuracy, minutes, speed

Data, noise and learning rate of a step follow from its number, so that the state of a run is its weights, its
optimizer's moments and that number.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checkpoints.load import load
from jaxsink.checkpoints.storage import MANIFEST
from jaxsink.checkpoints.writer import writer
from jaxsink.errors import JaxsinkError
from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.transformer import Model
from jaxsink.runs.atomic import write_json, write_text
from jaxsink.runs.run import Run
from jaxsink.runs.stopping import IsStopped, StoppedError, never
from jaxsink.sampling.registry import to_dict
from jaxsink.training.card import write_card
from jaxsink.training.curve import Curve, check_finite
from jaxsink.training.data import TaskData
from jaxsink.training.evaluate import accuracy
from jaxsink.training.flops import flops_per_token
from jaxsink.training.recipe import Recipe
from jaxsink.training.start import small_model
from jaxsink.training.states import Passed, latest, restore_state, save_state
from jaxsink.training.step import Lesson, State, data_mesh, make_step, start, whole_model
from jaxsink.training.tensorboard import Board, no_board
from jaxsink.training.watch import Look, look, read_looks, validation_loss, write_looks

KIND = "training"
LOG = 10  # steps per line of the curve
SAVE_SECONDS = 60.0
STORED = "bfloat16"
LOOKED_AT = 16  # held-out sequences, at every checkpoint …
AT_THE_END = 128  # … and at the end
TOGETHER = 16  # of them run together, at most


@dataclass(frozen=True)
class Progress:
    step: int
    steps: int
    loss: float | None = None  # mean of the last steps; None before there is one
    tokens_per_second: float | None = None  # since this process began
    gflops: float | None = None  # 10⁹ operations of the model per second
    compiling: bool = False  # the next step waits for its program


Listener = Callable[[Progress], None]


@dataclass(frozen=True)
class Training:
    """A recipe and the directory in which it is carried out. board: also keeps the figures, for TensorBoard."""

    recipe: Recipe
    out: Path
    board: Board = field(default=no_board)

    def train(
        self,
        mesh: Mesh | None = None,
        listener: Listener = lambda progress: None,
        until: int | None = None,
        is_stopped: IsStopped = never,
    ) -> Model:
        """All steps that are left, or those up to `until`; the model is in the directory after the last.

        Raises StoppedError after the step in which `is_stopped()` turns true, with everything saved.
        """
        devices = data_mesh() if mesh is None else mesh
        self.recipe.settings.check(devices.size)
        with Run.open(self.out, KIND, self.identity):
            model, step = self._take_steps(devices, listener, until, is_stopped)
            if step == self.recipe.settings.steps:
                self.export(model, self.out / "model", step)
        return model

    @property
    def identity(self) -> JsonObject:
        recipe = self.recipe
        known = {"name": recipe.name, "settings": recipe.settings.to_dict(), "config": recipe.config.to_dict()}
        return {**known, "data": recipe.data.facts}

    @cached_property
    def lesson(self) -> Lesson:
        return Lesson(self.recipe.config, self.recipe.settings, self.recipe.data.prompt)

    @property
    def tokens_per_step(self) -> int:
        return self.recipe.settings.batch * self.recipe.data.length

    def _take_steps(self, mesh: Mesh, tell: Listener, until: int | None, is_stopped: IsStopped) -> tuple[Model, int]:
        settings, data = self.recipe.settings, self.recipe.data
        state, base, passed = self.begin(mesh)
        first = done = int(state.step)
        last = settings.steps if until is None else min(until, settings.steps)
        step, milestones = make_step(self.lesson, base, mesh), settings.milestones()
        curve, waiting = Curve.resume(self.out / "loss.csv", done), list(passed.waiting)
        looks = read_looks(self.out / "sinks.csv", done)
        begin, saved, looking = time.perf_counter(), 0.0, 0.0
        now = Progress(done, settings.steps)
        if not looks and done == 0:
            looking -= time.perf_counter()
            looks.append(self.look_at(whole_model(state.trained, base), done))
            write_looks(self.out / "sinks.csv", looks)
            looking += time.perf_counter()
        while done < last:
            compiles = done in (first, settings.opening_steps)
            if compiles:
                tell(replace(now, compiling=True))
            state, metrics = step(state, data.batch(done, settings.batch, settings.seed), done)
            waiting.append(metrics)
            if compiles:
                tell(now)
            done += 1
            if done in milestones:
                check_finite(done, waiting)
                looking -= time.perf_counter()
                model = whole_model(state.trained, base)
                self.export(model, self.out / "checkpoints" / f"{done:06d}", done)
                looks.append(self.look_at(model, done))
                write_looks(self.out / "sinks.csv", looks)
                looking += time.perf_counter()
            if done % LOG == 0 or done == last:
                loss, waiting = curve.add(done, waiting), []
                self.board(done, {"loss": loss})
                rate = (done - first) * self.tokens_per_step / (time.perf_counter() - begin - looking)
                now = Progress(done, settings.steps, loss, rate, rate * self.flops / 1e9)
                tell(now)
            seconds, stopped = time.perf_counter() - begin - looking, is_stopped()
            if stopped or done == last or (not waiting and seconds - saved > SAVE_SECONDS):
                check_finite(done, waiting)
                save_state(self.out / "states", state, Passed(passed.seconds + seconds, tuple(waiting)))
                saved = seconds
            if stopped and done < last:
                raise StoppedError
        return whole_model(state.trained, base), done

    @cached_property
    def flops(self) -> float:
        """Per token."""
        return flops_per_token(self.recipe.config, self.recipe.data.length)

    def begin(self, mesh: Mesh) -> tuple[State, Model | None, Passed]:
        """(the newest state on the disk, or the first of all; the model that adapters are added to; what is behind it)."""
        state, model = start(self.first_model(), self.recipe.settings, mesh)
        base = model if self.recipe.settings.lora else None
        step = latest(self.out / "states")
        if step is None:
            return state, base, Passed()
        state, passed = restore_state(self.out / "states", step, state)
        return state, base, passed

    def first_model(self) -> Model:
        """Random weights, or those of the model that the run starts from, under this run's configuration."""
        recipe = self.recipe
        fresh = small_model(recipe.config, recipe.settings.seed)
        if recipe.settings.init is None:
            return fresh
        given = dict(named_leaves(load(recipe.settings.init, "float32"))[0])
        leaves, treedef = named_leaves(fresh)
        if "extra_sink" in dict(leaves):  # a model without that token may get one
            given.setdefault("extra_sink", dict(leaves)["extra_sink"])
        if {name: leaf.shape for name, leaf in given.items()} != {name: leaf.shape for name, leaf in leaves}:
            raise JaxsinkError(f"{recipe.settings.init} has not the shape of {recipe.name}; start from one that has.")
        return jax.tree.unflatten(treedef, [given[name] for name, _ in leaves])

    def look_at(self, model: Model, step: int) -> Look:
        """What is seen of the model on held-out data after so many steps."""
        held_out = self.recipe.data.validation(LOOKED_AT)
        seen = look(model, self.lesson, held_out, step, min(TOGETHER, len(held_out.tokens)))
        self.board(step, {name: value for name, value in vars(seen).items() if name != "step"})
        return seen

    def export(self, model: Model, path: Path, step: int) -> None:
        """Write the model as a checkpoint with its tokenizer, once."""
        if (path / MANIFEST).is_file():
            return
        recipe = self.recipe
        source = {"kind": "trained", "path": recipe.name, "step": step, "settings": recipe.settings.to_dict()}
        with writer(path, recipe.config, STORED, source, sampler=to_dict(recipe.sampler)) as out:
            for name, leaf in named_leaves(model.stacked().astype(STORED))[0]:
                out.add_parameter(name, np.asarray(leaf))
            recipe.data.write_tokenizer(out.folder)

    def examine(self, total: int, command: str) -> JsonObject:
        """How good the stored model is, with the figures of the run; result.json and the card.

        total: held-out problems, for models of the word problems.
        """
        recipe, steps = self.recipe, self.recipe.settings.steps
        model = load(self.out / "model", "float32").unrolled()
        seconds = json.loads((self.out / "states" / f"{steps:08d}" / "state.json").read_text(encoding="utf-8"))[
            "seconds"
        ]
        tokens = steps * self.tokens_per_step
        result: JsonObject = {
            "name": recipe.name,
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(model)),
            "stored": STORED,
            "steps": steps,
            "tokens": tokens,
            "minutes": seconds / 60,
            "machine": machine(),
            "tokens_per_second": tokens / seconds,
            "gflops": tokens * self.flops / seconds / 1e9,
            "validation_loss": held_out_loss(recipe, model),
            "loss": Curve.resume(self.out / "loss.csv", steps).at(12),
            "sinks": [vars(one) for one in read_looks(self.out / "sinks.csv", steps)],
        }
        if isinstance(recipe.data, TaskData):
            result["accuracy"] = accuracy(model, recipe.sampler, total).to_dict()
        write_json(self.out / "result.json", result)
        write_text(self.out / "model" / "README.md", write_card(recipe, result, command))
        return result


def machine() -> str:
    """What this process runs on, in words."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return f"a CPU with {os.cpu_count()} cores"
    return f"a machine with {jax.device_count()} x {device.device_kind}"


def held_out_loss(recipe: Recipe, model: Model) -> float:
    """Nats per token, of data that training never sees. model: with unrolled layers, in float32"""
    held_out = recipe.data.validation(AT_THE_END)
    lesson = Lesson(recipe.config, recipe.settings, recipe.data.prompt)
    return validation_loss(model, lesson, held_out, min(TOGETHER, len(held_out.tokens)))
