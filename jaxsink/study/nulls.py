"""Nulls: the same generations with what a claim is about shuffled away, and the same model without its training.

A permutation null is a gallery in which one thing is left to chance; the statistic of a claim is computed on it by the same
code. A control is the statistic of something else in the same generations, such as other keys that are hidden. An untrained
model is the subject's configuration with random weights, asked the same questions, or shown what the subject wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from jaxsink.study.gallery import Gallery
from jaxsink.study.subject import Subject, with_random_weights

UNTRAINED = 8
"""How many untrained models stand for the null of a subject."""
FIRST_SEED = 1000
"""Of the untrained models' weights; a subject of a study that is untrained itself has another."""


Statistic = Callable[[Subject, Gallery], np.ndarray]
"""One number for each generation; NaN where it has none."""


@dataclass(frozen=True)
class Control:
    """What the statistic is compared with in each generation, in words, and how it is computed."""

    name: str
    of: Statistic


@dataclass(frozen=True)
class Shuffle:
    """What is left to chance, in words, and how; `repeats`: how often it is drawn and averaged."""

    name: str
    of: Callable[[Gallery, np.random.Generator], Gallery]
    repeats: int = 1


def untrained(subject: Subject, number: int) -> Subject:
    """The subject with random weights; `number` counts the draws."""
    return with_random_weights(subject, FIRST_SEED + number, f"{subject.name} untrained")


def _queries(gallery: Gallery, draw: np.random.Generator) -> Gallery:
    return replace(gallery, scores=gallery.shuffled)


def _split(gallery: Gallery, draw: np.random.Generator) -> Gallery:
    return replace(gallery, masked=gallery.random_split)


def _steps(gallery: Gallery, draw: np.random.Generator) -> Gallery:
    """The steps of each sequence in random order, the same for all layers and heads."""
    order = np.argsort(np.where(gallery.counted, draw.random(gallery.counted.shape), 2.0), axis=0)  # [T,B]
    scores = np.take_along_axis(gallery.scores, order[:, None, :, None, None], axis=0)
    real = np.take_along_axis(gallery.real, order[:, :, None], axis=0)
    return replace(gallery, scores=scores, real=real)


def _tokens(gallery: Gallery, draw: np.random.Generator) -> Gallery:
    """The tokens of each canvas in random order under the same scores."""
    there = gallery.real & gallery.counted[..., None]
    rank = np.argsort(np.where(there, draw.random(there.shape), 2.0), axis=-1)
    place = np.argsort(~there, axis=-1, kind="stable")
    canvas = gallery.canvas.copy()
    np.put_along_axis(canvas, place, np.take_along_axis(gallery.canvas, rank, axis=-1), axis=-1)
    return replace(gallery, canvas=np.where(there, canvas, gallery.canvas))


QUERIES = Shuffle("queries shuffled", _queries)
SPLIT = Shuffle("queries split at random", _split)
STEPS = Shuffle("steps shuffled", _steps, repeats=5)
TOKENS = Shuffle("tokens shuffled", _tokens, repeats=5)
