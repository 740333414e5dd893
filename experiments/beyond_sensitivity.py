"""Beyond the paper: do sinks and their trajectories depend on ε, temperature, block length and number of steps?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from jaxsink.evals.statistics import bootstrap
from jaxsink.study import Finding, Gallery, Measurement, Recorded, Study, Subject, Table

NAME, TITLE = "sensitivity", "Settings of the sampler, and ε"
QUESTION = "How much of a trajectory is the model, and how much the settings?"
PAPER = "One setting per model, ε = 3 throughout."
EPSILONS = (1.0, 2.0, 5.0)


def settings(subject: Subject) -> dict[str, Recorded]:
    sampler: Any = subject.sampler
    changed: dict[str, dict[str, Any]] = {"as usual": {}, "temperature 0.7": {"temperature": 0.7}}
    if hasattr(sampler, "steps"):
        changed["half the steps"] = {"steps": sampler.steps // 2}
    if hasattr(sampler, "block_length"):
        changed["one block"] = {"block_length": sampler.gen_length}
        changed["blocks half as long"] = {"block_length": sampler.block_length // 2}
    return {label: Recorded(tuple(changes.items())) for label, changes in changed.items()}


def needs(study: Study) -> list[tuple[Subject, Measurement]]:
    return [(s, spec) for s in study.subjects for spec in settings(s).values()]


def run(study: Study) -> Finding:
    rows = []
    for subject in study.subjects:
        shown = {label: study.gallery(subject, spec) for label, spec in settings(subject).items()}
        shown |= {f"ε = {eps:g}": replace(study.gallery(subject), eps=eps) for eps in EPSILONS}
        rows += [[subject.name, label, *figures(gallery)] for label, gallery in shown.items()]
    columns = ["model", "setting", "drift per step", "low", "high", "sinks per head", "low", "high", "moving heads"]
    words = "; ".join(
        f"{subject.name} {min(drifts):+.2f} to {max(drifts):+.2f}"
        for subject in study.subjects
        for drifts in [[row[2] for row in rows if row[0] == subject.name]]
    )
    return Finding(
        name=NAME,
        title=TITLE,
        question=QUESTION,
        paper=PAPER,
        found=f"Drift per step over all settings: {words}.",
        verdict="new",
        figures=[],
        tables=[
            Table(
                "By setting", columns, rows, "95 % intervals over generations; moving: share of heads and generations"
            )
        ],
    )


def figures(gallery: Gallery) -> list[float]:
    """Drift and number of sinks with intervals, and the share of heads whose sink moves."""
    drift = bootstrap(gallery.tracks.drift.mean(axis=(0, 2)))
    count = bootstrap(gallery.mean_over_steps(gallery.tracks.sink_count).mean(axis=(1, 2)))
    moving = float(np.mean(gallery.tracks.jumps > 0))
    return [*map(float, drift), *map(float, count), moving]
