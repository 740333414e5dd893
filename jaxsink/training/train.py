"""`jaxsink.train`: one of the built-in models, by name, from the first step to its figures."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checkpoints.gcs import local
from jaxsink.errors import JaxsinkError, check_keywords, option
from jaxsink.parallel.mesh import choose_devices
from jaxsink.runs.progress import Task, stage
from jaxsink.runs.stopping import IsStopped, never
from jaxsink.training.run import Progress, Training
from jaxsink.training.settings import Settings
from jaxsink.training.step import data_mesh
from jaxsink.zoo.builtin import builtin
from jaxsink.zoo.resolve import NAMES

FIXED = "objective"  # follows from the model


def train(
    name: str,
    out: str | os.PathLike[str],
    *,
    extra_sink: bool = False,
    devices: int | None = None,
    problems: int = 1000,
    is_stopped: IsStopped = never,
    **settings: Any,
) -> JsonObject:
    """Train a built-in model on generated word problems, and measure its accuracy; goes on with what is in `out`.

    name        "mini-llama", "mini-llada" or "mini-dream"
    out         gets the model, models along the way, loss.csv and result.json, which is what this returns
    extra_sink  add one token that sees itself only and that all others see
    devices     that share each batch; None: all
    problems    held-out ones, for the accuracy
    is_stopped  is asked after every step; when it is true, everything is saved and StoppedError raised
    settings    fields of jaxsink.training.settings.Settings; others are as the shipped model was trained
    """
    if name not in NAMES:
        raise JaxsinkError(f"there is no built-in model {name!r}; there are {', '.join(NAMES)}.")
    if problems < 1:
        raise JaxsinkError(f"--problems must be at least 1, and is {problems}.")
    check_keywords("train", settings, (field.name for field in dataclasses.fields(Settings) if field.name != FIXED))
    mesh, known = data_mesh(choose_devices(devices)), builtin(name)
    chosen = dataclasses.replace(known.settings, **settings)
    config = known.config.replace(extra_sink=extra_sink)
    training = Training(name, config, known.sampler, chosen, local(out, "--out"))
    with stage(name, total=chosen.steps, unit="steps", detail="preparing") as task:
        training.train(mesh, watching(task), is_stopped=is_stopped)
    return training.examine(problems, again(name, chosen, known.settings, extra_sink))


def again(name: str, settings: Settings, usual: Settings, extra_sink: bool) -> str:
    """The command that trains this model, for its card."""
    changed = {key: value for key, value in settings.to_dict().items() if value != getattr(usual, key)}
    options = [f"{option(key)} {value}" for key, value in changed.items()]
    options += ["--extra-sink"] if extra_sink else []
    return " ".join(["jaxsink train", name, f"--out runs/{name}", *options])


def watching(task: Task) -> Callable[[Progress], None]:
    """A listener of a run that says how far it is."""

    def show(now: Progress) -> None:
        parts = ["compiling"] if now.compiling else []
        parts += [] if now.loss is None else [f"loss {now.loss:.4f}", f"{now.tokens_per_second:,.0f} tokens/s"]
        task.update(now.step, detail=", ".join(parts))

    return show
