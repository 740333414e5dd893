"""How much a mask attends to its heads' top keys, and what becomes of it without them: less sure, or later."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from jaxsink_experiments.canvases import Canvas, canvases, of_their_own, of_their_queries, one_key, pass_over
from scipy.special import logsumexp
from scipy.stats import spearmanr

from jaxsink.nn.config import ModelConfig
from jaxsink.recording.rerouted import without_top
from jaxsink.study import Gallery, Subject

FEWEST = 4  # masks of a canvas, for a correlation over them


def sure(config: ModelConfig, logits: np.ndarray) -> np.ndarray:
    """f64[B,S]: log-odds of the likeliest token at each position, masks aside, as LLaDA's sampler orders positions."""
    own = np.array(of_their_own(config, logits), np.float64)
    own[..., config.mask_id] = -np.inf
    best = own.max(axis=-1)
    others = np.where(np.arange(own.shape[-1]) == own.argmax(axis=-1)[..., None], -np.inf, own)
    return best - logsumexp(others, axis=-1)


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's; NaN where it has none."""
    if len(first) < FEWEST or not np.ptp(first) or not np.ptp(second):
        return np.nan
    return float(spearmanr(first, second).statistic)


def by_sequence(first: np.ndarray, second: np.ndarray, where: np.ndarray) -> np.ndarray:
    """f64[B]: the correlation over these positions [B,S]."""
    return np.array([rank_correlation(x[at], y[at]) for x, y, at in zip(first, second, where, strict=True)])


def upper_less_lower(by: np.ndarray, values: np.ndarray, where: np.ndarray) -> np.ndarray:
    """f64[B]: the mean of values [B,S] at the positions whose `by` is above the median of these positions, less the mean at
    the others; NaN where there are too few."""
    found = np.full(len(values), np.nan)
    for number, at in enumerate(where):
        upper = by[number, at] > np.median(by[number, at]) if at.sum() >= FEWEST else np.zeros(at.sum(), bool)
        if upper.any():
            found[number] = values[number, at][upper].mean() - values[number, at][~upper].mean()
    return found


@lru_cache(maxsize=1)
def fallen(subject: Subject, gallery: Gallery) -> np.ndarray:
    """f64[2,B]: how much more confidence falls at masks that attend to the top keys more than the median when these keys are
    hidden, and when a random other key of each head is; the mean over some steps."""
    config, draw, found = subject.model.config, np.random.default_rng(0), []

    def read(logits: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return sure(config, logits)

    for _, tokens, there in canvases(subject, gallery):
        clean = pass_over(subject, tokens, there, record=without_top(), read=read)
        top = one_key(clean.record["key"], tokens.shape[1])
        among = there[None, :, None] & ~top
        other = one_key(np.where(among, draw.random(top.shape), -1.0).argmax(axis=-1), tokens.shape[1])
        attention = paid_by_masks(subject, clean.record["paid"])
        after = [pass_over(subject, tokens, there, drop=drop, read=read).values for drop in (top, other)]
        masked = there & (tokens == config.mask_id)
        found.append([upper_less_lower(attention, clean.values - now, masked) for now in after])
    return mean_there(np.array(found))


def paid_by_masks(subject: Subject, paid: np.ndarray) -> np.ndarray:
    """f64[B,S]: what the query that predicts each position pays to the top keys, mean over layers and heads [L,B,H,Q]."""
    return of_their_queries(subject.model.config, paid.mean(axis=(0, 2)))


def mean_there(values: np.ndarray) -> np.ndarray:
    """Over the first axis, of those that are numbers."""
    there = ~np.isnan(values)
    total = np.where(there, values, 0.0).sum(axis=0)
    return np.where(there.any(axis=0), total / np.maximum(there.sum(axis=0), 1), np.nan)


def falls(subject: Subject, gallery: Gallery) -> np.ndarray:
    return fallen(subject, gallery)[0]


def falls_of_others(subject: Subject, gallery: Gallery) -> np.ndarray:
    return fallen(subject, gallery)[1]


def attention_of_masks(subject: Subject, canvas: Canvas) -> np.ndarray:
    """f64[B,S]; NaN where there is no mask."""
    record = pass_over(subject, canvas.tokens, canvas.there, record=without_top()).record
    masked = canvas.there & (canvas.tokens == subject.model.config.mask_id)
    return np.where(masked, paid_by_masks(subject, record["paid"]), np.nan)


def delays(subject: Subject, plain: Gallery, hidden: Gallery) -> np.ndarray:
    """f64[B]: correlation over a response of the masks' attention to the top keys, in the steps that are looked at, and of
    how much later they are filled in when keys are hidden."""
    attention = mean_there(np.array([attention_of_masks(subject, canvas) for canvas in canvases(subject, plain)]))
    later = hidden.committed_at - plain.committed_at
    return by_sequence(attention, later, (plain.committed_at >= 0) & ~np.isnan(attention))
