"""Fig. 7: the position of the largest sink over the steps, for each model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from jaxsink.evals.statistics import bootstrap
from jaxsink.report.plots import plot_trajectory
from jaxsink.sinks import Threshold
from jaxsink.sinks.track import KINDS
from jaxsink.study import Gallery, Measured, Outcome, Study, Table, experiment, plots
from jaxsink.study.finding import all_of, with_limits


def draw(axis: Axes, gallery: Gallery) -> None:
    """Of the first generation: the head whose sink moves most, the one with the strongest sink, and all others."""
    rule = Threshold(gallery.eps)
    strength = gallery.tracks.score[:, :, 0].mean(axis=0)  # [L,H], 0 where there is no sink
    layer, head = (int(index) for index in np.unravel_index(np.argmax(strength), strength.shape))
    plot_trajectory(
        gallery.generation,
        layer=layer,
        head=head,
        rule=rule,
        ax=axis,
        color=plots.COLOURS[1],
        lw=2.4,
        alpha=0.6,
        marker="",
        label="strongest sink",
    )
    if gallery.tracks.jumps[:, 0].any():
        plot_trajectory(
            gallery.generation, rule=rule, others=False, ax=axis, color=plots.COLOURS[0], marker="", label="moves most"
        )


@experiment(
    name="fig7",
    title="Where the largest sink is, step by step",
    question="Do sinks move in diffusion models, and stay on the first token in an autoregressive one?",
    paper="Sinks move in LLaDA and Dream, hardly in MMaDA; an autoregressive model's stays on the first token.",
    statistic="jumps of the largest sink per step; share of head-steps whose largest sink is the first token",
    null="fixed thresholds: 0.02 jumps per step, and one half",
)
def trajectories(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), height=2.9)
    rows, words, held = [], [], []
    for axis, one in zip(axes[0], measured, strict=True):
        gallery, name, tracks = one.gallery, one.subject.name, one.gallery.tracks
        draw(axis, gallery)
        plots.title_of_head(axis, name, tracks.jumps[:, 0].any())
        seen = np.maximum(gallery.present.sum(axis=(0, 1, 3)), 1)
        first = bootstrap((gallery.present & (gallery.sink_token_position == 0)).sum(axis=(0, 1, 3)) / seen)
        jumps = bootstrap(tracks.jumps.sum(axis=(0, 2)) / seen)
        shares = np.bincount(tracks.kind.ravel(), minlength=len(KINDS)) / tracks.kind.size
        kinds = dict(zip(KINDS, shares.tolist(), strict=True))
        rows.append(
            {"model": name, **with_limits("on the first token", first), **with_limits("jumps per step", jumps), **kinds}
        )
        words.append(
            f"{name}: on the first token in {first.estimate:.0%} of steps, {jumps.estimate:.2f} jumps per step"
        )
        held.append(jumps.low > 0.02 if one.subject.is_diffusion else first.low > 0.5 and kinds["moving"] < 0.5)
    plots.shared_legend(figure, columns=5)
    return Outcome(
        found="; ".join(words) + ".",
        verdict=all_of(*held),
        figure=figure,
        tables=[Table.of("Trajectories", rows, "kinds: share of heads; 95 % intervals")],
    )
