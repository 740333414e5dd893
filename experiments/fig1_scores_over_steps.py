"""Fig. 1: the attention each token receives, step by step, while a diffusion model writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxsink.evals.statistics import bootstrap
from jaxsink.report.plots import plot_received
from jaxsink.sinks import Threshold
from jaxsink.study import Measured, Outcome, Study, experiment, plots
from jaxsink.study.finding import all_of


@experiment(
    name="fig1",
    title="Attention received per token and step",
    question="Does attention gather on a few tokens while the canvas is unmasked?",
    paper="In LLaDA a handful of tokens receive far more attention than the rest, at every step.",
    statistic="largest score of a head and step, mean of a generation",
    null="the threshold of Eq. 3: 1 + ε times the mean",
)
def scores_over_steps(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(2, len(measured), height=5.4)
    strong, words = [], []
    for line, one in zip(axes.T, measured, strict=True):
        gallery, name = one.gallery, one.subject.name
        plot_received(gallery.generation, layer="mean", head="mean", ax=line[0]).set_title(f"{name}\nmean of all heads")
        restless = plot_received(gallery.generation, rule=Threshold(study.eps), ax=line[1])
        plots.title_of_head(restless, name, gallery.tracks.jumps[:, 0].any())
        largest = np.where(gallery.real[:, None, :, None], gallery.scores, 0).max(axis=-1)
        per_generation = np.array(
            [largest[gallery.counted[:, sequence], :, sequence].mean() for sequence in range(len(gallery.tokens))]
        )
        found = bootstrap(per_generation)
        strong.append(found.low > 1 + study.eps)
        words.append(f"{name} {found.estimate:.1f} [{found.low:.1f}, {found.high:.1f}]")
    plots.shared_legend(figure)
    return Outcome(
        found=f"The largest score of a head, in units of the mean, averages {', '.join(words)}; "
        f"a sink needs {1 + study.eps:g}.",
        verdict=all_of(*strong),
        figure=figure,
    )
