"""Texts in which tokens stand elsewhere, and how much of what keys receive went with them.

Suppose that what a key receives has a part that belongs to its token and one that belongs to its position. Then the gain of
the place where the token stands now is due to the token, and what its old place keeps is due to the position.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxsink_experiments.canvases import Canvas, canvases, fair_scores, pass_over, random_key, ratio, sinks

import jaxsink
from jaxsink.study import Gallery, Subject

SHIFT = 4  # tokens by which a text moves
DRAWS = 2  # of each change


class Displaced(NamedTuple):
    """source i64[B,S'], where the token at each place stood before; goes_to i64[B,S], where each token stands now. A
    place and a position of the same number are equally far from the first token."""

    source: np.ndarray
    goes_to: np.ndarray


class Parts(NamedTuple):
    """What went with the token, and what stayed at the position, of a set of keys: f64[B] each."""

    token: np.ndarray
    position: np.ndarray


class Displacement(NamedTuple):
    """The share that went with the token, f64[B] in [0, 1]: of the main sink, and of other keys that received more than both
    what stands in their place now and the place that their token went to."""

    sinks: np.ndarray
    others: np.ndarray


def swapped(canvas: Canvas, key: np.ndarray, plain: np.ndarray, draw: np.random.Generator) -> Iterator[Displaced]:
    """The token at `key` [B] changes places with one that is no sink; then so do two that are none."""
    rows, here = np.arange(len(key)), np.broadcast_to(np.arange(plain.shape[1]), plain.shape)
    for one in (key, random_key(plain, draw)):
        for _ in range(DRAWS):
            among = unlike(canvas, one, plain)
            other = np.where(among.any(axis=1), random_key(among, draw), one)
            source = here.copy()
            source[rows, one], source[rows, other] = other, one
            yield Displaced(source, source)


def shifted(canvas: Canvas, key: np.ndarray, plain: np.ndarray, draw: np.random.Generator) -> Iterator[Displaced]:
    """A few tokens of the text that are no sinks are put before it."""
    rows, length = np.arange(len(key))[:, None], plain.shape[1]
    first, among = canvas.there.argmax(axis=1)[:, None], unlike(canvas, key, plain)
    for _ in range(DRAWS):
        source = np.tile(np.maximum(np.arange(length + SHIFT) - SHIFT, 0), (len(key), 1))
        added = [random_key(among, draw) for _ in range(SHIFT)]
        source[rows, first + np.arange(SHIFT)] = np.stack(added, axis=1)
        yield Displaced(source, np.tile(np.arange(length) + SHIFT, (len(key), 1)))


def unlike(canvas: Canvas, key: np.ndarray, plain: np.ndarray) -> np.ndarray:
    """bool[B,S]: those of the plain tokens that are not the one at `key` [B]."""
    return plain & (canvas.tokens != np.take_along_axis(canvas.tokens, key[:, None], axis=1))


CHANGES = {"swap": swapped, "shift": shifted}


@lru_cache(maxsize=2)
def displacement(subject: Subject, gallery: Gallery, change: str) -> Displacement:
    """Over some steps of each generation, the heads whose largest sink is the main one, and draws of the change."""
    draw, total = np.random.default_rng(0), np.zeros((2, 2, len(gallery.tokens)))
    for canvas in canvases(subject, gallery):
        scores = received(subject, canvas.tokens, canvas.there)
        found = sinks(scores, canvas.there, gallery.eps)
        key, heads = main_sink(scores, found)
        plain = canvas.there & ~found.any(axis=(0, 2))
        for made in CHANGES[change](canvas, key, plain, draw):
            total += parts(subject, canvas, scores, made, key, heads, plain)
    token, position = total[:, 0], total[:, 1]
    return Displacement(*np.clip(ratio(token, token + position), 0.0, 1.0))


def main_sink(scores: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(i64[B], bool[L,B,H]): the key that is the largest sink of most heads, and these heads."""
    largest = np.where(found.any(axis=-1), np.where(found, scores, -1.0).argmax(axis=-1), -1)
    key = (largest[..., None] == np.arange(scores.shape[-1])).sum(axis=(0, 2)).argmax(axis=-1)
    return key, largest == key[None, :, None]


def parts(
    subject: Subject,
    canvas: Canvas,
    scores: np.ndarray,
    made: Displaced,
    key: np.ndarray,
    heads: np.ndarray,
    plain: np.ndarray,
) -> np.ndarray:
    """f64[2,2,B]: of the main sink and of other keys, what went with the token and what stayed at the position."""
    rows, length, longer = np.arange(len(key))[:, None], scores.shape[-1], made.source.shape[1]
    there = np.pad(canvas.there, ((0, 0), (0, longer - length)), constant_values=True)
    after = received(subject, canvas.tokens[rows, made.source], there)
    before = np.pad(scores, [(0, 0)] * 3 + [(0, longer - length)], constant_values=1.0)  # where nothing was: the mean
    to, replaced = (by_key(before, index) for index in (made.goes_to, made.source[:, :length]))
    gain, kept = by_key(after, made.goes_to) - to, after[..., :length] - replaced
    moved = (made.goes_to != np.arange(length))[None, :, None]
    one = heads[..., None] & moved & (np.arange(length) == key[:, None])[None, :, None]
    others = heads[..., None] & moved & plain[None, :, None] & (scores > to) & (scores > replaced)
    return np.array([[np.where(of, x, 0.0).sum(axis=(0, 2, 3)) for x in (gain, kept)] for of in (one, others)])


def by_key(scores: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Scores [L,B,H,S] at positions [B,N]."""
    return np.take_along_axis(scores, index[None, :, None, :], axis=-1)


def received(subject: Subject, tokens: np.ndarray, there: np.ndarray) -> np.ndarray:
    """f32[L,B,H,S] in which uniform attention gives every key 1."""
    record = pass_over(subject, tokens, there, record=jaxsink.record.received()).record
    return fair_scores(subject.model.config, record, there)
