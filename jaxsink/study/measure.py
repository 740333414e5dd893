"""Measurements of a study: made once, kept as files, shared by all experiments.

    OUT/manifest.json          versions, settings, models and their hashes, machine
    OUT/pieces/MODEL/*.npz     generations with their statistics, and right or wrong per problem and condition
    OUT/experiments/*.json     findings; their tables also as CSV
    OUT/figures/               SVG, PNG and PDF
    OUT/player/*.npz           generations for the report's player

A piece's name holds a hash of all it depends on, so a run with other settings never finds the wrong one, and a killed run
goes on where it stopped. Experiments say what they need (`Recorded`, `Scored`), so that the work that is left is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxsink.parallel.hosts import to_host
from jaxsink.recording.recorders import received, received_by_query
from jaxsink.runs.pieces import Pieces
from jaxsink.sampling.generate import generate
from jaxsink.sampling.generation import Generation
from jaxsink.sinks import MaskSinks, Turns
from jaxsink.study import plots
from jaxsink.study.gallery import Gallery, from_arrays
from jaxsink.study.subject import Subject, questions

RECORD = 1 << 28  # bytes of a record that a device holds before they go to the host, about
Policies = Mapping[str, MaskSinks | None]
Changes = tuple[tuple[str, Any], ...]


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
    """Which problems are solved under each policy; all of them rank on the same kind of map."""

    policies: tuple[tuple[str, MaskSinks | None], ...]

    @classmethod
    def of(cls, policies: Policies) -> Scored:
        return cls(tuple(policies.items()))


Measurement = Recorded | Scored


@dataclass(frozen=True)
class Piece:
    """A part of a measurement that is computed at once. cost: sequences times steps, about."""

    subject: Subject
    name: str
    label: str
    cost: int
    spec: Measurement
    first: int = 0


@dataclass
class Study:
    """Subjects, sizes and a folder; experiments ask it for measurements and give it figures.

    runs: a folder of training runs (`jaxsink train --out RUNS/NAME`), for the experiments on training.
    """

    subjects: list[Subject]
    folder: Path
    problems: int = 100  # per condition
    generations: int = 30  # recorded in full
    rows: int = 200  # sequences of a batch, about; conditions take turns in it
    eps: float = 3.0
    seed: int = 0
    runs: Path | None = None
    loaded: dict[str, Any] = field(default_factory=dict, repr=False)

    def pieces(self, subject: Subject, spec: Measurement) -> Iterator[Piece]:
        """What the measurement consists of."""
        steps = subject.sampler.response_length if subject.is_diffusion else subject.sampler.response_length // 4
        if isinstance(spec, Recorded):
            count = self._count(spec)
            hidden = () if spec.hide is None else (spec.hide,)
            name = self._name("gallery", subject, self._sampler(subject, spec), count, *hidden)
            label = f"{subject.name}: {count} recorded generations{' with sinks hidden' if hidden else ''}"
            yield Piece(subject, name, label, 2 * steps * count, spec)
            return
        policies = [policy for _, policy in spec.policies]
        batch = self._share(len(policies))
        passes = 2 if Turns(tuple(policies)).rank_on == "clean" else 1
        for first in range(0, self.problems, batch):
            name = self._name("right", subject, subject.sampler, policies, first, batch)
            last = min(first + batch, self.problems)
            label = f"{subject.name}: {len(policies)} conditions, problems {first + 1} to {last}"
            yield Piece(subject, name, label, passes * steps * batch * len(policies), spec, first)

    def is_done(self, piece: Piece) -> bool:
        return self._store(piece.subject).done(piece.name)

    def compute(self, piece: Piece) -> None:
        """Measure and keep the piece, unless it is there."""
        work = self._record if isinstance(piece.spec, Recorded) else self._score
        self._store(piece.subject).do(piece.name, lambda: work(piece))

    def gallery(self, subject: Subject, **changes: Any) -> Gallery:
        return self.recorded(subject, Recorded(tuple(changes.items())))

    def recorded(self, subject: Subject, spec: Recorded) -> Gallery:
        (piece,) = self.pieces(subject, spec)
        if piece.name not in self.loaded:
            arrays = self._result(piece)
            self.loaded[piece.name] = from_arrays(arrays, subject.model.config.mask_id, self.eps)
        return self.loaded[piece.name]

    def right(self, subject: Subject, policies: Policies) -> dict[str, np.ndarray]:
        """bool[N] per policy: which problems are answered correctly."""
        parts = [self._result(piece)["right"] for piece in self.pieces(subject, Scored.of(policies))]
        return dict(zip(policies, np.concatenate(parts, axis=1)[:, : self.problems], strict=True))

    def figure(self, name: str, figure: Any) -> str:
        return plots.save(figure, self.folder / "figures", name)

    def _result(self, piece: Piece) -> dict[str, np.ndarray]:
        self.compute(piece)
        return self._store(piece.subject).load(piece.name)

    def _record(self, piece: Piece) -> dict[str, Any]:
        subject = piece.subject
        assert isinstance(piece.spec, Recorded)
        wanted: dict[str, Any] = {"scores": received()}
        if subject.is_diffusion:
            wanted["split"] = received_by_query()
        sampler, config = self._sampler(subject, piece.spec), subject.model.config
        count, hide = self._count(piece.spec), piece.spec.hide
        parts = []
        for first in range(0, count, self.rows):
            numbers = range(first, min(first + self.rows, count))
            per_step = 16 * config.layers * len(numbers) * config.heads * (subject.pad_to + sampler.response_length)
            stream = max(1, RECORD // per_step) if per_step * sampler.response_length > RECORD else None
            out = self._generate(subject, sampler, numbers, record=wanted, stream=stream, intervene=hide)
            parts.append(arrays_of(out))
        axes = {name: axis for name, axis in BATCH_AXIS.items() if name in parts[0]}
        joined = {name: np.concatenate([part[name] for part in parts], axis=axis) for name, axis in axes.items()}
        return joined | {"prompt_length": parts[0]["prompt_length"]}

    def _score(self, piece: Piece) -> dict[str, Any]:
        """{"right": bool[policies, problems of the piece]}: each problem is asked once per policy, in turns."""
        subject = piece.subject
        assert isinstance(piece.spec, Scored)
        policies = tuple(policy for _, policy in piece.spec.policies)
        batch = self._share(len(policies))
        numbers = [number for number in range(piece.first, piece.first + batch) for _ in policies]
        asked = questions(piece.first + batch, self.seed)
        out = self._generate(subject, subject.sampler, numbers, intervene=Turns(policies))
        texts = subject.texts(np.asarray(out.response))
        right = [asked[number].score(text) for number, text in zip(numbers, texts, strict=True)]
        return {"right": np.array(right).reshape(batch, len(policies)).T}

    def _generate(self, subject: Subject, sampler: Any, numbers: Any, **options: Any) -> Generation:
        asked = questions(max(numbers) + 1, self.seed)
        prompts = subject.prompts([asked[number] for number in numbers])
        seeds = [self.seed + number for number in numbers]
        return generate(subject.model, prompts, sampler, seed=seeds, pad_to=subject.pad_to, **options)

    def _share(self, conditions: int) -> int:
        """Problems of a batch in which so many conditions take turns."""
        return max(1, self.rows // conditions)

    def _count(self, spec: Recorded) -> int:
        return min(self.generations, spec.generations or self.generations)

    def _sampler(self, subject: Subject, spec: Recorded) -> Any:
        return replace(subject.mapped_sampler, **dict(spec.changes)) if spec.changes else subject.mapped_sampler

    def _store(self, subject: Subject) -> Pieces:
        return Pieces(self.folder / "pieces" / subject.name)

    def _name(self, kind: str, subject: Subject, *parts: Any) -> str:
        text = repr((kind, subject.fingerprint, self.seed, *parts))
        return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


BATCH_AXIS = {"scores": 2, "masked": 2, "tokens": 0, "committed_at": 0, "mask": 0, "real": 1, "taken": 0}


def arrays_of(out: Generation) -> dict[str, np.ndarray]:
    """What a gallery keeps of a generation."""
    arrays = {
        "scores": out.record["scores"],
        "tokens": out.tokens,
        "committed_at": out.committed_at,
        "mask": out.mask,
        "real": out.real_at(),
        "taken": out.recorded_of(),
        "prompt_length": np.array(out.prompt_length),
    }
    if "split" in out.record:
        arrays["masked"] = out.record["split"]["masked"]
    return {name: np.asarray(to_host(value)) for name, value in arrays.items()}
