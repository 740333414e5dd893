"""A study: subjects, sizes and a folder of measurements that are made once and shared by all experiments.

    OUT/manifest.json            settings, models and their fingerprints, versions, machine
    OUT/galleries/MODEL/*.npz    generations with their statistics
    OUT/untrained/MODEL/*.npz    statistics of the same model with random weights, per generation
    OUT/hidden/MODEL/*.npz       what conditions hide
    OUT/answers/MODEL-*/*.jsonl  answers and scores per problem and condition, as `jaxsink evaluate` keeps them
    OUT/experiments/*.json       findings; their tables and what they rest on, problem by problem, as CSV
    OUT/figures/                 SVG, PNG and PDF
    OUT/player/*.npz             generations for the report's player

A killed study goes on where it stopped. Experiments say what they need, so that the work that is left is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from jaxsink.evals.conditions import Condition
from jaxsink.evals.results import Result
from jaxsink.runs import arrays
from jaxsink.runs.arrays import Arrays
from jaxsink.runs.stopping import IsStopped, never
from jaxsink.sampling.base import Sampler
from jaxsink.study import nulls, plots
from jaxsink.study.gallery import Gallery, from_arrays
from jaxsink.study.measurements import Hidden, Measurement, Recorded, Scored, Untrained
from jaxsink.study.predictions import Prediction
from jaxsink.study.subject import Subject

Scores = dict[Condition, np.ndarray]
"""bool[N]: which problems are solved under each condition; or f64[N], nats per token of their published answers."""


@dataclass
class Study:
    """Experiments ask it for measurements and give it figures.

    Attributes:
        subjects: that are measured
        folder: of the results
        problems: asked under each condition
        generations: recorded in full
        rows: sequences of a batch, about
        eps: of Eq. 3
        seed: of the problems and all draws
        runs: a folder of training runs (`jaxsink train --out RUNS/NAME`), for the experiments on training
        untrained: models with random weights that each subject is held against
        answers: as for `study`
        stepped: as for `study`
        predictions: whose statistics are measured
        loaded: galleries that were read

    Examples:
        >>> one = jaxsink.study.subject("mini-llama").writing(tokens=8)
        >>> mine = jaxsink.study.Study([one], Path("short"), problems=2, generations=2)
        >>> mine.gallery(one).scores.shape  # measured and kept; then read from the folder
        (8, 4, 2, 4, 40)
        >>> len(mine.clusters(one))
        2
        >>> from jaxsink.evals.conditions import PLAIN, Condition
        >>> hiding = Condition(jaxsink.sinks.MaskSinks(k=1))
        >>> scores = mine.scores(one, [PLAIN, hiding])
        >>> len(scores[hiding]), len(mine.answered(one, [hiding], count=2)[hiding])
        (2, 2)
        >>> mine.hidden(one, [hiding])["K = 1, top: mass"].shape  # what the hidden keys received, step by step
        (8,)
        >>> mine.figure("received", mine.gallery(one).generation.plot_received(layer=3, head=0).figure)
        'received.svg'
    """

    subjects: list[Subject]
    folder: Path
    problems: int = 100  # per condition
    generations: int = 30  # recorded in full
    rows: int = 200  # the most sequences of a batch
    eps: float = 3.0
    seed: int = 0
    runs: Path | None = None
    untrained: int = nulls.UNTRAINED  # models with random weights that each subject is held against
    answers: int | None = None  # problems that are answered where answers are dear; None: all
    stepped: int | None = None  # given answers that an autoregressive model writes step by step, where dear; None: all
    predictions: tuple[Prediction, ...] = ()  # of all experiments
    loaded: dict[Path, Gallery] = field(default_factory=dict, repr=False)

    def measure(self, subject: Subject, spec: Measurement, is_stopped: IsStopped = never) -> None:
        """Measure and keep what is not there yet."""
        spec.measure(self, subject, is_stopped)

    def gallery(self, subject: Subject, spec: Recorded | None = None) -> Gallery:
        """The recorded generations of a subject."""
        spec = spec or Recorded()
        path = spec.path(self, subject)
        if path not in self.loaded:
            self.loaded[path] = from_arrays(
                self.arrays(subject, spec), subject.mask_id, self.eps, subject.model.config.block_length
            )
        return self.loaded[path]

    def predicted(self, subject: Subject) -> list[Prediction]:
        """What is predicted of the subject and held against untrained models."""
        return [one for one in self.predictions if one.untrained and one.about(subject)]

    def of_untrained(self, subject: Subject) -> list[Arrays]:
        """f64[B] by name of the prediction, for each untrained model."""
        count = self.untrained if self.predicted(subject) else 0
        return [self.arrays(subject, Untrained(number)) for number in range(count)]

    def hidden(self, subject: Subject, conditions: Sequence[Condition]) -> Arrays:
        """What each condition hides, see `Hidden`."""
        return self.arrays(subject, Hidden(tuple(conditions)))

    def clusters(self, subject: Subject) -> list[str]:
        """The distinct problem that each of the problems asks."""
        return [question.cluster for question in subject.exam(self.problems, self.seed).questions]

    def answered(
        self, subject: Subject, conditions: Sequence[Condition], count: int | None
    ) -> dict[Condition, list[Result]]:
        """What was written under each condition, problem by problem, as `jaxsink evaluate` keeps it."""
        spec = Scored(tuple(conditions), problems=count)
        self.measure(subject, spec)
        found = spec.results(self, subject)
        asked = [question.index for question in spec.exam(self, subject).questions]
        return {one: [found[index, str(one)] for index in asked] for one in conditions}

    def scores(
        self,
        subject: Subject,
        conditions: Sequence[Condition],
        gold: bool = False,
        count: int | None = None,
        sampler: Sampler | None = None,
    ) -> Scores:
        """Which problems are solved under each condition; gold: the loss of their published answers instead. count: of the
        first so many. sampler: None takes the subject's own."""
        spec = Scored(tuple(conditions), gold, count, sampler)
        self.measure(subject, spec)
        found = spec.results(self, subject)
        asked = [question.index for question in spec.exam(self, subject).questions]

        def value(line: dict[str, float]) -> float:
            return -line["log_prob"] / line["tokens"] if gold else bool(line["correct"])

        return {one: np.array([value(found[index, str(one)]) for index in asked]) for one in conditions}

    def figure(self, name: str, figure: Figure) -> str:
        """Write a figure; returns the name of its file."""
        return plots.save(figure, self.folder / "figures", name)

    def hash(self, subject: Subject, *parts: object) -> str:
        """For the name of a file that depends on all this, on the subject and on the seed."""
        asked = None if subject.prompts is None else subject.prompts.digest
        return hashlib.sha256(repr((subject.fingerprint, self.seed, asked, *parts)).encode()).hexdigest()[:16]

    def arrays(self, subject: Subject, spec: Measurement) -> Arrays:
        """What a measurement kept."""
        self.measure(subject, spec)
        return arrays.read(spec.path(self, subject))
