"""Beyond the paper: when do sinks appear in training, by objective? Needs training runs (`--runs DIR`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from jaxsink.evals.statistics import bootstrap
from jaxsink.study import Measured, Outcome, Study, Subject, Table, experiment, plots, trained
from jaxsink.study.finding import with_limits

SINKS, LARGEST = "sinks per head", "largest score"


@cache
def along_the_way(runs: Path | None, name: str) -> tuple[Subject, ...]:
    """The checkpoints of a model's run, in order."""
    if runs is None or not (runs / name / "checkpoints").is_dir():
        return ()
    return tuple(
        trained(runs / name, checkpoint.name) for checkpoint in sorted((runs / name / "checkpoints").iterdir())
    )


def all_checkpoints(study: Study) -> list[Subject]:
    return [point for subject in study.subjects for point in along_the_way(study.runs, subject.name)]


def row(one: Measured) -> dict[str, Any]:
    gallery = one.gallery
    count = bootstrap(gallery.mean_over_steps(gallery.tracks.sink_count).mean(axis=(1, 2)))
    largest = np.where(gallery.real[:, None, :, None], gallery.scores, 0).max(axis=-1)
    strength = bootstrap(gallery.mean_over_steps(largest).mean(axis=(1, 2)))
    model, step = one.subject.name.rsplit("@", 1)
    return {"model": model, "step": int(step), **with_limits(SINKS, count), **with_limits(LARGEST, strength)}


def draw(axis: Axes, name: str, lines: Sequence[dict[str, Any]]) -> None:
    """A value over the steps of one run, with its interval."""
    steps, values, low, high = (
        [line[key] for line in lines] for key in ("step", name, f"{name}: low", f"{name}: high")
    )
    axis.plot(steps, values, marker="o", label=lines[0]["model"])
    axis.fill_between(steps, low, high, alpha=0.2)


@experiment(
    name="training",
    title="Sinks during training",
    question="When do sinks emerge, and does that depend on the objective?",
    paper="Not studied; named as future work.",
    statistic="sinks per head and largest score of a head, by training step",
    null="none: checkpoints are compared with each other",
    subjects=all_checkpoints,
    missing="No training runs were given: make them with `jaxsink train NAME --out RUNS/NAME`, then add --runs RUNS.",
)
def sinks_during_training(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, 2)
    rows, words = [row(one) for one in measured], []
    for model, group in groupby(rows, key=lambda line: line["model"]):
        mine = list(group)
        for axis, name in zip(axes[0], (SINKS, LARGEST), strict=True):
            draw(axis, name, mine)
        half = max(line[LARGEST] for line in mine) / 2
        reached = next(line["step"] for line in mine if line[LARGEST] >= half)
        words.append(f"{model} by step {reached:,} of {mine[-1]['step']:,}")
    for axis, label in zip(axes[0], (SINKS, "largest score of a head (column sum)"), strict=True):
        axis.set(xlabel="training step", ylabel=label, xscale="log")
        plots.label_lines(axis)
    return Outcome(
        found=f"The largest score is half its maximum: {'; '.join(words)}.",
        verdict="new",
        figure=figure,
        tables=[Table.of("Over training", rows, "95 % intervals over generations")],
    )
