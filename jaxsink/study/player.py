"""Generations for the report's player: some problems of each subject, as it is and with its sinks hidden."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxsink.report.played import to_half
from jaxsink.runs.atomic import new_file
from jaxsink.sinks import MaskSinks
from jaxsink.study.gallery import Gallery
from jaxsink.study.measure import Study
from jaxsink.study.measurements import Recorded
from jaxsink.study.subject import Subject

PROBLEMS = 3
HIDDEN = Recorded(hide=MaskSinks(1), generations=PROBLEMS)
CONDITION = "top sink hidden"


def needs(study: Study) -> Iterator[tuple[Subject, Recorded]]:
    """What has to be measured for the player."""
    for subject in study.subjects:
        yield subject, Recorded()
        yield subject, HIDDEN


def export(study: Study) -> list[str]:
    """Write `player/MODEL-PROBLEM.npz`, and the same with `-hidden`, for every subject; the names of the files."""
    names = []
    for subject, spec in needs(study):
        gallery, condition = study.gallery(subject, spec), CONDITION if spec.hide else ""
        for sequence in range(min(PROBLEMS, len(gallery.tokens))):
            name = f"{subject.name}-{sequence + 1}{'-hidden' if spec.hide else ''}.npz"
            arrays = one_generation(subject, gallery, sequence) | {"condition": np.array(condition)}
            with new_file(study.folder / "player" / name) as partial, partial.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)
            names.append(name)
    return names


def one_generation(subject: Subject, gallery: Gallery, sequence: int) -> dict[str, Any]:
    """The arrays of one sequence, without its padding: scores f16[T,L,H,S], and which token is where and when.

    Positions after the early end of an autoregressive sequence were never filled; they are left out.
    """
    positions = np.arange(gallery.mask.shape[1])
    there = gallery.mask[sequence] & ((positions < gallery.prompt_length) | (gallery.committed_at[sequence] >= 0))
    real, taken = np.flatnonzero(there), int(gallery.taken[sequence])

    def cut(scores: np.ndarray) -> np.ndarray:
        return to_half(scores[:taken, :, sequence][..., real])

    arrays: dict[str, Any] = {
        "scores": cut(gallery.scores),
        "committed_at": gallery.committed_at[sequence, real],
        "steps": np.arange(taken, dtype=np.int32),
        "tokens": np.array(
            [subject.tokenizer.decode([int(i)], skip_special=False) for i in gallery.tokens[sequence, real]]
        ),
        "prompt_length": np.array((real < gallery.prompt_length).sum(), np.int32),
        "problem": np.array(f"Problem {sequence + 1}"),
        "model": np.array(subject.name),
        "kind": np.array("dlm" if subject.is_diffusion else "arm"),
    }
    if gallery.masked is not None:
        arrays["masked"] = cut(gallery.masked)
    return arrays
