"""§5.1 explains which tokens sink by their frequency in training, and by formatting.

Sinks are where tokens are, so a frequent token has many sinks for that reason alone; masks, which no text has, are left out.
What counts is the frequency of the tokens that are sinks over that of all tokens of the same canvases, and whether it
still counts among plain words, where there is no formatting.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from jaxsink_experiments.canvases import ratio

from jaxsink.sinks.tokens import KINDS
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, experiment, nulls, plots
from jaxsink.tasks.batches import training_batch
from jaxsink.tasks.word_tasks import SUMS, task_of

FORMATTING = ("bos", "eos", "newline", "space", "punctuation", "special", "template")
TEXTS = 1000  # in which tokens are counted


@lru_cache(maxsize=4)
def log_frequency(subject: Subject) -> np.ndarray:
    """f64[V]: of the built-in models' own training texts; of others nobody has them, so of the questions and answers."""
    if subject.prompts is None and not subject.chats:
        batch = training_batch(0, TEXTS, 0, task_of(subject.model.config.vocab) or SUMS)
        tokens = batch.tokens[batch.real]
    else:
        asked = subject.exam(TEXTS, 0).questions
        tokens = np.concatenate([[*question.prompt, *question.gold] for question in asked])
    counts = np.bincount(tokens, minlength=subject.model.config.vocab) + 1.0
    return np.log(counts / counts.sum())


def is_formatting(subject: Subject, canvas: np.ndarray) -> np.ndarray:
    """bool[T,B,S]"""
    return np.isin(subject.kinds[np.maximum(canvas, 0)], [KINDS.index(kind) for kind in FORMATTING])


def written(gallery: Gallery) -> np.ndarray:
    """bool[T,B,S]: tokens that exist and are no masks, at steps that count."""
    there = gallery.real & gallery.counted[..., None] & (gallery.canvas >= 0)
    return there if gallery.mask_id is None else there & (gallery.canvas != gallery.mask_id)


def sink_count(gallery: Gallery) -> np.ndarray:
    """i64[T,B,S]: in how many heads each token is a sink."""
    return gallery.fair_tracks.sinks.sum(axis=(1, 3))


def excess(gallery: Gallery, values: np.ndarray, among: np.ndarray) -> np.ndarray:
    """f64[B]: values [T,B,S] at sinks over their mean over all tokens, among these: the sum over a head's sinks, mean over
    heads and steps. So a model that has hardly any sinks says hardly anything."""
    mean = ratio(np.where(among, values, 0.0).sum(axis=(0, 2)), among.sum(axis=(0, 2)))
    at_sinks = np.where(among, sink_count(gallery) * (values - mean[:, None]), 0.0).sum(axis=(0, 2))
    _, layers, _, heads, _ = gallery.scores.shape
    return at_sinks / (layers * heads * gallery.taken)


def of_all(subject: Subject, gallery: Gallery) -> np.ndarray:
    values = log_frequency(subject)[np.maximum(gallery.canvas, 0)]
    return excess(gallery, values, written(gallery))


def of_words(subject: Subject, gallery: Gallery) -> np.ndarray:
    values = log_frequency(subject)[np.maximum(gallery.canvas, 0)]
    return excess(gallery, values, written(gallery) & ~is_formatting(subject, gallery.canvas))


def of_formatting(subject: Subject, gallery: Gallery) -> np.ndarray:
    return excess(gallery, is_formatting(subject, gallery.canvas).astype(float), written(gallery))


def prediction(name: str, statistic: str, of: nulls.Statistic) -> Prediction:
    return Prediction(name=name, statistic=statistic, of=of, shuffle=nulls.TOKENS)


@experiment(
    name="frequency",
    title="Frequency and formatting",
    question="Are the tokens that sink the frequent ones, or those that format the text, more than the canvas has of both?",
    paper="Which tokens sink follows from their frequency in training, and from formatting (§5.1, not tested).",
    predictions=(
        prediction("frequent", "log frequency of a head's sinks, over that of all tokens", of_all),
        prediction("frequent-words", "the same without formatting", of_words),
        prediction(
            "formatting", "a head's sinks on formatting, over what its share of the tokens gives", of_formatting
        ),
    ),
)
def frequency_and_formatting(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), sharey=True)
    lines = []
    for axis, one in zip(axes[0], measured, strict=True):
        gallery, vocab = one.gallery, one.subject.model.config.vocab
        among = written(gallery)
        tokens, weights = gallery.canvas[among], sink_count(gallery)[among]
        base, count = (np.bincount(tokens, weight, vocab) for weight in (np.ones_like(weights), weights))
        lift = ratio(count / max(count.sum(), 1), base / base.sum())
        kinds = one.subject.kinds
        formats = np.isin(kinds, [KINDS.index(kind) for kind in FORMATTING])
        for chosen, label in ((~formats, "words and numbers"), (formats, "formatting")):
            at = chosen & (base > 0)
            axis.scatter(log_frequency(one.subject)[at], lift[at], s=8, label=label)
        axis.axhline(1, color=plots.GUIDE, lw=0.6, ls=":")
        axis.set(title=one.subject.name, xlabel="log frequency in training")
        for number in np.unique(kinds[base > 0]):
            of = kinds == number
            shares = base[of].sum() / base.sum(), count[of].sum() / max(count.sum(), 1)
            rates = {"share of tokens": float(shares[0]), "share of sinks": float(shares[1])}
            line = {"model": one.subject.name, "kind": KINDS[number], **rates, "lift": float(shares[1] / shares[0])}
            frequency = float(np.exp(np.average(log_frequency(one.subject)[of], weights=base[of])))
            lines.append({**line, "frequency of its tokens": frequency})
    axes[0, 0].set_ylabel("lift: share of sinks / share of tokens")
    plots.shared_legend(figure)
    return Outcome(
        figure=figure, tables=[Table.of("By kind of token", lines, "without masks; frequency: geometric mean")]
    )
