"""FOCUS (arXiv 2601.23278) keeps the masks whose incoming attention grows most from the first layer to the second: these
are the ones that decode next, it says, so the others need not run through the rest of the model.

Importance is what a mask receives from the masks of its block (`jaxsink.recording.among_masks`), summed over heads. Whether
its change foretells the next token is asked as a ranking: is it larger at the mask that is filled in this step than at the
other masks of the block? A model that writes from left to right is foretold by positions alone, so the mask is also held
against its nearest neighbours on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from jaxsink_experiments.canvases import Canvas, canvases, mean_of, pass_over

from jaxsink.recording.among_masks import among_masks
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, experiment, nulls, plots
from jaxsink.study.experiments import diffusion_models

COUNT = 12  # steps of each generation
CHANCE = 0.5
KEPT = 0.9  # of the tokens that are filled in
SCORES = {
    "change": "its change from the first layer to the second",
    "first": "importance in the first layer",
    "second": "importance in the second layer",
    "left": "the leftmost mask",
}


class Step(NamedTuple):
    """The masks of one canvas that could be filled in now: their scores f64[N] by name, in order of position; and those
    that are."""

    scores: dict[str, np.ndarray]
    filled: np.ndarray  # bool[N]


def windows(subject: Subject, gallery: Gallery, masked: np.ndarray) -> tuple[np.ndarray, int]:
    """(i64[B]: where the block begins that each sequence is working on; its length); the response, if there are no blocks.
    masked: bool[B,S]"""
    config, sampler, start = subject.model.config, subject.sampler, np.full(len(masked), gallery.prompt_length)
    growing = sampler.appending(config)
    block = min(growing.block if growing else sampler.window(config), masked.shape[1])
    if growing and growing.from_first:
        start = gallery.mask.argmax(axis=1)
    return start + (np.maximum(np.argmax(masked, axis=1) - start, 0) // block) * block, block


def importance(subject: Subject, canvas: Canvas, first: np.ndarray, length: int) -> np.ndarray:
    """f64[2,B,S]: of the first two layers, summed over heads."""
    found = np.zeros((2, *canvas.tokens.shape))
    for start in np.unique(first):
        rows = first == start
        record = among_masks(int(start), int(start) + length - 1).at((0, 1))
        seen = pass_over(subject, canvas.tokens[rows], canvas.there[rows], record=record).record
        found[:, rows] = seen.sum(axis=2)
    return found


@lru_cache(maxsize=2)
def steps(subject: Subject, gallery: Gallery) -> tuple[tuple[Step, ...], ...]:
    """Of each generation, the steps at which there is something to choose."""
    found: list[list[Step]] = [[] for _ in gallery.tokens]
    if subject.model.config.layers < 2:
        return tuple(map(tuple, found))
    for canvas in canvases(subject, gallery, COUNT):
        masked = canvas.there & (canvas.tokens == subject.mask_id)
        first, length = windows(subject, gallery, masked)
        received = importance(subject, canvas, first, length)
        for row in range(len(masked)):
            at = np.flatnonzero(masked[row])
            at = at[(at >= first[row]) & (at < first[row] + length)]
            filled = gallery.committed_at[row, at] == canvas.step
            if filled.any() and not filled.all():
                one, two = received[:, row, at]
                found[row].append(Step({"change": two - one, "first": one, "second": two, "left": -at}, filled))
    return tuple(map(tuple, found))


def wins(score: np.ndarray, filled: np.ndarray, rivals: np.ndarray) -> Iterator[float]:
    """Of each mask that is filled in: the share of its rivals bool[N,N] that score less, ties counting half."""
    for one in np.flatnonzero(filled):
        others = score[rivals[one] & ~filled]
        if len(others):
            yield float(np.mean((score[one] > others) + 0.5 * (score[one] == others)))


def all_others(count: int) -> np.ndarray:
    return ~np.eye(count, dtype=bool)


def beside(step: Step) -> np.ndarray:
    """bool[N,N]: the nearest mask that is not filled in on either side, where there is one on both."""
    rivals = np.zeros((len(step.filled),) * 2, bool)
    left = np.flatnonzero(~step.filled)
    for one in np.flatnonzero(step.filled):
        before, after = left[left < one], left[left > one]
        if len(before) and len(after):
            rivals[one, [before[-1], after[0]]] = True
    return rivals


def mean_wins(subject: Subject, gallery: Gallery, score: str, neighbours: bool = False) -> np.ndarray:
    """f64[B]: the mean over steps; NaN where nothing could be compared."""
    means = []
    for made in steps(subject, gallery):
        found = [
            value
            for step in made
            for value in wins(
                step.scores[score], step.filled, beside(step) if neighbours else all_others(len(step.filled))
            )
        ]
        means.append(np.mean(found) if found else np.nan)
    return np.array(means)


def must_be_kept(subject: Subject, gallery: Gallery, score: str) -> float:
    """The share of the masks that must be kept, those with the largest scores, for 9 of 10 filled in to be among them."""
    places = [
        (step.scores[score] >= step.scores[score][one]).mean()
        for made in steps(subject, gallery)
        for step in made
        for one in np.flatnonzero(step.filled)
    ]
    return float(np.quantile(places, KEPT, method="inverted_cdf")) if places else np.nan


def of_change(subject: Subject, gallery: Gallery) -> np.ndarray:
    return mean_wins(subject, gallery, "change")


def of_change_beside(subject: Subject, gallery: Gallery) -> np.ndarray:
    return mean_wins(subject, gallery, "change", neighbours=True)


PREDICTIONS = (
    Prediction(
        name="next",
        statistic="share of the other masks of the block over which the growth of attention puts the one that is filled in",
        of=of_change,
        least=CHANCE,
        bound="chance",
    ),
    Prediction(
        name="next-beside",
        statistic="the same of its nearest neighbours on both sides",
        of=of_change_beside,
        least=CHANCE,
        bound="chance",
    ),
    Prediction(
        name="next-growth",
        statistic="the same of all others, as growth and not as attention in the second layer",
        of=of_change,
        control=nulls.Control("attention in the second layer", partial(mean_wins, score="second")),
    ),
)


def line(one: Measured, score: str) -> dict[str, float | str]:
    every = mean_of(mean_wins(one.subject, one.gallery, score), one.gallery)
    near = mean_of(mean_wins(one.subject, one.gallery, score, neighbours=True), one.gallery)
    return {
        "model": one.subject.name,
        "ranked by": SCORES[score],
        "all others": every.value,
        **every.columns,
        "neighbours": near.value,
        "neighbours: low": near.low,
        "neighbours: high": near.high,
        "kept for 90 %": must_be_kept(one.subject, one.gallery, score),
        "steps": sum(map(len, steps(one.subject, one.gallery))),
    }


@experiment(
    name="next",
    title="What decodes next",
    question="Does the growth of incoming attention between the first two layers tell which mask is filled in next?",
    paper="The growth of incoming attention from the first layer to the second tells what decodes next, better than "
    "attention itself (FOCUS, arXiv 2601.23278).",
    subjects=diffusion_models,
    predictions=PREDICTIONS,
)
def what_decodes_next(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, 2, sharey=True)
    lines = [line(one, score) for one in measured for score in SCORES]
    for axis, column in zip(axes[0], ("all others", "neighbours"), strict=True):
        low = "low" if column == "all others" else f"{column}: low"
        for number, words in enumerate(SCORES.values()):
            mine = [found for found in lines if found["ranked by"] == words]
            x = np.arange(len(mine)) + 0.15 * (number - 1.5)
            y = np.array([found[column] for found in mine], float)
            reach = y - np.array([found[low] for found in mine], float)
            colour, marker = plots.COLOURS[number], plots.MARKERS[number]
            axis.errorbar(x, y, reach, fmt=marker, color=colour, label=words, capsize=2)
        axis.axhline(CHANCE, color=plots.GUIDE, lw=0.6, ls=":")
        axis.set_xticks(range(len(measured)), [one.subject.name for one in measured])
        axis.set(title=f"against {column}", xlabel="model")
    axes[0, 0].set_ylabel("share that scores less")
    plots.shared_legend(figure, columns=2)
    kept = "kept: the masks with the largest scores that hold 9 of 10 of them"
    note = f"{COUNT} steps of each generation; 0.5 = chance; {kept}"
    return Outcome(figure=figure, tables=[Table.of("Which mask is filled in", lines, note)])
