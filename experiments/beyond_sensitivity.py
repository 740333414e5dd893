"""Beyond the paper: do sinks and their trajectories depend on ε, temperature, block length and number of steps?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxsink.evals.statistics import clustered_mean
from jaxsink.study import Gallery, Measured, Outcome, Recorded, Study, Subject, Table, Tested, experiment
from jaxsink.study.experiments import RECORDED
from jaxsink.study.verdicts import compare, not_testable

QUARTER = 0.25
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


def changed_little(one: Measured, setting: str, gallery: Gallery) -> Tested:
    """How much a setting changes the number of sinks, as a share of the usual number."""
    usual, found = sinks_per_head(one.gallery), sinks_per_head(gallery)
    words, clusters = f"change of the number of sinks with {setting}", list(gallery.clusters)
    if not usual.mean():
        return not_testable(one.subject.name, words, "less", "it has no sinks")
    change = clustered_mean((found - usual) / usual.mean(), clusters)
    size = change._replace(value=abs(change.value))
    bound = compare("a quarter", QUARTER, size._replace(value=size.value - QUARTER), "less")
    low, high = size.interval()
    problems = len(set(clusters))
    return Tested(one.subject.name, words, "less", size.value, max(low, 0.0), high, problems, comparisons=[bound])


@experiment(
    name="sensitivity",
    title="Settings of the sampler, and ε",
    question="How much of what is measured is the model, and how much the settings?",
    paper="One setting per model, ε = 3 throughout. Our prediction: the sampler changes the number by a quarter at most.",
    record=settings,
)
def sensitivity(measured: Sequence[Measured], study: Study) -> Outcome:
    lines, tests = [], []
    for one in measured:
        changed = {label: gallery for label, gallery in one.galleries.items() if label != RECORDED}
        tests += [changed_little(one, label, gallery) for label, gallery in changed.items()]
        shown = {"as usual": one.gallery, **changed}
        shown |= {f"ε = {eps:g}": replace(one.gallery, eps=eps) for eps in EPSILONS}
        for label, gallery in shown.items():
            count = clustered_mean(sinks_per_head(gallery), list(gallery.clusters))
            low, high = count.interval()
            moving = float(np.mean(gallery.tracks.jumps > 0))
            name = {"model": one.subject.name, "setting": label}
            lines.append({**name, "sinks per head": count.value, "low": low, "high": high, "moving heads": moving})
    note = "95 % intervals over problems; moving: share of heads and generations"
    return Outcome(tables=[Table.of("By setting", lines, note)], tests=tests)
