"""Beyond the paper: do the trajectories depend on temperature, block length and number of steps?"""

from __future__ import annotations

from typing import Any

from jaxsink.stats import bootstrap
from jaxsink.study import Finding, Study, Subject, Table

NAME, TITLE = "sensitivity", "Settings of the sampler"
QUESTION = "How much of a trajectory is the model, and how much the sampler's settings?"
PAPER = "One setting per model."


def settings(subject: Subject) -> dict[str, dict[str, Any]]:
    sampler = subject.sampler
    changed: dict[str, dict[str, Any]] = {"as trained": {}, "temperature 0.7": {"temperature": 0.7}}
    if hasattr(sampler, "steps"):
        changed["half the steps"] = {"steps": sampler.steps // 2}
    if hasattr(sampler, "gen_length"):
        changed["one block"] = {"block_length": sampler.gen_length}
    return changed


def run(study: Study) -> Finding:
    rows = []
    for subject in study.subjects:
        for label, changes in settings(subject).items():
            tracks = study.gallery(subject, **changes).tracks
            drift = bootstrap(tracks.drift.mean(axis=(0, 2)))
            count = bootstrap(tracks.sink_count.mean(axis=(0, 1, 3)))
            rows.append([subject.name, label, *map(float, drift), *map(float, count)])
    columns = ["model", "setting", "drift per step", "low", "high", "sinks per head", "low", "high"]
    words = "; ".join(f"{r[0]}, {r[1]}: {r[2]:+.2f}" for r in rows)
    return Finding(
        NAME, TITLE, QUESTION, PAPER, f"Drift per step: {words}.", "not tested", [],
        [Table("By setting", columns, rows, "95 % intervals over generations")],
    )  # fmt: skip
