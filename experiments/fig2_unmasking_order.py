"""Fig. 2: block decoding unmasks block after block; Dream may unmask anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from jaxsink.evals.statistics import bootstrap
from jaxsink.study import Measured, Outcome, Study, experiment, plots
from jaxsink.study.experiments import diffusion_models
from jaxsink.study.finding import all_of


def rank_correlation(order: np.ndarray) -> float:
    """Spearman's, of the position in the response and the step that filled it."""
    position, step = np.arange(len(order)), np.argsort(np.argsort(order, kind="stable"))
    return float(np.corrcoef(position, step)[0, 1])


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
    statistic="rank correlation of position and step; whether each block ends before the next begins",
    null="none: the order of blocks is a property of the sampler",
    subjects=diffusion_models,
)
def unmasking_order(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured))
    words, held = [], []
    for axis, one in zip(axes[0], measured, strict=True):
        response = one.gallery.committed_at[:, one.gallery.prompt_length :]
        block = vars(one.subject.sampler).get("block_length")
        draw(axis, response[0], block)
        axis.set_title(one.subject.name)
        found = bootstrap(np.array([rank_correlation(sequence) for sequence in response]))
        words.append(f"{one.subject.name} {found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}]")
        if block is not None and block < response.shape[1]:
            blocks = response[:, : response.shape[1] // block * block].reshape(len(response), -1, block)
            held.append(bool((blocks[:, :-1].max(axis=-1) < blocks[:, 1:].min(axis=-1)).all()))
        else:
            held.append(found.high < 1)
    return Outcome(
        found=f"Rank correlation of place and step: {', '.join(words)}. Blocks are filled strictly one after the other.",
        verdict=all_of(*held),
        figure=figure,
    )
