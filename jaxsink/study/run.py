"""Conducting a study: all measurements first, with the time that is left; then the findings, the player and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.parallel.hosts import is_main
from jaxsink.runs.progress import progress, stage
from jaxsink.runs.run import Run
from jaxsink.runs.stopping import IsStopped, StoppedError, never
from jaxsink.study import player
from jaxsink.study.experiments import Experiment
from jaxsink.study.finding import Finding, judge
from jaxsink.study.measure import Study
from jaxsink.study.measurements import Measurement
from jaxsink.study.plots import styled
from jaxsink.study.seeds import over_seeds
from jaxsink.study.subject import Subject

KIND = "study"


def conduct(study: Study, experiments: Sequence[Experiment], is_stopped: IsStopped = never) -> list[Finding]:
    """Run experiments; everything that is already on the disk is kept."""
    study = replace(study, predictions=tuple(one for experiment in experiments for one in experiment.predictions))
    with Run.open(study.folder, KIND, identity(study)):
        measure(study, experiments, is_stopped)
        with styled(), stage("drawing figures", total=len(experiments), unit="experiments") as task:
            findings = []
            for experiment in experiments:
                if is_stopped():
                    raise StoppedError
                findings.append(experiment.run(study))
                task.update(len(findings))
            findings = judge(findings)
        findings += over_seeds(findings)
        if is_main():
            for finding in findings:
                finding.save(study.folder / "experiments")
            with stage("writing the generations of the player"):
                player.export(study)
    return findings


def measure(study: Study, experiments: Sequence[Experiment], is_stopped: IsStopped) -> None:
    wanted = all_measurements(study, experiments)
    costs = [spec.cost(study, subject) for subject, spec in wanted]
    with progress([cost for cost in costs if cost]) as (begin, end):
        for (subject, spec), cost in zip(wanted, costs, strict=True):
            if cost:
                begin(f"{subject.name}: {spec.describe(study)}")
                study.measure(subject, spec, is_stopped)
                end()


def all_measurements(study: Study, experiments: Sequence[Experiment]) -> list[tuple[Subject, Measurement]]:
    """What the experiments need, each once, model by model so that compiled programs are used again."""
    found: dict[tuple[str, Measurement], tuple[Subject, Measurement]] = {}
    for experiment in experiments:
        for subject, spec in (*experiment.measurements(study), *player.needs(study)):
            found.setdefault((subject.fingerprint, spec), (subject, spec))
    return list(found.values())


def identity(study: Study) -> JsonObject:
    """What must be the same for a study to go on: findings of other models or sizes would look alike."""
    return {
        "settings": {
            "problems": study.problems,
            "generations": study.generations,
            "eps": study.eps,
            "seed": study.seed,
            "untrained": study.untrained,
        },
        "models": {
            subject.name: {
                "fingerprint": subject.fingerprint,
                "sampler": repr(subject.sampler),
                "prompts": "task" if subject.prompts is None else f"{subject.prompts.source} {subject.prompts.digest}",
                **({"sandbox": subject.prompts.sandbox} if subject.prompts and subject.prompts.sandbox else {}),
                "parameters": sum(leaf.size for leaf in jax.tree.leaves(subject.model)),
            }
            for subject in study.subjects
        },
    }
