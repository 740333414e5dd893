"""Fig. 3 and 9: nearly all tokens receive next to nothing, a thin tail receives very much."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, experiment, nulls, plots


def near_zero(subject: Subject, gallery: Gallery) -> np.ndarray:
    """Share of keys that receive less than half of what uniform attention gives."""
    low = (gallery.fair < 0.5) & gallery.real[:, None, :, None]
    share = low.sum(axis=-1) / np.maximum(gallery.real.sum(axis=-1), 1)[:, None, :, None]
    return gallery.mean_over_steps(share).mean(axis=(1, 2))


@experiment(
    name="fig3",
    title="Distribution of scores",
    question="Are scores near zero but for a thin tail?",
    paper="Nearly all scores lie near zero; the tail reaches about 50.",
    predictions=(
        Prediction(
            name="near-zero",
            statistic="share of keys that receive less than half of what uniform attention gives",
            of=near_zero,
            shuffle=nulls.QUERIES,
        ),
    ),
)
def histogram(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas()
    rows = []
    for one in measured:
        gallery = one.gallery
        where = np.broadcast_to((gallery.real & gallery.counted[..., None])[:, None, :, None], gallery.scores.shape)
        scores, fair = gallery.scores[where], gallery.fair[where]
        axes[0, 0].hist(scores, np.arange(0, scores.max() + 1, 0.5), histtype="step", log=True, label=one.subject.name)
        rows.append(
            {
                "model": one.subject.name,
                "99.9 % quantile (column sums)": float(np.quantile(scores, 0.999)),
                "largest": float(scores.max()),
                "99.9 % quantile (per query that can see it)": float(np.quantile(fair, 0.999)),
                "attention on the top 2 %": float(np.sort(fair)[-len(fair) // 50 :].sum() / fair.sum()),
            }
        )
    axes[0, 0].axvline(1 + study.eps, color=plots.GUIDE, lw=0.8, ls=":", label=f"sinks: above {1 + study.eps:g}")
    axes[0, 0].set(
        xlabel="attention received (column sum; mean 1)", ylabel="number of tokens × heads × steps", xlim=(0, None)
    )
    axes[0, 0].legend()
    return Outcome(figure=figure, tables=[Table.of("Scores", rows)])
