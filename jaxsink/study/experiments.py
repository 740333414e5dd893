"""An experiment as a declaration: the question, the paper's claim, what is measured, and how a finding comes of it.

@experiment(
    name="fig3",
    title="Distribution of scores",
    question="Are scores near zero but for a thin tail?",
    paper="Nearly all scores lie near zero; the tail reaches about 50.",
    predictions=(Prediction(name="near-zero", statistic="share of scores below half the mean", of=near_zero, …),),
)
def histogram(measured: Sequence[Measured], study: Study) -> Outcome: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import ModuleType
from typing import Any

from matplotlib.figure import Figure

from jaxsink.evals.conditions import Condition
from jaxsink.evals.job import needs_no_steps
from jaxsink.evals.results import Result
from jaxsink.runs.arrays import Arrays
from jaxsink.sampling.base import Sampler
from jaxsink.study.finding import Claim, Finding, Row, Table
from jaxsink.study.gallery import Gallery
from jaxsink.study.measure import Scores, Study
from jaxsink.study.measurements import Hidden, Measurement, Recorded, Scored, Untrained
from jaxsink.study.predictions import Prediction, check
from jaxsink.study.subject import Subject
from jaxsink.study.verdicts import Tested

UNGRADED = "The prompts have no answers to grade, so nothing can be said of problems lost."
RECORDED = ""
"""The name of the generations that every experiment may look at."""


@dataclass(frozen=True)
class Measured:
    """What was measured of one subject.

    Examples:
        >>> [field.name for field in dataclasses.fields(jaxsink.study.Measured)][:3]
        ['subject', 'galleries', 'scores']
    """

    subject: Subject
    galleries: Mapping[str, Gallery]
    scores: Scores
    losses: Scores
    hidden: Arrays
    clusters: Sequence[str]  # of the problems
    answers: Mapping[Condition, Sequence[Result]] = field(default_factory=dict)  # lines, of `Experiment.texts`
    written: Mapping[str, Scores] = field(default_factory=dict)  # scores with other samplers, by their names

    @property
    def gallery(self) -> Gallery:
        """The subject's recorded generations, as it usually writes."""
        return self.galleries[RECORDED]


@dataclass(frozen=True)
class Outcome:
    """What an experiment shows besides its predictions.

    Attributes:
        figure: a figure
        tables: tables
        tests: those that are not of recorded generations
        values: what these rest on, problem by problem
        note: a sentence for the reader

    Examples:
        >>> jaxsink.study.Outcome(tables=[jaxsink.study.Table.of("Sinks", [{"layer": 0, "sinks": 3}])]).tables[0].columns
        ['layer', 'sinks']
    """

    figure: Figure | None = None
    tables: Sequence[Table] = ()
    tests: Sequence[Tested] = ()
    values: Sequence[Row] = ()
    note: str = ""


Find = Callable[[Sequence[Measured], Study], Outcome]


def all_subjects(study: Study) -> Sequence[Subject]:
    return study.subjects


def diffusion_models(study: Study) -> Sequence[Subject]:
    return [subject for subject in study.subjects if subject.is_diffusion]


def usual_generations(subject: Subject) -> Mapping[str, Recorded]:
    return {RECORDED: Recorded()}


@dataclass(frozen=True)
class Experiment(Claim):
    """A claim, of whom it is tested, by which measurements, and the function that shows what was measured.

    Attributes:
        predictions: what the claim says about generations, each with its nulls
        subjects: whose measurements are taken
        record: generations of a subject, by name
        score: conditions under which a subject answers the problems
        samplers: by name, other samplers with which it answers them as well
        writes: False: no answers are written under them, only the likelihood of published ones counts
        likelihood: also measure how likely the published answers are under them
        look: also look at what they hide
        texts: answers are compared as texts, right or wrong: of as many problems as the study can afford
            (`Study.answers`)
        more: further measurements of a subject
        missing: what is said where there is no such subject

    Examples:
        >>> @jaxsink.study.experiment(name="first", title="The first token", question="Is it a sink?", paper="It is not.")
        ... def first(study, measured):
        ...     return jaxsink.study.Outcome(note="nothing to see")
        ...
        >>> first.name, type(first).__name__
        ('first', 'Experiment')
    """

    find: Find
    predictions: tuple[Prediction, ...] = ()
    subjects: Callable[[Study], Sequence[Subject]] = all_subjects
    record: Callable[[Subject], Mapping[str, Recorded]] = usual_generations
    score: Callable[[Subject, Study], Sequence[Condition]] = lambda subject, study: ()
    samplers: Callable[[Subject], Mapping[str, Sampler]] = lambda subject: {}
    writes: bool = True
    likelihood: bool = False
    look: bool = False
    texts: bool = False
    more: Callable[[Subject], Sequence[Measurement]] = lambda subject: ()
    missing: str = "No diffusion model was studied."

    def askable(self, study: Study) -> list[Subject]:
        """The subjects, but for those whose answers cannot be graded where answers are what is looked at."""
        return [one for one in self.subjects(study) if one.graded or not self.grades or not self.score(one, study)]

    @property
    def grades(self) -> bool:
        """Does it ask whether answers are right?"""
        return self.writes and not self.texts

    def why_nobody(self, study: Study) -> str:
        return UNGRADED if self.subjects(study) else self.missing

    def measurements(self, study: Study) -> Iterator[tuple[Subject, Measurement]]:
        for subject in self.askable(study):
            for spec in self.record(subject).values():
                yield subject, spec
            for number in range(study.untrained if study.predicted(subject) else 0):
                yield subject, Untrained(number)
            conditions = tuple(self.score(subject, study))
            if conditions and self.grades:
                yield subject, Scored(conditions)
                yield from ((subject, Scored(conditions, sampler=one)) for one in self.samplers(subject).values())
            if conditions and self.likelihood and subject.answered:
                for part, count in self.parts(subject, study, conditions):
                    yield subject, Scored(part, gold=True, problems=count)
            if conditions and self.look:
                yield subject, Hidden(masking(conditions))
            for spec in self.more(subject):
                yield subject, spec
            if conditions and self.texts and study.answers != 0:
                yield subject, Scored(conditions, problems=study.answers)

    def measured(self, study: Study, subject: Subject) -> Measured:
        conditions = self.score(subject, study)
        given, texts = self.likelihood and subject.answered, self.texts and study.answers != 0
        samplers = self.samplers(subject) if conditions else {}
        return Measured(
            subject,
            galleries={name: study.gallery(subject, spec) for name, spec in self.record(subject).items()},
            scores=study.scores(subject, conditions) if conditions and self.grades else {},
            losses=self.losses(subject, study, conditions) if conditions and given else {},
            hidden=study.hidden(subject, masking(conditions)) if conditions and self.look else {},
            clusters=study.clusters(subject) if conditions else (),
            answers=study.answered(subject, conditions, study.answers) if conditions and texts else {},
            written={name: study.scores(subject, conditions, sampler=one) for name, one in samplers.items()},
        )

    def parts(
        self, subject: Subject, study: Study, conditions: Sequence[Condition]
    ) -> Iterator[tuple[tuple[Condition, ...], int | None]]:
        """(conditions, how many given answers are scored under them; None: all)."""
        stepped = study.stepped if self.texts and not subject.is_diffusion else None
        quick = tuple(one for one in conditions if stepped is None or needs_no_steps(one.policy))
        slow = tuple(one for one in conditions if one not in quick)
        yield quick, None
        if slow and stepped:
            yield slow, stepped

    def losses(self, subject: Subject, study: Study, conditions: Sequence[Condition]) -> Scores:
        """Nats per token; of the first few problems alone where more are too dear."""
        found: Scores = {}
        for part, count in self.parts(subject, study, conditions):
            found |= study.scores(subject, part, gold=True, count=count)
        return found

    def run(self, study: Study) -> Finding:
        """The finding, its figure saved; its verdict waits until all tests of the study are known."""
        subjects = self.askable(study)
        measured = [self.measured(study, subject) for subject in subjects]
        tests, values = [], []
        for one in measured:
            found, kept = self.check(one, study)
            tests += found
            values += kept
        outcome = self.find(measured, study) if measured else Outcome(note=self.why_nobody(study))
        return Finding(
            **{part.name: getattr(self, part.name) for part in fields(Claim)},
            found=outcome.note,
            tests=[*tests, *outcome.tests],
            figures=[] if outcome.figure is None else [study.figure(self.name, outcome.figure)],
            tables=[table for table in outcome.tables if table.rows],
            values=[*values, *outcome.values],
        )

    def check(self, one: Measured, study: Study) -> tuple[list[Tested], list[Row]]:
        """The predictions of one subject, and what they rest on, generation by generation."""
        about = [prediction for prediction in self.predictions if prediction.about(one.subject)]
        untrained = study.of_untrained(one.subject) if about else []
        tests, rows = [], []
        for prediction in about:
            test, values = check(prediction, one.subject, one.gallery, untrained)
            tests.append(test)
            columns = {key.removeprefix(prediction.name).strip() or "value": x.tolist() for key, x in values.items()}
            for number, problem in enumerate(one.gallery.clusters):
                name = {"model": one.subject.name, "statistic": prediction.name, "generation": number}
                found = {column: x[number] for column, x in columns.items()}
                rows.append({**name, "problem": str(problem), **found})
        return tests, rows


def masking(conditions: Sequence[Condition]) -> tuple[Condition, ...]:
    """Those that hide something."""
    return tuple(one for one in conditions if one.policy is not None)


def experiment(**declared: Any) -> Callable[[Find], Experiment]:
    """Declares the function below it as an experiment.

    Args:
        **declared: the fields of `Experiment` by name

    Examples:
        >>> @jaxsink.study.experiment(name="first", title="The first token", question="Is it a sink?", paper="It is not.")
        ... def first(study, measured):
        ...     return jaxsink.study.Outcome(note="nothing to see")
        ...
        >>> first.name, type(first).__name__
        ('first', 'Experiment')
    """
    return lambda find: Experiment(**declared, find=find)


def experiment_of(module: ModuleType) -> Experiment:
    """The one that a module declares."""
    (found,) = (value for value in vars(module).values() if isinstance(value, Experiment))
    return found
