"""Beyond the paper: when do sinks appear in training, by objective? Needs training runs (`--runs DIR`)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from jaxsink.evals.statistics import bootstrap
from jaxsink.study import Finding, Measurement, Recorded, Study, Subject, Table, plots, trained

NAME, TITLE = "training", "Sinks during training"
QUESTION = "When do sinks emerge, and does that depend on the objective?"
PAPER = "Not studied; named as future work."
HOW = "No training runs were given: make them with `jaxsink train NAME --out RUNS/NAME`, then add --runs RUNS."


@cache
def along_the_way(runs: Path | None, name: str) -> tuple[Subject, ...]:
    """The checkpoints of a model's run, in order."""
    if runs is None or not (runs / name / "checkpoints").is_dir():
        return ()
    return tuple(
        trained(runs / name, checkpoint.name) for checkpoint in sorted((runs / name / "checkpoints").iterdir())
    )


def needs(study: Study) -> list[tuple[Subject, Measurement]]:
    return [(point, Recorded()) for s in study.subjects for point in along_the_way(study.runs, s.name)]


def run(study: Study) -> Finding:
    figure, axes = plots.canvas(1, 2)
    rows, words = [], []
    for subject in study.subjects:
        mine = []
        for point in along_the_way(study.runs, subject.name):
            gallery = study.gallery(point)
            count = bootstrap(gallery.mean_over_steps(gallery.tracks.sink_count).mean(axis=(1, 2)))
            largest = np.where(gallery.real[:, None, :, None], gallery.scores, 0).max(axis=-1)
            strength = bootstrap(gallery.mean_over_steps(largest).mean(axis=(1, 2)))
            step = int(point.name.rsplit("@", 1)[1])
            mine.append([subject.name, step, *map(float, count), *map(float, strength)])
        if not mine:
            continue
        rows += mine
        steps = [row[1] for row in mine]
        for axis, at in zip(axes[0], (2, 5), strict=True):
            axis.plot(steps, [row[at] for row in mine], marker="o", label=subject.name)
            axis.fill_between(steps, [row[at + 1] for row in mine], [row[at + 2] for row in mine], alpha=0.2)
        half = next(row[1] for row in mine if row[5] >= max(r[5] for r in mine) / 2)
        words.append(f"{subject.name} by step {half:,} of {steps[-1]:,}")
    if not rows:
        return Finding(name=NAME, title=TITLE, question=QUESTION, paper=PAPER, found=HOW, verdict="not tested")
    for axis, label in zip(axes[0], ("sinks per head", "largest score of a head (column sum)"), strict=True):
        axis.set(xlabel="training step", ylabel=label, xscale="log")
        plots.label_lines(axis)
    columns = ["model", "step", "sinks per head", "low", "high", "largest score", "low", "high"]
    return Finding(
        name=NAME,
        title=TITLE,
        question=QUESTION,
        paper=PAPER,
        found=f"The largest score is half its maximum: {'; '.join(words)}.",
        verdict="new",
        figures=[study.figure(NAME, figure)],
        tables=[Table("Over training", columns, rows, "95 % intervals over generations")],
    )
