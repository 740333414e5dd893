"""Beyond the paper: do sinks and their trajectories depend on ε, temperature, block length and number of steps?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxsink.evals.statistics import clustered_mean
from jaxsink.study import Gallery, Measured, Outcome, Recorded, Study, Subject, Table, experiment
from jaxsink.study.experiments import RECORDED

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


def sinks_per_head(gallery: Gallery) -> np.ndarray:
    """f64[B]"""
    return gallery.mean_over_steps(gallery.tracks.sink_count).mean(axis=(1, 2))


def change(usual: np.ndarray, found: np.ndarray, clusters: Sequence[str]) -> dict[str, float]:
    """How much more sinks there are than usual [B], as a share of the usual number, with its interval."""
    if not usual.mean():
        return {}
    more = clustered_mean((found - usual) / usual.mean(), clusters)
    low, high = more.interval()
    return {"change": more.value, "change: low": low, "change: high": high}


def row(one: Measured, setting: str, gallery: Gallery) -> dict[str, Any]:
    found, clusters = sinks_per_head(gallery), list(gallery.clusters)
    count = clustered_mean(found, clusters)
    low, high = count.interval()
    line = {"model": one.subject.name, "setting": setting, "sinks per head": count.value, "low": low, "high": high}
    moving = {"moving heads": float(np.mean(gallery.tracks.jumps > 0))}
    return line | moving | (change(sinks_per_head(one.gallery), found, clusters) if gallery is not one.gallery else {})


@experiment(
    name="sensitivity",
    title="Settings of the sampler, and ε",
    question="How much of what is measured is the model, and how much the settings?",
    paper="One setting per model, ε = 3 throughout.",
    record=settings,
)
def sensitivity(measured: Sequence[Measured], study: Study) -> Outcome:
    lines = []
    for one in measured:
        shown = {"as usual" if label == RECORDED else label: gallery for label, gallery in one.galleries.items()}
        shown |= {f"ε = {eps:g}": replace(one.gallery, eps=eps) for eps in EPSILONS}
        lines += [row(one, setting, gallery) for setting, gallery in shown.items()]
    return Outcome(
        tables=[Table.of("By setting", lines, "95 % intervals over problems; moving: share of heads and generations")],
        note="The table shows how far settings change the number of sinks: a description, not a test. That they change it "
        "little says nothing for a model, because random weights are as steady.",
    )
