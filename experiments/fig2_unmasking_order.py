"""Fig. 2: block decoding unmasks block after block; Dream may unmask anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import spearmanr

from jaxsink.evals.statistics import clustered_mean
from jaxsink.study import Measured, Outcome, Study, Table, experiment, plots
from jaxsink.study.experiments import diffusion_models


def draw(axis: Axes, committed_at: np.ndarray, block: int | None) -> None:
    """When each position is filled in; lines part the blocks of block decoding."""
    length = len(committed_at)
    axis.scatter(committed_at, np.arange(length), s=10)
    for edge in range(block, length, block) if block else ():
        axis.axhline(edge - 0.5, color=plots.GUIDE, lw=0.5, ls=":")
    axis.set(xlabel="step", ylabel="position in the response (token)", ylim=(length - 0.5, -0.5))
    plots.whole_ticks(axis, y=True)


@experiment(
    name="fig2",
    title="The order in which tokens are unmasked",
    question="Do the samplers unmask in blocks, and freely, as the paper draws it?",
    paper="LLaDA and MMaDA fill block after block, Dream fills any place.",
    subjects=diffusion_models,
)
def unmasking_order(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured))
    rows = []
    for axis, one in zip(axes[0], measured, strict=True):
        gallery = one.gallery
        response = gallery.committed_at[:, gallery.prompt_length :]
        draw(axis, response[0], vars(one.subject.sampler).get("block_length"))
        axis.set_title(one.subject.name)
        order = [float(spearmanr(np.arange(len(steps)), steps).statistic) for steps in response]
        mean = clustered_mean(order, list(gallery.clusters))
        low, high = mean.interval()
        rows.append({"model": one.subject.name, "rank correlation": mean.value, "low": low, "high": high})
    return Outcome(
        figure=figure,
        tables=[Table.of("Position in the response and step that filled it", rows, "95 % intervals over problems")],
        note="The sampler does this by construction, whatever the weights: a picture, not a test.",
    )
