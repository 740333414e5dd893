"""Beyond the paper: when do sinks appear in training, by objective? Needs training runs (`--runs DIR`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from jaxsink.evals.statistics import clustered_mean
from jaxsink.study import Gallery, Measured, Outcome, Study, Subject, Table, Tested, experiment, plots, trained
from jaxsink.study.verdicts import compare

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


def sinks_per_head(gallery: Gallery) -> np.ndarray:
    """f64[B], by scores that do not favour early keys."""
    return gallery.mean_over_steps(gallery.fair_tracks.sink_count).mean(axis=(1, 2))


def largest(gallery: Gallery) -> np.ndarray:
    """f64[B]: the largest score of a head, mean over heads and steps."""
    scores = np.where(gallery.real[:, None, :, None], gallery.fair, 0).max(axis=-1)
    return gallery.mean_over_steps(scores).mean(axis=(1, 2))


def row(one: Measured) -> dict[str, Any]:
    model, step = one.subject.name.rsplit("@", 1)
    line: dict[str, Any] = {"model": model, "step": int(step)}
    for name, of in ((SINKS, sinks_per_head), (LARGEST, largest)):
        mean = clustered_mean(of(one.gallery), list(one.gallery.clusters))
        low, high = mean.interval()
        line |= {name: mean.value, f"{name}: low": low, f"{name}: high": high}
    return line


def emerge(model: str, first: Measured, last: Measured) -> Tested:
    """More sinks at the end of training than at its start."""
    clusters, values = list(last.gallery.clusters), sinks_per_head(last.gallery)
    start = sinks_per_head(first.gallery)
    mean, gap = clustered_mean(values, clusters), clustered_mean(values - start, clusters)
    low, high = mean.interval()
    against = compare("the first checkpoint", float(start.mean()), gap, "greater")
    return Tested(model, SINKS, "greater", mean.value, low, high, len(set(clusters)), comparisons=[against])


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
    paper="Not studied; named as future work. Our prediction: training makes them.",
    subjects=all_checkpoints,
    missing="No training runs were given: make them with `jaxsink train NAME --out RUNS/NAME`, then add --runs RUNS.",
)
def sinks_during_training(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, 2)
    tests, lines = [], []
    for model, group in groupby(measured, key=lambda one: one.subject.name.rsplit("@", 1)[0]):
        points = list(group)
        mine = [row(one) for one in points]
        for axis, name in zip(axes[0], (SINKS, LARGEST), strict=True):
            draw(axis, name, mine)
        tests.append(emerge(model, points[0], points[-1]))
        lines += mine
    for axis, label in zip(axes[0], (SINKS, "largest score of a head"), strict=True):
        axis.set(xlabel="training step", ylabel=label, xscale="log")
        plots.label_lines(axis)
    return Outcome(
        figure=figure, tables=[Table.of("Over training", lines, "95 % intervals over problems")], tests=tests
    )
