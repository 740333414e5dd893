"""Fig. 3 and 9: nearly all tokens receive next to nothing, a thin tail receives very much."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxsink.study import Measured, Outcome, Study, Table, experiment, plots
from jaxsink.study.finding import all_of


@experiment(
    name="fig3",
    title="Distribution of scores",
    question="Are scores near zero but for a thin tail?",
    paper="Nearly all scores lie near zero; the tail reaches about 50.",
    statistic="share of scores below their mean; largest score",
    null="fixed thresholds: one half, and the 1 + ε of Eq. 3",
)
def histogram(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas()
    rows = []
    for one in measured:
        gallery = one.gallery
        where = np.broadcast_to((gallery.real & gallery.counted[..., None])[:, None, :, None], gallery.scores.shape)
        scores = gallery.scores[where]
        axes[0, 0].hist(scores, np.arange(0, scores.max() + 1, 0.5), histtype="step", log=True, label=one.subject.name)
        rows.append(
            {
                "model": one.subject.name,
                "share below the mean": float((scores < 1).mean()),
                "99.9 % quantile": float(np.quantile(scores, 0.999)),
                "largest": float(scores.max()),
                "attention on the top 2 %": float(np.sort(scores)[-len(scores) // 50 :].sum() / scores.sum()),
            }
        )
    axes[0, 0].axvline(1 + study.eps, color=plots.GUIDE, lw=0.8, ls=":", label=f"sinks: above {1 + study.eps:g}")
    axes[0, 0].set(
        xlabel="attention received (column sum; mean 1)", ylabel="number of tokens × heads × steps", xlim=(0, None)
    )
    axes[0, 0].legend()
    tail = ", ".join(f"{row['model']} {row['largest']:.0f}" for row in rows)
    return Outcome(
        found=f"Most tokens lie below the mean of 1; the largest scores are {tail}.",
        verdict=all_of(*(row["share below the mean"] > 0.5 and row["largest"] > 1 + study.eps for row in rows)),
        figure=figure,
        tables=[Table.of("Scores", rows)],
    )
