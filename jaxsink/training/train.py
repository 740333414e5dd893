"""`jaxsink.train`: any model on any text, or a built-in one on its word problems, from the first step to its figures."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checkpoints.gcs import local
from jaxsink.checkpoints.load import load
from jaxsink.checks import at_least, check_given
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError, check_keywords, option
from jaxsink.parallel.mesh import choose_devices
from jaxsink.runs.atomic import check_writable
from jaxsink.runs.progress import Task, stage
from jaxsink.runs.stopping import IsStopped, StoppedError, never
from jaxsink.training.data import DataSettings
from jaxsink.training.lens import LensSettings, fit_lens, write_lens
from jaxsink.training.recipe import Recipe, builtin_recipe, is_builtin, is_task, text_recipe
from jaxsink.training.run import Progress, Training
from jaxsink.training.settings import RANGES, Settings
from jaxsink.training.step import data_mesh
from jaxsink.training.tensorboard import board_in, no_board
from jaxsink.zoo.resolve import NAMES

OF_DATA = tuple(field.name for field in dataclasses.fields(DataSettings) if field.name != "sources")
OF_LENS = tuple(field.name for field in dataclasses.fields(LensSettings))
OF_RUN = tuple(field.name for field in dataclasses.fields(Settings))
BLOCK_LENGTH = 16  # of block diffusion, where the model has none


@checked(block_length=at_least(1), devices=at_least(1), problems=at_least(1))
def train(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    data: str | Sequence[str] = (),
    extra_sink: bool = False,
    block_length: int = BLOCK_LENGTH,
    devices: int | None = None,
    problems: int = 1000,
    tensorboard: bool = False,
    lens: bool = False,
    is_stopped: IsStopped = never,
    **settings: Any,
) -> JsonObject:
    """Train a model, and measure how good it is; goes on with what is in `out`.

    Args:
        model: a built-in name, sizes ("6x384x6": layers, width, heads), a published configuration, a .json file
            with one, or a checkpoint, which it then starts from (see jaxsink.training.recipe)
        out: gets the model, models along the way, loss.csv, sinks.csv and result.json, which is what this
            returns
        data: texts: files, directories, "tfds:NAME" (see jaxsink.tasks.corpus); a built-in model needs none
        extra_sink: add one token that sees itself only and that all others see
        block_length: of block diffusion
        devices: that share each batch; None: all
        problems: held-out ones, for the accuracy of a built-in model
        tensorboard: also write event files, into out/tensorboard
        lens: leave the model alone, and fit a tuned lens to it (see jaxsink.training.lens): out gets
            lens.safetensors; takes steps, batch, learning_rate and seed, and the data
        is_stopped: is asked after every step; when it is true, everything is saved and StoppedError raised
        **settings: fields of jaxsink.training.settings.Settings and jaxsink.training.data.DataSettings

    Examples:
        >>> Path("pens.txt").write_text("Ann has 3 pens and buys 2; how many?" * 200) > 0
        True
        >>> result = jaxsink.train("1x32x2", "pens", data="pens.txt", tokenizer="characters", steps=2, batch=8, length=16)
        >>> result["steps"]
        2
    """
    check_keywords("train", settings, (*OF_RUN, *OF_DATA))
    for record in (Settings, DataSettings):
        check_given("train", settings, record, RANGES)
    model = os.fspath(model)
    sources = (data,) if isinstance(data, str) else tuple(data)
    if lens:
        return train_lens(model, local(out, "--out"), sources, settings, is_stopped)
    mesh = data_mesh(choose_devices(devices))
    recipe = make_recipe(model, sources, settings, extra_sink, block_length)
    recipe.settings.check(mesh.size)
    place = local(out, "--out")
    with board_in(place / "tensorboard") if tensorboard else nullcontext(no_board) as board:
        training = Training(recipe, place, board)
        with stage(recipe.name, total=recipe.settings.steps, unit="steps", detail="preparing") as task:
            training.train(mesh, watching(task), is_stopped=is_stopped)
            if is_stopped():  # during the last step: the model is there, and to examine it is what is left
                raise StoppedError
    chosen = {**settings, "extra_sink": extra_sink}
    if recipe.settings.objective == "block_diffusion":
        chosen["block_length"] = block_length
    return training.examine(problems, again(model, sources, recipe, chosen))


def train_lens(
    model: str, place: Path, sources: tuple[str, ...], settings: dict[str, Any], is_stopped: IsStopped
) -> JsonObject:
    """Fit a tuned lens on the data that the model would be trained on, and write it."""
    wanted = {name: value for name, value in settings.items() if name in OF_LENS}
    refused = next((name for name in settings if name not in (*OF_LENS, *OF_DATA)), None)
    if refused is not None:
        raise JaxsinkError(f"train --lens leaves the model as it is, so that {option(refused)} does not apply.")
    chosen = LensSettings(**wanted)
    about_data = {name: value for name, value in settings.items() if name in OF_DATA}
    recipe = make_recipe(model, sources, {"steps": chosen.steps, **about_data}, False, BLOCK_LENGTH)
    check_writable(place / "result.json")
    with stage(f"lens of {recipe.name}", total=chosen.steps, unit="steps", detail="compiling") as task:
        tell = lambda done, loss: task.update(done, detail=f"{loss:.4f} nats")  # noqa: E731
        fitted = fit_lens(load(model), recipe.data, chosen, tell, is_stopped)
    return write_lens(fitted, chosen, place)


def make_recipe(
    model: str, sources: tuple[str, ...], settings: dict[str, Any], extra_sink: bool, block_length: int
) -> Recipe:
    given = {name: value for name, value in settings.items() if name in OF_RUN}
    about_data = {name: value for name, value in settings.items() if name in OF_DATA}
    if is_builtin(model, sources):
        refused = next((name for name in ("objective", *OF_DATA) if name in settings), None)
        if refused is not None:
            raise JaxsinkError(
                f"{model} is trained on its word problems, so that {option(refused)} does not apply; give --data."
            )
        return builtin_recipe(model, given, extra_sink)
    if not sources:
        raise JaxsinkError(
            f"train: only {', '.join(NAMES)} bring data of their own; name texts to train {model} on (--data)."
        )
    if "steps" not in given:
        raise JaxsinkError("train: say for how many steps (--steps).")
    if is_task(sources) and about_data:
        refused = option(next(iter(about_data)))
        raise JaxsinkError(
            f"train: the word problems {sources[0]!r} have their own tokens and length, so that {refused} does not apply."
        )
    return text_recipe(model, DataSettings(sources, **about_data), given, extra_sink, block_length)


def again(model: str, sources: tuple[str, ...], recipe: Recipe, given: dict[str, Any]) -> str:
    """The command that trains this model, for its card."""
    words = ["jaxsink", "train", model, "--out", f"runs/{recipe.name}"]
    words += [word for source in sources for word in ("--data", source)]
    for name, value in given.items():
        if value is True:
            words.append(option(name))
        elif name == "bos" and value is False:
            words.append("--no-bos")
        elif value is not None and value is not False:
            words += [option(name), str(value)]
    return shlex.join(words)


def watching(task: Task) -> Callable[[Progress], None]:
    """A listener of a run that says how far it is."""

    def show(now: Progress) -> None:
        parts = ["compiling"] if now.compiling else []
        parts += [] if now.loss is None else [f"loss {now.loss:.4f}", f"{now.tokens_per_second:,.0f} tokens/s"]
        parts += [] if now.gflops is None else [f"{now.gflops:.0f} GFLOP/s"]
        task.update(now.step, detail=", ".join(parts))

    return show
