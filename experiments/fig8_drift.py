"""Fig. 8: which way sinks move, and whether they follow the frontier of unmasking."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import spearmanr

from jaxsink.sinks import distance, frontier
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, experiment, nulls, plots

FEWEST_STEPS = 4  # with a sink, for a head to have a drift


def distances(gallery: Gallery) -> tuple[float, float]:
    """Of the largest sinks to the leftmost and the rightmost mask, on average."""
    ends = frontier(gallery.committed_at, gallery.mask, np.arange(len(gallery.scores)))
    away = [np.asarray(distance(gallery.tracks.position, end)) for end in (ends.first, ends.last)]
    left, right = (float(np.nanmean(np.abs(values))) for values in away)
    return left, right


def drift(subject: Subject, gallery: Gallery) -> np.ndarray:
    """Spearman's correlation of step and position of the largest sink, over the steps that have one; 0 for a sink that
    stays. The mean over heads with a sink at enough steps; NaN without such a head."""
    found = np.full(gallery.present.shape[1:], np.nan)  # [L,B,H]
    for head in np.argwhere(gallery.present.sum(axis=0) >= FEWEST_STEPS):
        steps = np.flatnonzero(gallery.present[:, *head])
        position = gallery.tracks.position[steps, *head]
        found[*head] = spearmanr(steps, position).statistic if np.ptp(position) else 0.0
    counted = ~np.isnan(found)
    count = counted.sum(axis=(0, 2))
    return np.where(count > 0, np.where(counted, found, 0.0).sum(axis=(0, 2)) / np.maximum(count, 1), np.nan)


STATISTIC = "rank correlation of step and position of the largest sink"


@experiment(
    name="fig8",
    title="Which way sinks drift",
    question="Do LLaDA-like sinks drift right with the blocks, and Dream-like ones left from the rightmost mask?",
    paper="LLaDA's sinks drift right as blocks are denoised; Dream's start at the rightmost mask and move left.",
    predictions=(
        Prediction(
            name="drift-right",
            statistic=f"{STATISTIC} (to the right)",
            of=drift,
            shuffle=nulls.STEPS,
            about=lambda subject: subject.is_diffusion and not subject.model.config.shift_logits,
        ),
        Prediction(
            name="drift-left",
            statistic=f"{STATISTIC} (to the left)",
            of=drift,
            expected="less",
            shuffle=nulls.STEPS,
            about=lambda subject: subject.is_diffusion and subject.model.config.shift_logits,
        ),
    ),
)
def drift_per_step(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas()
    rows = []
    for one in measured:
        gallery, name = one.gallery, one.subject.name
        seen = gallery.present.sum(axis=(1, 2, 3))
        total = np.where(gallery.present, gallery.sink_token_position, 0).sum(axis=(1, 2, 3))
        axes[0, 0].plot(np.where(seen > 0, total / np.maximum(seen, 1), np.nan), label=name)
        left, right = distances(gallery) if one.subject.is_diffusion else ("", "")
        away = {"distance to the leftmost mask": left, "to the rightmost mask": right}
        rows.append({"model": name, **away, "heads and steps with a sink": float(gallery.present.mean())})
    axes[0, 0].set(xlabel="step", ylabel="largest sinks: mean token position")
    axes[0, 0].invert_yaxis()
    plots.whole_ticks(axes[0, 0])
    plots.label_lines(axes[0, 0])
    return Outcome(figure=figure, tables=[Table.of("Sinks and the frontier of unmasking", rows)])
