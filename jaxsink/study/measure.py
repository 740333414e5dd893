"""Measurements of a study: made once, kept as files, shared by all experiments.

    OUT/manifest.json          versions, settings, models and their hashes, machine
    OUT/pieces/MODEL/*.npz     generations with their statistics, and right or wrong per problem and condition
    OUT/experiments/*.json     findings; their tables also as CSV
    OUT/figures/               SVG and PNG
    OUT/player/*.npz           generations for the report's player

A piece's name holds a hash of all it depends on, so a run with other settings never finds the wrong one, and a killed run
goes on where it stopped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from jaxsink.pieces import Pieces
from jaxsink.record import received, received_by_query
from jaxsink.sampling.generate import Generation, generate
from jaxsink.sinks import Threshold, Tracks, canvases, track
from jaxsink.study import plots
from jaxsink.study.subject import Subject, questions


@dataclass(frozen=True)
class Gallery:
    """Recorded generations of one subject, all prompts of one length (padded on the left)."""

    scores: np.ndarray  # f32[T,L,B,H,S], attention received
    masked: np.ndarray | None  # f32[T,L,B,H,S], from masked queries; None for autoregressive models
    tokens: np.ndarray  # i32[B,S]
    committed_at: np.ndarray  # i32[B,S]
    mask: np.ndarray  # bool[B,S]
    real: np.ndarray  # bool[T,B,S], the tokens that exist at each step
    taken: np.ndarray  # i32[B], steps each row took
    prompt_length: int
    mask_id: int | None
    eps: float

    @cached_property
    def tracks(self) -> Tracks:
        tracks = track(self.scores, Threshold(self.eps), self.real, self.taken)
        return Tracks(*(np.asarray(part) for part in tracks))  # type: ignore[arg-type]

    @cached_property
    def canvas(self) -> np.ndarray:
        """i32[T,B,S]: what the model saw; -1 where an autoregressive model had not written yet."""
        return np.asarray(canvases(self.tokens, self.committed_at, np.arange(len(self.scores)), self.mask_id))

    @cached_property
    def counted(self) -> np.ndarray:
        """bool[T,B]: steps that a row took."""
        return np.arange(len(self.scores))[:, None] < self.taken

    def place(self) -> np.ndarray:
        """i32[B,S]: positions counted from each row's first real token."""
        return np.cumsum(self.mask, axis=1) - 1


@dataclass
class Study:
    """Subjects, sizes and a folder; experiments ask it for measurements and give it figures."""

    subjects: list[Subject]
    folder: Path
    problems: int = 100  # per condition
    generations: int = 30  # recorded in full
    eps: float = 3.0
    seed: int = 0
    batch: int = 50  # problems per piece
    report: Callable[[str], None] = lambda text: None

    def gallery(self, subject: Subject, **changes: Any) -> Gallery:
        """Recorded generations; `changes` replace fields of the sampler."""
        sampler = _changed(subject.mapped_sampler, changes)
        name = self._name("gallery", subject, sampler, self.generations)
        pieces = self._pieces(subject)
        pieces.do(name, lambda: self._record(subject, sampler))
        arrays = pieces.load(name)
        return Gallery(
            scores=arrays["scores"], masked=arrays.get("masked"), tokens=arrays["tokens"],
            committed_at=arrays["committed_at"], mask=arrays["mask"], real=arrays["real"], taken=arrays["taken"],
            prompt_length=int(arrays["prompt_length"]), mask_id=subject.model.config.mask_id, eps=self.eps,
        )  # fmt: skip

    def _record(self, subject: Subject, sampler: Any) -> dict[str, Any]:
        self.report(f"{subject.name}: {self.generations} recorded generations")
        wanted: dict[str, Any] = {"scores": received()}
        if subject.is_diffusion:
            wanted["split"] = received_by_query()
        out = self._generate(subject, sampler, self.generations, record=wanted)
        arrays = {
            "scores": out.record["scores"], "tokens": out.tokens, "committed_at": out.committed_at, "mask": out.mask,
            "real": out.real_at(), "taken": out.recorded_of(), "prompt_length": np.array(out.prompt_length),
        }  # fmt: skip
        return arrays | ({"masked": out.record["split"]["masked"]} if subject.is_diffusion else {})

    def right(self, subject: Subject, condition: str, policy: Any = None, **changes: Any) -> np.ndarray:
        """bool[N]: which problems are answered correctly under an intervention; batch by batch, each kept."""
        sampler, pieces = _changed(subject.sampler, changes), self._pieces(subject)
        parts = []
        for first in range(0, self.problems, self.batch):
            name = self._name("right", subject, sampler, policy, first, self.batch)

            def score(first: int = first) -> dict[str, Any]:
                self.report(f"{subject.name}: {condition}, problems {first + 1} to {first + self.batch}")
                asked = questions(first + self.batch, self.seed)[first:]
                out = self._generate(subject, sampler, self.batch, first, intervene=policy)
                texts = subject.texts(np.asarray(out.response))
                return {"right": np.array([p.score(text) for p, text in zip(asked, texts, strict=True)])}

            pieces.do(name, score)
            parts.append(pieces.load(name)["right"])
        return np.concatenate(parts)[: self.problems]

    def _generate(self, subject: Subject, sampler: Any, count: int, first: int = 0, **options: Any) -> Generation:
        prompts = subject.prompts(questions(first + count, self.seed)[first:])
        seeds = [self.seed + first + row for row in range(count)]
        return generate(subject.model, prompts, sampler, seed=seeds, pad_to=subject.pad_to, **options)

    def figure(self, name: str, figure: Any) -> str:
        return plots.save(figure, self.folder / "figures", name)

    def _pieces(self, subject: Subject) -> Pieces:
        return Pieces(self.folder / "pieces" / subject.name)

    def _name(self, kind: str, subject: Subject, *parts: Any) -> str:
        text = repr((kind, subject.fingerprint, self.seed, *parts))
        return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _changed(sampler: Any, changes: dict[str, Any]) -> Any:
    return replace(sampler, **changes) if changes else sampler
