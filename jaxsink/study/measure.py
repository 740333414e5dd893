"""Measurements of a study: made once, kept as files, shared by all experiments.

    OUT/manifest.json            settings, models and their fingerprints, versions, machine
    OUT/galleries/MODEL/*.npz    generations with their statistics
    OUT/answers/MODEL-*/*.jsonl  answers and scores per problem and condition, as `jaxsink evaluate` keeps them
    OUT/experiments/*.json       findings; their tables also as CSV
    OUT/figures/                 SVG, PNG and PDF
    OUT/player/*.npz             generations for the report's player

A file's name holds a hash of all it depends on, so a study with other settings never finds the wrong one, and a killed one
goes on where it stopped. Experiments say what they need (`Recorded`, `Scored`), so that the work that is left is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from jaxsink.evals.conditions import Condition
from jaxsink.evals.engine import Evaluation, ask_all
from jaxsink.evals.results import RESULTS, Key, Result, read_results
from jaxsink.parallel.hosts import from_main
from jaxsink.recording.recorders import received, received_by_query
from jaxsink.runs import arrays
from jaxsink.runs.arrays import Arrays
from jaxsink.runs.run import Run
from jaxsink.runs.stopping import IsStopped, StoppedError, never
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.generate import generate
from jaxsink.sampling.generation import Generation
from jaxsink.sinks import MaskSinks
from jaxsink.study import plots
from jaxsink.study.gallery import Gallery, from_arrays
from jaxsink.study.subject import Subject

RECORD = 1 << 28  # bytes of a record that a device holds before they go to the host, about
Changes = tuple[tuple[str, Any], ...]
Scores = dict[Condition, np.ndarray]
"""bool[N]: which problems are solved under each condition."""


@dataclass(frozen=True)
class Recorded:
    """Generations with their statistics; `changes` replace fields of the sampler.

    hide         keys that are hidden meanwhile
    generations  how many, at most; None: as many as the study records
    """

    changes: Changes = ()
    hide: MaskSinks | None = None
    generations: int | None = None


@dataclass(frozen=True)
class Scored:
    """Which problems are solved under each condition."""

    conditions: tuple[Condition, ...]


Measurement = Recorded | Scored


@dataclass
class Study:
    """Subjects, sizes and a folder; experiments ask it for measurements and give it figures.

    runs: a folder of training runs (`jaxsink train --out RUNS/NAME`), for the experiments on training.
    """

    subjects: list[Subject]
    folder: Path
    problems: int = 100  # per condition
    generations: int = 30  # recorded in full
    rows: int = 200  # the most sequences of a batch
    eps: float = 3.0
    seed: int = 0
    runs: Path | None = None
    loaded: dict[Path, Gallery] = field(default_factory=dict, repr=False)

    def path(self, subject: Subject, spec: Measurement) -> Path:
        """Where the measurement is kept."""
        if isinstance(spec, Scored):
            return self.folder / "answers" / f"{subject.name}-{self._hash(subject, subject.sampler)}"
        name = self._hash(subject, self._sampler(subject, spec), self._count(spec), spec.hide)
        return self.folder / "galleries" / subject.name / f"{name}.npz"

    def describe(self, subject: Subject, spec: Measurement) -> str:
        if isinstance(spec, Scored):
            return f"{subject.name}: {self.problems} problems under {len(spec.conditions)} conditions"
        return f"{subject.name}: {self._count(spec)} recorded generations{' with sinks hidden' if spec.hide else ''}"

    def cost(self, subject: Subject, spec: Measurement) -> int:
        """Of what is left to measure: sequences times steps, about; 0 if it is all there."""
        steps = subject.sampler.response_length if subject.is_diffusion else subject.sampler.response_length // 4
        if isinstance(spec, Recorded):
            return 0 if arrays.is_kept(self.path(subject, spec)) else 2 * steps * self._count(spec)
        names = {str(condition) for condition in spec.conditions}
        done = sum(name in names for _, name in self._done(subject))
        return steps * (self.problems * len(names) - done)

    def measure(self, subject: Subject, spec: Measurement, is_stopped: IsStopped = never) -> None:
        """Measure and keep what is not there yet."""
        if isinstance(spec, Recorded):
            arrays.keep(self.path(subject, spec), lambda: self._record(subject, spec, is_stopped))
            return
        exam = subject.exam(self.problems, self.seed)
        job = Evaluation(subject.model, exam, spec.conditions, self.seed, eps=None, rows=self.rows)
        with Run(self.path(subject, spec)).lines(RESULTS) as results:
            ask_all(job, results.append, done=self._done(subject), is_stopped=is_stopped)

    def gallery(self, subject: Subject, spec: Recorded | None = None) -> Gallery:
        """The recorded generations of a subject."""
        spec = spec or Recorded()
        path = self.path(subject, spec)
        if path not in self.loaded:
            self.measure(subject, spec)
            self.loaded[path] = from_arrays(arrays.read(path), subject.model.config.mask_id, self.eps)
        return self.loaded[path]

    def scores(self, subject: Subject, conditions: Sequence[Condition]) -> Scores:
        self.measure(subject, Scored(tuple(conditions)))
        found = self._answers(subject)
        return {
            condition: np.array([found[number, str(condition)]["correct"] for number in range(self.problems)], bool)
            for condition in conditions
        }

    def figure(self, name: str, figure: Figure) -> str:
        return plots.save(figure, self.folder / "figures", name)

    def _answers(self, subject: Subject) -> dict[Key, Result]:
        return read_results(self.path(subject, Scored(())))

    def _done(self, subject: Subject) -> set[Key]:
        return {(index, name) for index, name in from_main([list(key) for key in self._answers(subject)])}

    def _record(self, subject: Subject, spec: Recorded, is_stopped: IsStopped) -> Arrays:
        wanted: dict[str, Any] = {"scores": received()}
        if subject.is_diffusion:
            wanted["split"] = received_by_query()
        sampler, config, count = self._sampler(subject, spec), subject.model.config, self._count(spec)
        exam, parts = subject.exam(count, self.seed), []
        for first in range(0, count, self.rows):
            if is_stopped():
                raise StoppedError
            asked = exam.questions[first : first + self.rows]
            per_step = 16 * config.layers * len(asked) * config.heads * (exam.bucket + sampler.response_length)
            out = generate(
                subject.model,
                [list(question.prompt) for question in asked],
                sampler,
                record=wanted,
                intervene=spec.hide,
                seed=[self.seed + question.index for question in asked],
                stream=max(1, RECORD // per_step) if per_step * sampler.response_length > RECORD else None,
                pad_to=exam.bucket,
            )
            parts.append(arrays_of(out))
        axes = {name: axis for name, axis in BATCH_AXIS.items() if name in parts[0]}
        joined = {name: np.concatenate([part[name] for part in parts], axis=axis) for name, axis in axes.items()}
        return joined | {"prompt_length": parts[0]["prompt_length"]}

    def _count(self, spec: Recorded) -> int:
        return min(self.generations, spec.generations or self.generations)

    def _sampler(self, subject: Subject, spec: Recorded) -> Sampler:
        sampler: Any = subject.sampler.with_whole_map()
        return replace(sampler, **dict(spec.changes))

    def _hash(self, subject: Subject, *parts: Any) -> str:
        return hashlib.sha256(repr((subject.fingerprint, self.seed, *parts)).encode()).hexdigest()[:16]


BATCH_AXIS = {"scores": 2, "masked": 2, "tokens": 0, "committed_at": 0, "mask": 0, "real": 1, "taken": 0}


def arrays_of(out: Generation) -> Arrays:
    """What a gallery keeps of a generation."""
    out = out.on_host()
    kept = {
        "scores": out.record["scores"],
        "tokens": out.tokens,
        "committed_at": out.committed_at,
        "mask": out.mask,
        "real": out.real_at(),
        "taken": out.recorded_of(),
        "prompt_length": np.array(out.prompt_length),
    }
    return kept | ({"masked": out.record["split"]["masked"]} if "split" in out.record else {})
