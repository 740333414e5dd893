"""Fig. 1: the attention each token receives, step by step, while a diffusion model writes."""

from __future__ import annotations

import numpy as np

from jaxsink.evals.statistics import bootstrap
from jaxsink.reporting.plots import plot_received
from jaxsink.sinks import Threshold
from jaxsink.study import Finding, Study, plots
from jaxsink.study.finding import all_of

NAME, TITLE = "fig1", "Attention received per token and step"
QUESTION = "Does attention gather on a few tokens while the canvas is unmasked?"
PAPER = "In LLaDA a handful of tokens receive far more attention than the rest, at every step."


def run(study: Study) -> Finding:
    figure, axes = plots.canvas(2, len(study.subjects), height=5.4)
    strong, words = [], []
    for line, subject in zip(axes.T, study.subjects, strict=True):
        gallery = study.gallery(subject)
        plot_received(gallery.generation, layer="mean", head="mean", ax=line[0]).set_title(
            f"{subject.name}\nmean of all heads"
        )
        restless = plot_received(gallery.generation, rule=Threshold(study.eps), ax=line[1])
        plots.title_of_head(restless, subject.name, gallery.tracks.jumps[:, 0].any())
        largest = np.where(gallery.real[:, None, :, None], gallery.scores, 0).max(axis=-1)
        per_prompt = np.array(
            [largest[gallery.counted[:, sequence], :, sequence].mean() for sequence in range(len(gallery.tokens))]
        )  # one number per generation
        found = bootstrap(per_prompt)
        strong.append(found.low > 1 + study.eps)
        words.append(f"{subject.name} {found.estimate:.1f} [{found.low:.1f}, {found.high:.1f}]")
    plots.shared_legend(figure)
    return Finding(
        name=NAME,
        title=TITLE,
        question=QUESTION,
        paper=PAPER,
        found=f"The largest score of a head, in units of the mean, averages {', '.join(words)}; "
        f"a sink needs {1 + study.eps:g}.",
        verdict=all_of(*strong),
        figures=[study.figure(NAME, figure)],
    )
