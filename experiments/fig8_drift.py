"""Fig. 8: which way sinks move, and whether they follow the frontier of unmasking."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxsink.evals.statistics import bootstrap
from jaxsink.sinks import distance, frontier
from jaxsink.study import Gallery, Measured, Outcome, Study, Table, experiment, plots
from jaxsink.study.finding import all_of, with_limits


def distances(gallery: Gallery) -> tuple[float, float]:
    """Of the largest sinks to the leftmost and the rightmost mask, on average."""
    ends = frontier(gallery.committed_at, gallery.mask, np.arange(len(gallery.scores)))
    away = [np.asarray(distance(gallery.tracks.position, end)) for end in (ends.first, ends.last)]
    left, right = (float(np.nanmean(np.abs(values))) for values in away)
    return left, right


@experiment(
    name="fig8",
    title="Which way sinks drift",
    question="Do LLaDA-like sinks drift right with the blocks, and Dream-like ones left from the rightmost mask?",
    paper="LLaDA's sinks drift right as blocks are denoised; Dream's start at the rightmost mask and move left.",
    statistic="mean change of the largest sink's position per step",
    null="no drift, by the interval over generations",
)
def drift_per_step(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas()
    rows, words, held = [], [], []
    for one in measured:
        gallery, name = one.gallery, one.subject.name
        seen = gallery.present.sum(axis=(1, 2, 3))
        total = np.where(gallery.present, gallery.sink_token_position, 0).sum(axis=(1, 2, 3))
        axes[0, 0].plot(np.where(seen > 0, total / np.maximum(seen, 1), np.nan), label=name)
        drift = bootstrap(gallery.tracks.drift.mean(axis=(0, 2)))
        left, right = distances(gallery) if one.subject.is_diffusion else ("", "")
        away = {"distance to the leftmost mask": left, "to the rightmost mask": right}
        rows.append({"model": name, **with_limits("drift per step", drift), **away})
        words.append(f"{name} {drift.estimate:+.2f} [{drift.low:+.2f}, {drift.high:+.2f}]")
        if one.subject.is_diffusion:
            held.append(drift.high < 0 if one.subject.model.config.shift_logits else drift.low > 0)
    axes[0, 0].set(xlabel="step", ylabel="largest sinks: mean token position")
    axes[0, 0].invert_yaxis()
    plots.whole_ticks(axes[0, 0])
    plots.label_lines(axes[0, 0])
    return Outcome(
        found=f"Drift in positions per step: {'; '.join(words)}.",
        verdict=all_of(*held) if held else "not tested",
        figure=figure,
        tables=[Table.of("Drift", rows, "95 % intervals over generations; positive = to the right")],
    )
