"""Fig. 1: the attention each token receives, step by step, while a diffusion model writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxsink.report.plots import plot_received
from jaxsink.sinks import Threshold
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, experiment, nulls, plots

FEW = 0.03  # of the keys: two or so of the built-in models' 56


def share_of_the_strongest(subject: Subject, gallery: Gallery) -> np.ndarray:
    """Attention on the strongest 3 % of the keys (at least one) of each head and step, as a share of all."""
    scores = np.where(gallery.real[:, None, :, None], gallery.fair, 0.0)
    count = np.maximum(1, np.round(FEW * gallery.real.sum(axis=-1)))[:, None, :, None, None]
    ranked = -np.sort(-scores, axis=-1)
    top = np.where(np.arange(scores.shape[-1]) < count, ranked, 0.0).sum(axis=-1)
    return gallery.mean_over_steps(top / np.maximum(scores.sum(axis=-1), 1e-9)).mean(axis=(1, 2))


@experiment(
    name="fig1",
    title="Attention received per token and step",
    question="Does attention gather on a few tokens while the canvas is unmasked?",
    paper="In LLaDA a handful of tokens receive far more attention than the rest, at every step.",
    predictions=(
        Prediction(
            name="strongest",
            statistic=f"share of all attention on the strongest {FEW:.0%} of the keys",
            of=share_of_the_strongest,
            shuffle=nulls.QUERIES,
        ),
    ),
)
def scores_over_steps(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(2, len(measured), height=5.4)
    for line, one in zip(axes.T, measured, strict=True):
        gallery, name = one.gallery, one.subject.name
        plot_received(gallery.generation, layer="mean", head="mean", ax=line[0]).set_title(f"{name}\nmean of all heads")
        restless = plot_received(gallery.generation, rule=Threshold(study.eps), ax=line[1])
        plots.title_of_head(restless, name, gallery.tracks.jumps[:, 0].any())
    plots.shared_legend(figure)
    return Outcome(figure=figure)
