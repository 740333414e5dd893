"""Fig. 7: the position of the largest sink over the steps, for each model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from jaxsink.report.plots import plot_trajectory
from jaxsink.sinks import Threshold
from jaxsink.sinks.track import KINDS
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, experiment, nulls, plots
from jaxsink.study.predictions import autoregressive


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


def stay(subject: Subject, gallery: Gallery) -> np.ndarray:
    """Steps that the largest sink of a head stays at one position, on average over stays."""
    position = np.where(gallery.present, gallery.tracks.position, -1)
    same = (position[1:] == position[:-1]) & gallery.present[1:] & gallery.present[:-1]
    stays = gallery.present.sum(axis=(0, 1, 3)) - same.sum(axis=(0, 1, 3))
    return np.where(stays > 0, gallery.present.sum(axis=(0, 1, 3)) / np.maximum(stays, 1), np.nan)


def on_first(subject: Subject, gallery: Gallery) -> np.ndarray:
    """Share of heads and steps whose strongest key, by scores that do not favour early keys, is the first token."""
    strongest = np.where(gallery.real[:, None, :, None], gallery.fair, -1.0).argmax(axis=-1)
    first = strongest == gallery.mask.argmax(axis=-1)[None, None, :, None]
    return gallery.mean_over_steps(first).mean(axis=(1, 2))


@experiment(
    name="fig7",
    title="Where the largest sink is, step by step",
    question="Do sinks of diffusion models stay for some steps and move on, and those of others stay on the first token?",
    paper="Sinks move in LLaDA and Dream, hardly in MMaDA; an autoregressive model's stays on the first token.",
    predictions=(
        Prediction(
            name="stay",
            statistic="steps that the largest sink stays at one position",
            of=stay,
            shuffle=nulls.STEPS,
        ),
        Prediction(
            name="on-first",
            statistic="share of heads and steps whose strongest key is the first token",
            of=on_first,
            shuffle=nulls.QUERIES,
            least=0.5,
            bound="most of them",
            about=autoregressive,
        ),
    ),
)
def trajectories(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), height=2.9)
    rows = []
    for axis, one in zip(axes[0], measured, strict=True):
        gallery, name, tracks = one.gallery, one.subject.name, one.gallery.tracks
        draw(axis, gallery)
        plots.title_of_head(axis, name, tracks.jumps[:, 0].any())
        by_sums = gallery.mean_where(gallery.sink_token_position == 0, gallery.present)
        shares = np.bincount(tracks.kind.ravel(), minlength=len(KINDS)) / tracks.kind.size
        rows.append(
            {
                "model": name,
                "on the first token, of heads and steps with a sink (column sums)": float(np.nanmean(by_sums)),
                "strongest key is the first token (per query that can see it)": float(
                    on_first(one.subject, gallery).mean()
                ),
                **dict(zip(KINDS, shares.tolist(), strict=True)),
            }
        )
    plots.shared_legend(figure, columns=5)
    return Outcome(figure=figure, tables=[Table.of("Trajectories", rows, "kinds: share of heads, by column sums")])
