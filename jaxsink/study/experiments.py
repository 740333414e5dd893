"""An experiment as a declaration: the question, the paper's claim, what is measured, and how a finding comes of it.

@experiment(
    name="fig3",
    title="Distribution of scores",
    question="Are scores near zero but for a thin tail?",
    paper="Nearly all scores lie near zero; the tail reaches about 50.",
    statistic="share of scores below the mean; largest score",
    null="a fixed threshold: half of all scores, and the ε of a sink",
)
def histogram(measured: Sequence[Measured], study: Study) -> Outcome: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

from matplotlib.figure import Figure

from jaxsink.evals.conditions import Condition
from jaxsink.study.finding import Claim, Finding, Table, Verdict
from jaxsink.study.gallery import Gallery
from jaxsink.study.measure import Measurement, Recorded, Scored, Scores, Study
from jaxsink.study.subject import Subject

RECORDED = ""
"""The name of the generations that every experiment may look at."""


@dataclass(frozen=True)
class Measured:
    """What was measured of one subject."""

    subject: Subject
    galleries: Mapping[str, Gallery]
    scores: Scores

    @property
    def gallery(self) -> Gallery:
        """The subject's recorded generations, as it usually writes."""
        return self.galleries[RECORDED]


@dataclass(frozen=True)
class Outcome:
    """What an experiment finds."""

    found: str
    verdict: Verdict
    figure: Figure | None = None
    tables: Sequence[Table] = ()


Find = Callable[[Sequence[Measured], Study], Outcome]


def all_subjects(study: Study) -> Sequence[Subject]:
    return study.subjects


def diffusion_models(study: Study) -> Sequence[Subject]:
    return [subject for subject in study.subjects if subject.is_diffusion]


def usual_generations(subject: Subject) -> Mapping[str, Recorded]:
    return {RECORDED: Recorded()}


@dataclass(frozen=True)
class Experiment(Claim):
    """A claim, of whom it is tested, by which measurements, and the function that answers.

    subjects   whose measurements are taken
    record     generations of a subject, by name
    score      conditions under which a subject answers the problems
    missing    what is said where there is no such subject
    """

    find: Find
    subjects: Callable[[Study], Sequence[Subject]] = all_subjects
    record: Callable[[Subject], Mapping[str, Recorded]] = usual_generations
    score: Callable[[Subject], Sequence[Condition]] = lambda subject: ()
    missing: str = "No diffusion model was studied."

    def measurements(self, study: Study) -> Iterator[tuple[Subject, Measurement]]:
        for subject in self.subjects(study):
            for spec in self.record(subject).values():
                yield subject, spec
            if self.score(subject):
                yield subject, Scored(tuple(self.score(subject)))

    def measured(self, study: Study, subject: Subject) -> Measured:
        galleries = {name: study.gallery(subject, spec) for name, spec in self.record(subject).items()}
        return Measured(subject, galleries, study.scores(subject, self.score(subject)) if self.score(subject) else {})

    def run(self, study: Study) -> Finding:
        """The finding, its figure saved."""
        subjects = self.subjects(study)
        outcome = Outcome(self.missing, "not tested")
        if subjects:
            outcome = self.find([self.measured(study, subject) for subject in subjects], study)
        return Finding(
            **{part.name: getattr(self, part.name) for part in fields(Claim)},
            found=outcome.found,
            verdict=outcome.verdict,
            figures=[] if outcome.figure is None else [study.figure(self.name, outcome.figure)],
            tables=list(outcome.tables),
        )


def experiment(**declared: Any) -> Callable[[Find], Experiment]:
    """Declares the function below it as an experiment; takes the fields of `Experiment` by name."""
    return lambda find: Experiment(**declared, find=find)


def experiment_of(module: ModuleType) -> Experiment:
    """The one that a module declares."""
    (found,) = (value for value in vars(module).values() if isinstance(value, Experiment))
    return found
