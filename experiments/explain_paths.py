"""§5.2 explains robustness by "other paths": where does the attention of a hidden sink go?

Each query re-normalises, so all its other keys get more, in proportion, whatever the model. Only what differs from that is
another path. In the first layer nothing can differ, so it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxsink_experiments.canvases import canvases, fair_scores, mean_of, one_key, pass_over, ratio, sinks

import jaxsink
from jaxsink.recording.rerouted import without_top
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, experiment, nulls, plots
from jaxsink.study.predictions import everyone

CLEAN = {"received": jaxsink.record.received(), "own": jaxsink.record.diagonal(), "without": without_top()}
AFTER = {"received": jaxsink.record.received(), "own": jaxsink.record.diagonal()}
ENDS = ("next key", "own token", "others")


class Shares(NamedTuple):
    """f64[B,3] each: of the attention on hidden sinks, what goes to the strongest key left, to the query's own token, and to
    the rest; as it happens, and in proportion."""

    found: np.ndarray
    proportional: np.ndarray


@lru_cache(maxsize=2)
def shares(subject: Subject, gallery: Gallery, causal: bool = False) -> Shares:
    """Over heads whose strongest key is a sink, in all layers but the first. causal: the same weights, each query shown what
    stands before it."""
    freed, gains = np.zeros(len(gallery.tokens)), np.zeros((2, len(gallery.tokens), 2))
    for _, tokens, there in canvases(subject, gallery):
        length, count = tokens.shape[1], there.sum(axis=1)[None, :, None]
        visible = np.broadcast_to(np.tri(length, dtype=bool), (len(tokens), length, length)) if causal else None
        clean = pass_over(subject, tokens, there, visible=visible, record=CLEAN).record
        hidden = one_key(clean["without"]["key"], length)
        after = pass_over(subject, tokens, there, visible=visible, drop=hidden, record=AFTER).record
        fair = fair_scores(subject.model.config, clean["received"], there, causal)
        asked = (sinks(fair, there, gallery.eps) & hidden).any(axis=-1)
        asked[0] = False
        freed += np.where(asked, clean["without"]["paid"].sum(axis=-1), 0.0).sum(axis=(0, 2))
        next_before = np.where(hidden, 0.0, clean["received"]).max(axis=-1)
        made = ((after["received"], after["own"] * count), (clean["without"]["received"], clean["without"]["own"]))
        for number, (received, own) in enumerate(made):
            gain = received.max(axis=-1) - next_before, own - clean["own"] * count
            gains[number] += np.stack([np.where(asked, part, 0.0).sum(axis=(0, 2)) for part in gain], axis=-1)
    parts = ratio(gains, np.broadcast_to(freed[:, None], gains.shape))
    return Shares(*np.concatenate([parts, 1 - parts.sum(axis=-1, keepdims=True)], axis=-1))


def to_next(subject: Subject, gallery: Gallery) -> np.ndarray:
    return shares(subject, gallery).found[:, 0]


def to_next_in_proportion(subject: Subject, gallery: Gallery) -> np.ndarray:
    return shares(subject, gallery).proportional[:, 0]


def beyond_proportion(subject: Subject, gallery: Gallery, causal: bool = False) -> np.ndarray:
    found, proportional = shares(subject, gallery, causal)
    return found[:, 0] - proportional[:, 0]


def causally(subject: Subject, gallery: Gallery) -> np.ndarray:
    return beyond_proportion(subject, gallery, causal=True)


@experiment(
    name="paths",
    title="Where a hidden sink's attention goes",
    question="Does another key take the place of a hidden sink, more than every query's re-normalising gives it?",
    paper="Bidirectional attention offers other paths when the main sink is gone (§5.2, not tested).",
    predictions=(
        Prediction(
            name="next-key",
            statistic="share of a hidden sink's attention that the strongest key left gains",
            of=to_next,
            control=nulls.Control("proportional shares", to_next_in_proportion),
            about=everyone,
        ),
        Prediction(
            name="both-ways",
            statistic="the same, beyond proportion, with attention in both directions",
            of=beyond_proportion,
            control=nulls.Control("the same weights run causally", causally),
        ),
    ),
)
def where_it_goes(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), sharey=True)
    lines = []
    for axis, one in zip(axes[0], measured, strict=True):
        for number, (how, values) in enumerate(shares(one.subject, one.gallery)._asdict().items()):
            means = {end: mean_of(column, one.gallery) for end, column in zip(ENDS, values.T, strict=True)}
            shown = [means[end] for end in ENDS[:-1]]
            place, reach = np.arange(len(shown)) + 0.4 * (number - 0.5), [mean.reach for mean in shown]
            axis.bar(place, [mean.value for mean in shown], 0.38, yerr=reach, label=how, error_kw={"lw": 0.8})
            for end, mean in means.items():
                name = {"model": one.subject.name, "goes to": end, "how": how}
                lines.append({**name, "share": mean.value, **mean.columns})
        axis.set_xticks(range(len(ENDS) - 1), ENDS[:-1])
        axis.set(title=one.subject.name, xlabel="where it goes")
    axes[0, 0].set_ylabel("share of a hidden sink's attention")
    plots.shared_legend(figure)
    note = "heads whose strongest key is a sink, all layers but the first; 95 % intervals over distinct problems"
    return Outcome(figure=figure, tables=[Table.of("Where the attention goes", lines, note)])
