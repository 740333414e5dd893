"""Fig. 10: the share of tokens that are no sinks, against ε."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxsink.sinks import sweep
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, experiment, nulls, plots

GRID = np.linspace(0, 10, 41)
MOST = 0.04  # of the tokens are sinks, by the paper's choice of ε


def share_of_sinks(subject: Subject, gallery: Gallery) -> np.ndarray:
    """Of the tokens, by Eq. 3 on scores that do not favour early keys."""
    share = gallery.fair_tracks.sink_count / np.maximum(gallery.real.sum(axis=-1), 1)[:, None, :, None]
    return gallery.mean_over_steps(share).mean(axis=(1, 2))


def non_sinks(gallery: Gallery) -> np.ndarray:
    """f64[ε]: the share of tokens that are none, by column sums."""
    share = np.asarray(sweep(gallery.scores, GRID, gallery.real))  # [T,L,B,H,ε]
    return share[np.broadcast_to(gallery.counted[:, None, :, None], share.shape[:-1])].mean(axis=0)


@experiment(
    name="fig10",
    title="Non-sinks against the threshold",
    question="Does ε = 3 single out a few tokens, and more of them than chance?",
    paper="At ε = 3 at least 96 % of tokens are no sinks, in all three diffusion models.",
    predictions=(
        Prediction(
            name="sinks",
            statistic="share of tokens that are sinks at ε = 3",
            of=share_of_sinks,
            shuffle=nulls.QUERIES,
            most=MOST,
            bound="the paper's 4 %",
        ),
    ),
)
def epsilon(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas()
    for one in measured:
        axes[0, 0].plot(GRID, non_sinks(one.gallery), label=one.subject.name)
    axes[0, 0].axhline(1 - MOST, color=plots.GUIDE, lw=0.8, ls=":")
    axes[0, 0].axvline(3, color=plots.GUIDE, lw=0.8, ls=":")
    note = {"textcoords": "offset points", "color": plots.GUIDE}
    axes[0, 0].annotate("paper: 96 % at ε = 3", (3, 1 - MOST), (6, -12), **note)
    axes[0, 0].set(xlabel="threshold ε (column sum)", ylabel="share of tokens that are no sinks")
    axes[0, 0].legend()
    return Outcome(figure=figure)
