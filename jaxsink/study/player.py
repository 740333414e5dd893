"""Generations for the report's player: one per subject, with everything a reader can switch on, as small files."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxsink.atomic import new_file
from jaxsink.study.measure import Gallery, Study
from jaxsink.study.subject import Subject


def export(study: Study, row: int = 0) -> list[str]:
    """Write `player/MODEL.npz` for every subject; the names of the files."""
    names = []
    for subject in study.subjects:
        arrays = one_generation(subject, study.gallery(subject), row)
        with new_file(study.folder / "player" / f"{subject.name}.npz") as partial, partial.open("wb") as file:
            np.savez_compressed(file, **arrays)
        names.append(f"{subject.name}.npz")
    return names


def one_generation(subject: Subject, gallery: Gallery, row: int) -> dict[str, Any]:
    """The arrays of one row, without its padding: scores f16[T,L,H,S] and what stands where and when.

    An autoregressive row that ended early has places after its end that nobody wrote; they are left out.
    """
    places = np.arange(gallery.mask.shape[1])
    there = gallery.mask[row] & ((places < gallery.prompt_length) | (gallery.committed_at[row] >= 0))
    real, taken = np.flatnonzero(there), int(gallery.taken[row])

    def cut(scores: np.ndarray) -> np.ndarray:
        return scores[:taken, :, row][..., real].astype(np.float16)

    arrays: dict[str, Any] = {
        "scores": cut(gallery.scores),
        "committed_at": gallery.committed_at[row, real],
        "steps": np.arange(taken, dtype=np.int32),
        "tokens": np.array([subject.tokenizer.decode([int(i)], skip_special=False) for i in gallery.tokens[row, real]]),
        "prompt_length": np.array((real < gallery.prompt_length).sum(), np.int32),
        "title": np.array(f"{subject.name}: problem {row + 1}"),
        "model": np.array(subject.name),
        "kind": np.array("dlm" if subject.is_diffusion else "arm"),
        "mask_text": np.array("▒" if subject.is_diffusion else ""),
    }
    if gallery.masked is not None:
        arrays |= {"masked": cut(gallery.masked), "unmasked": cut(gallery.scores - gallery.masked)}
    return arrays
