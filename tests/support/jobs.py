"""The long jobs in miniature, for tests of what may happen to them: python -m support.jobs NAME OUT [DEVICES].

As a process of its own, a job tells on stdout whenever it has kept something, and then waits a moment.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from jaxsink_converters import convert as conversion
from jaxsink_experiments import fig3_histogram, table1_masking

import jaxsink
from jaxsink.cli import main as command
from jaxsink.evals.conditions import conditions
from jaxsink.evals.engine import Evaluation, evaluate
from jaxsink.evals.results import read_results
from jaxsink.nn.parameters import named_leaves
from jaxsink.runs import arrays
from jaxsink.runs.lines import LineFile
from jaxsink.runs.stopping import IsStopped, stop_on_sigterm
from jaxsink.study import Study
from jaxsink.study.experiments import experiment_of
from jaxsink.study.run import conduct
from jaxsink.tasks.exam import gold_exam, task_exam
from jaxsink.training import run as training
from jaxsink.training.data import DataSettings
from jaxsink.training.recipe import text_recipe
from jaxsink.training.run import Training
from jaxsink.training.step import data_mesh
from support import checkpoints
from support.miniatures import random_model, random_subject
from support.training import tiny_run

PAUSE = 0.3  # seconds after something was kept, in a process of its own


@dataclass(frozen=True)
class Job:
    """run(out, is_stopped, devices) does what is left; results(out): all that it is for; lines: whether they are lines."""

    run: Callable[[Path, IsStopped, int], object]
    results: Callable[[Path], Any]
    lines: bool = True


def run_evaluation(out: Path, is_stopped: IsStopped, devices: int) -> None:
    model = random_model("mini-llada")
    exam = task_exam(model.config, range(8))
    wanted = conditions((0, 2), ("top", "random"))
    spread = jax.devices()[:devices] if devices > 1 else None
    evaluate(Evaluation(model, exam, wanted, rows=6, devices=spread), out, is_stopped)


def run_likelihood(out: Path, is_stopped: IsStopped, devices: int) -> None:
    model = random_model("mini-llada")
    exam = gold_exam(task_exam(model.config, range(20)), 1)
    spread = jax.devices()[:devices] if devices > 1 else None
    wanted = conditions((0, 2), ("top", "random"))
    evaluate(Evaluation(model, exam, wanted, rows=8, devices=spread), out, is_stopped)


class Near(list[float]):
    """Numbers that equal others up to rounding, which the place of a sequence in its batch may change."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Near) and np.allclose(self, other, rtol=1e-4, atol=1e-5)


def likelihood_results(out: Path) -> dict[Any, Near]:
    return {
        key: Near(part[name] for part in (line, *line["t"].values()) for name in ("log_prob", "tokens", "kl"))
        for key, line in read_results(out).items()
    }


def run_study(out: Path, is_stopped: IsStopped, devices: int) -> None:
    study = Study([random_subject("mini-llama")], out, problems=3, generations=2, rows=10, eps=0.5)
    conduct(study, [experiment_of(module) for module in (fig3_histogram, table1_masking)], is_stopped)


def study_results(out: Path) -> dict[str, bytes]:
    found = [*(out / "experiments").iterdir(), *(out / "player").iterdir(), *(out / "answers").rglob("*.jsonl")]
    return {str(path.relative_to(out)): path.read_bytes() for path in found}


def run_training(out: Path, is_stopped: IsStopped, devices: int) -> None:
    tiny_run(out, steps=60).train(data_mesh(jax.devices()[:devices]), is_stopped=is_stopped)


def run_text_training(out: Path, is_stopped: IsStopped, devices: int) -> None:
    text = out.parent / "input.txt"
    text.write_text("To be, or not to be: that is the question.\n" * 60, encoding="utf-8")
    data = DataSettings((str(text),), tokenizer="characters", length=16)
    settings = {"objective": "diffusion", "steps": 40, "batch": 4, "checkpoints": 2, "warmup": 1, "optimizer": "adamw"}
    recipe = text_recipe("1x16x2", data, settings, False, 4)
    Training(recipe, out).train(data_mesh(jax.devices()[:devices]), is_stopped=is_stopped)


def training_results(out: Path) -> dict[str, Any]:
    names = ["model", *(f"checkpoints/{path.name}" for path in sorted((out / "checkpoints").iterdir()))]
    weights = {
        f"{name} {leaf}": np.asarray(value).tobytes()
        for name in names
        for leaf, value in named_leaves(jaxsink.load(out / name))[0]
    }
    return {"curve": (out / "loss.csv").read_text(), "sinks": (out / "sinks.csv").read_text(), **weights}


def run_conversion(out: Path, is_stopped: IsStopped, devices: int) -> None:
    """It has nothing to spread over devices, and goes back to its beginning."""
    source = out.parent / "source"
    if not source.exists():
        checkpoints.make(source, "llama")
    jaxsink.convert(source, out, is_stopped=is_stopped)


def converted_files(out: Path) -> dict[str, Any]:
    manifest = json.loads((out / "jaxsink.json").read_text())
    manifest["source"].pop("path")  # a place of each test's own
    manifest["checksums"].pop("manifest")  # of the place, too
    weights = {name: np.asarray(leaf).tobytes() for name, leaf in named_leaves(jaxsink.load(out))[0]}
    return {"files": sorted(path.name for path in out.iterdir()), "manifest": manifest, **weights}


JOBS = {
    "convert": Job(run_conversion, converted_files, lines=False),
    "evaluate": Job(run_evaluation, read_results),
    "likelihood": Job(run_likelihood, likelihood_results),
    "study": Job(run_study, study_results),
    "train": Job(run_training, training_results, lines=False),
}

ON_TEXT = {"train-text": Job(run_text_training, training_results, lines=False)}  # with a test of its own


def telling(module: Any, name: str) -> None:
    """From here on the function says that it has ended."""
    original = getattr(module, name)

    def told(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        print("kept", flush=True)
        time.sleep(PAUSE)
        return result

    setattr(module, name, told)


def main() -> int:
    """The job as a command, with the exit codes and the sentences of one."""
    name, out, *devices = sys.argv[1:]
    training.SAVE_SECONDS = 0.0
    kept = ((LineFile, "append"), (arrays, "keep"), (training, "save_state"), (conversion, "read_piece"))
    for module, function in kept:
        telling(module, function)

    def run(_: argparse.Namespace) -> int:
        with stop_on_sigterm("stopped; the same command continues.") as is_stopped:
            {**JOBS, **ON_TEXT}[name].run(Path(out), is_stopped, int(devices[0]) if devices else 1)
        return 0

    command.build_parser = lambda: SimpleNamespace(parse_args=lambda argv: argparse.Namespace(run=run))
    return command.main([])


if __name__ == "__main__":
    sys.exit(main())
