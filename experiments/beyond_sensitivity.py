"""Beyond the paper: do sinks and their trajectories depend on ε, temperature, block length and number of steps?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxsink.evals.statistics import bootstrap
from jaxsink.study import Gallery, Measured, Outcome, Recorded, Study, Subject, Table, experiment
from jaxsink.study.experiments import RECORDED
from jaxsink.study.finding import with_limits

EPSILONS = (1.0, 2.0, 5.0)


def settings(subject: Subject) -> Mapping[str, Recorded]:
    """The subject's own sampler, and others that differ from it in one setting."""
    sampler: Any = subject.sampler
    changed: dict[str, dict[str, Any]] = {RECORDED: {}, "temperature 0.7": {"temperature": 0.7}}
    if "steps" in sampler.settings():
        changed["half the steps"] = {"steps": sampler.steps // 2}
    if "block_length" in sampler.settings():
        changed["one block"] = {"block_length": sampler.gen_length}
        changed["blocks half as long"] = {"block_length": sampler.block_length // 2}
    return {label: Recorded(tuple(changes.items())) for label, changes in changed.items()}


def row(model: str, setting: str, gallery: Gallery) -> dict[str, Any]:
    """Drift and number of sinks with intervals, and the share of heads whose sink moves."""
    drift = bootstrap(gallery.tracks.drift.mean(axis=(0, 2)))
    count = bootstrap(gallery.mean_over_steps(gallery.tracks.sink_count).mean(axis=(1, 2)))
    limits = with_limits("drift per step", drift) | with_limits("sinks per head", count)
    return {"model": model, "setting": setting, **limits, "moving heads": float(np.mean(gallery.tracks.jumps > 0))}


@experiment(
    name="sensitivity",
    title="Settings of the sampler, and ε",
    question="How much of a trajectory is the model, and how much the settings?",
    paper="One setting per model, ε = 3 throughout.",
    statistic="drift per step; sinks per head; share of heads whose sink moves",
    null="none: settings are compared with each other",
    record=settings,
)
def sensitivity(measured: Sequence[Measured], study: Study) -> Outcome:
    rows, words = [], []
    for one in measured:
        shown = {label or "as usual": gallery for label, gallery in one.galleries.items()}
        shown |= {f"ε = {eps:g}": replace(one.gallery, eps=eps) for eps in EPSILONS}
        mine = [row(one.subject.name, label, gallery) for label, gallery in shown.items()]
        drifts = [line["drift per step"] for line in mine]
        words.append(f"{one.subject.name} {min(drifts):+.2f} to {max(drifts):+.2f}")
        rows += mine
    note = "95 % intervals over generations; moving: share of heads and generations"
    return Outcome(
        found=f"Drift per step over all settings: {'; '.join(words)}.",
        verdict="new",
        tables=[Table.of("By setting", rows, note)],
    )
