"""What is measured of a subject. Each kind says where it is kept, what it costs, and how it is made.

A file's name holds a hash of all it depends on, so a study with other settings never finds the wrong one.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsink.evals.conditions import Condition, intervention, programs
from jaxsink.evals.engine import ask_all
from jaxsink.evals.job import Evaluation
from jaxsink.evals.results import RESULTS, Key, Result, read_results
from jaxsink.parallel.hosts import from_main
from jaxsink.recording.attention import dropped, received, received_by_query
from jaxsink.recording.shuffled import received_random_split, received_shuffled
from jaxsink.runs import arrays
from jaxsink.runs.arrays import Arrays
from jaxsink.runs.run import Run
from jaxsink.runs.stopping import IsStopped, StoppedError
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.generate import generate
from jaxsink.sampling.generation import Generation
from jaxsink.sinks import MaskSinks
from jaxsink.sinks.hidden import hidden_keys
from jaxsink.study import nulls
from jaxsink.study.gallery import Gallery, from_arrays
from jaxsink.study.subject import Subject
from jaxsink.tasks.exam import Exam, Question, gold_exam
from jaxsink.version import __version__

if TYPE_CHECKING:
    from jaxsink.study.measure import Study

RECORD = 1 << 28  # bytes of a record that a device holds before they go to the host, about
CANVASES = 1  # on which a diffusion model sees each published answer, per share of masked tokens
HIDDEN = 8  # generations in which is looked at what conditions hide
Changes = tuple[tuple[str, Any], ...]


class Measurement(abc.ABC):
    """One kind of measurement; frozen dataclasses with what distinguishes it.

    Examples:
        >>> isinstance(jaxsink.study.Recorded(), jaxsink.study.Measurement)
        True
    """

    @abc.abstractmethod
    def path(self, study: Study, subject: Subject) -> Path:
        """Where it is kept."""

    @abc.abstractmethod
    def describe(self, study: Study) -> str:
        """What is being measured, for the progress."""

    @abc.abstractmethod
    def cost(self, study: Study, subject: Subject) -> int:
        """Of what is left to measure: sequences times steps, about; 0 if it is all there."""

    @abc.abstractmethod
    def measure(self, study: Study, subject: Subject, is_stopped: IsStopped) -> None:
        """Measure and keep what is not there yet."""


class KeptAsArrays(Measurement):
    """Made in one go, and kept in one file."""

    def measure(self, study: Study, subject: Subject, is_stopped: IsStopped) -> None:
        arrays.keep(self.path(study, subject), lambda: self.compute(study, subject, is_stopped))

    def cost(self, study: Study, subject: Subject) -> int:
        left = not arrays.is_kept(self.path(study, subject))
        return left * 2 * steps_of(subject) * self.sequences(study)

    @abc.abstractmethod
    def sequences(self, study: Study) -> int:
        """How many are run."""

    @abc.abstractmethod
    def compute(self, study: Study, subject: Subject, is_stopped: IsStopped) -> Arrays: ...


@dataclass(frozen=True)
class Recorded(KeptAsArrays):
    """Generations with their statistics; `changes` replace fields of the sampler.

    Attributes:
        hide: keys that are hidden meanwhile
        generations: how many, at most; None: as many as the study records

    Examples:
        >>> jaxsink.study.Recorded(hide=jaxsink.sinks.MaskSinks(k=1), generations=4).generations
        4
    """

    changes: Changes = ()
    hide: MaskSinks | None = None
    generations: int | None = None

    def path(self, study: Study, subject: Subject) -> Path:
        name = study.hash(subject, self.sampler(subject), self.sequences(study), self.hide)
        return study.folder / "galleries" / subject.name / f"{name}.npz"

    def describe(self, study: Study) -> str:
        return f"{self.sequences(study)} recorded generations{' with sinks hidden' if self.hide else ''}"

    def sequences(self, study: Study) -> int:
        return min(study.generations, self.generations or study.generations)

    def sampler(self, subject: Subject) -> Sampler:
        sampler: Any = subject.sampler.with_whole_map()
        return replace(sampler, **dict(self.changes))

    def compute(self, study: Study, subject: Subject, is_stopped: IsStopped) -> Arrays:
        wanted: dict[str, Any] = {"scores": received(), "shuffled": received_shuffled()}
        if subject.is_diffusion:
            wanted |= {"split": received_by_query(), "random_split": received_random_split()}
        exam, parts = subject.exam(self.sequences(study), study.seed), []
        for first in range(0, len(exam.questions), study.rows):
            if is_stopped():
                raise StoppedError
            asked = exam.questions[first : first + study.rows]
            out = write(study, subject, exam, asked, self.sampler(subject), record=wanted, intervene=self.hide)
            parts.append(arrays_of(out) | {"clusters": np.array([question.cluster for question in asked])})
        axes = {name: axis for name, axis in BATCH_AXIS.items() if name in parts[0]}
        joined = {name: np.concatenate([part[name] for part in parts], axis=axis) for name, axis in axes.items()}
        return joined | {"prompt_length": parts[0]["prompt_length"]}


@dataclass(frozen=True)
class Untrained(KeptAsArrays):
    """What the study's claims predict, of the subject with random weights.

    Attributes:
        number: which draw of the weights

    Examples:
        >>> jaxsink.study.Untrained(number=0).number
        0
    """

    number: int

    def path(self, study: Study, subject: Subject) -> Path:
        names = [f"{one.name}{' of the same texts' * one.same_texts}" for one in study.predicted(subject)]
        drawn = study.hash(subject, subject.sampler, study.generations, self.number, __version__, names)
        return study.folder / "untrained" / subject.name / f"{drawn}.npz"

    def describe(self, study: Study) -> str:
        return f"random weights, {self.number + 1} of {study.untrained}"

    def sequences(self, study: Study) -> int:
        return study.generations

    def compute(self, study: Study, subject: Subject, is_stopped: IsStopped) -> Arrays:
        drawn, galleries = nulls.untrained(subject, self.number), dict[bool, Gallery]()
        for same in {one.same_texts for one in study.predicted(subject)}:
            galleries[same] = study.gallery(subject) if same else self.written(study, drawn, is_stopped)
        values = (one.values(drawn, galleries[one.same_texts]) for one in study.predicted(subject))
        return {name: x for of_one in values for name, x in of_one.items()}

    def written(self, study: Study, drawn: Subject, is_stopped: IsStopped) -> Gallery:
        arrays = Recorded().compute(study, drawn, is_stopped)
        return from_arrays(arrays, drawn.mask_id, study.eps, drawn.model.config.block_length)


@dataclass(frozen=True)
class Hidden(KeptAsArrays):
    """What each condition really hides, in a few generations: f64[B] for "CONDITION: FIGURE".

    Examples:
        >>> from jaxsink.evals.conditions import conditions
        >>> jaxsink.study.Hidden(conditions((0, 1), ("top",))).conditions[1].k
        1
    """

    conditions: tuple[Condition, ...]

    def path(self, study: Study, subject: Subject) -> Path:
        name = study.hash(subject, subject.sampler, study.eps, self.conditions)
        return study.folder / "hidden" / subject.name / f"{name}.npz"

    def describe(self, study: Study) -> str:
        return f"what {len(self.conditions)} conditions hide"

    def sequences(self, study: Study) -> int:
        return HIDDEN * len(self.conditions)

    def compute(self, study: Study, subject: Subject, is_stopped: IsStopped) -> Arrays:
        exam, found = subject.exam(HIDDEN, study.seed), dict[str, list[np.ndarray]]()
        for wanted in programs(self.conditions):
            asked = [(number, question) for number in range(len(wanted)) for question in exam.questions]
            for first in range(0, len(asked), study.rows):
                if is_stopped():
                    raise StoppedError
                part = hidden_of(study, subject, exam, wanted, asked[first : first + study.rows])
                for name, values in part.items():
                    found.setdefault(name, []).append(values)
        return {name: np.concatenate(values) for name, values in found.items()}


@dataclass(frozen=True)
class Scored(Measurement):
    """Which problems are solved under each condition.

    Attributes:
        conditions: under which they are asked
        gold: how likely their published answers are instead
        problems: how many, at most; None: as many as the study has
        sampler: None: the subject's own

    Examples:
        >>> from jaxsink.evals.conditions import conditions
        >>> jaxsink.study.Scored(conditions((0, 5), ("top", "random")), problems=20).problems
        20
    """

    conditions: tuple[Condition, ...]
    gold: bool = False
    problems: int | None = None
    sampler: Sampler | None = None

    def path(self, study: Study, subject: Subject) -> Path:
        kind = "-gold" if self.gold else ""
        name = study.hash(subject, self.sampler or subject.sampler)
        return study.folder / "answers" / f"{subject.name}-{name}{kind}"

    def describe(self, study: Study) -> str:
        what = "given answers" if self.gold else "problems"
        return f"{self.count(study)} {what} under {len(self.conditions)} conditions"

    def cost(self, study: Study, subject: Subject) -> int:
        asked = [question.index for question in subject.exam(self.count(study), study.seed).questions]
        wanted = {(index, str(condition)) for index in asked for condition in self.conditions}
        steps = 8 if self.gold and subject.is_diffusion else steps_of(subject)
        return steps * len(wanted - self.done(study, subject))

    def count(self, study: Study) -> int:
        return study.problems if self.problems is None else min(self.problems, study.problems)

    def exam(self, study: Study, subject: Subject) -> Exam:
        exam = subject.exam(self.count(study), study.seed)
        if self.gold:
            return gold_exam(exam, CANVASES, diverges=False)
        return exam if self.sampler is None else replace(exam, sampler=self.sampler)

    def measure(self, study: Study, subject: Subject, is_stopped: IsStopped) -> None:
        job = Evaluation(
            subject.model, self.exam(study, subject), self.conditions, study.seed, eps=None, rows=study.rows
        )
        with Run(self.path(study, subject)).lines(RESULTS) as results:
            ask_all(job, results.append, done=self.done(study, subject), is_stopped=is_stopped)

    def results(self, study: Study, subject: Subject) -> dict[Key, Result]:
        return read_results(self.path(study, subject))

    def done(self, study: Study, subject: Subject) -> set[Key]:
        return {(index, name) for index, name in from_main([list(key) for key in self.results(study, subject)])}


def steps_of(subject: Subject) -> int:
    """Of one sequence, in passes over all tokens."""
    return subject.sampler.response_length // (1 if subject.is_diffusion else 4)


def write(
    study: Study, subject: Subject, exam: Exam, asked: Sequence[Question], sampler: Sampler, **options: Any
) -> Generation:
    """Generations of these questions; a record that is too large for a device goes to the host on the way."""
    config = subject.model.config
    per_step = 4 * 6 * config.layers * len(asked) * config.heads * (exam.bucket + sampler.response_length)
    return generate(
        subject.model,
        [list(question.prompt) for question in asked],
        sampler,
        seed=[study.seed + question.index for question in asked],
        stream=max(1, RECORD // per_step) if per_step * sampler.response_length > RECORD else None,
        pad_to=exam.bucket,
        **options,
    )


def hidden_of(
    study: Study, subject: Subject, exam: Exam, wanted: Sequence[Condition], asked: Sequence[tuple[int, Question]]
) -> Arrays:
    """What these conditions hide, each in the questions that are asked with its number."""
    numbers = np.array([number for number, _ in asked])
    out = write(
        study,
        subject,
        exam,
        [question for _, question in asked],
        subject.sampler,
        record={"received": received(), "dropped": dropped()},
        intervene=intervention(wanted),
        policies=numbers.tolist(),
    ).on_host()
    real, taken, found = out.real_at(), out.recorded_of(), {}
    for number in np.unique(numbers):
        of, policy = np.flatnonzero(numbers == number), wanted[number].policy
        parts = {name: value[:, :, of] for name, value in out.record.items()}
        figures = hidden_keys(**parts, mask=real[:, of], steps=taken[of], eps=study.eps, policy=policy)
        found |= {f"{wanted[number]}: {name}": value for name, value in figures._asdict().items()}
    return found


BATCH_AXIS = dict.fromkeys(("scores", "shuffled", "masked", "random_split"), 2) | {"real": 1, "commits": 1}
BATCH_AXIS |= dict.fromkeys(("tokens", "committed_at", "mask", "taken", "clusters"), 0)


def arrays_of(out: Generation) -> Arrays:
    """What a gallery keeps of a generation."""
    out = out.on_host()
    kept = {
        "scores": out.record["scores"],
        "shuffled": out.record["shuffled"],
        "tokens": out.tokens,
        "committed_at": out.committed_at,
        "mask": out.mask,
        "real": out.real_at(),
        "taken": out.recorded_of(),
        "prompt_length": np.array(out.prompt_length),
    }
    if out.commits is not None:
        kept["commits"] = out.commits
    if "split" in out.record:
        kept |= {"masked": out.record["split"]["masked"], "random_split": out.record["random_split"]}
    return kept
