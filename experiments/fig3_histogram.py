"""Fig. 3 and 9: nearly all tokens receive next to nothing, a thin tail receives very much."""

from __future__ import annotations

import numpy as np

from jaxsink.study import Finding, Study, Table, plots
from jaxsink.study.finding import all_of

NAME, TITLE = "fig3", "Distribution of scores"
QUESTION = "Are scores near zero but for a thin tail?"
PAPER = "Nearly all scores lie near zero; the tail reaches about 50."


def run(study: Study) -> Finding:
    figure, axes = plots.canvas()
    rows, held = [], []
    for subject in study.subjects:
        gallery = study.gallery(subject)
        where = np.broadcast_to((gallery.real & gallery.counted[..., None])[:, None, :, None], gallery.scores.shape)
        scores = gallery.scores[where]
        axes[0, 0].hist(scores, np.arange(0, scores.max() + 1, 0.5), histtype="step", log=True, label=subject.name)
        below = float((scores < 1).mean())
        share = float(np.sort(scores)[-len(scores) // 50 :].sum() / scores.sum())
        rows.append([subject.name, below, float(np.quantile(scores, 0.999)), float(scores.max()), share])
        held.append(below > 0.5 and scores.max() > 1 + study.eps)
    axes[0, 0].axvline(1 + study.eps, color=plots.GUIDE, lw=0.8, ls=":", label=f"sinks: above {1 + study.eps:g}")
    axes[0, 0].set(
        xlabel="attention received (column sum; mean 1)", ylabel="number of tokens × heads × steps", xlim=(0, None)
    )
    axes[0, 0].legend()
    columns = ["model", "share below the mean", "99.9 % quantile", "largest", "attention on the top 2 %"]
    tail = ", ".join(f"{row[0]} {row[3]:.0f}" for row in rows)
    return Finding(
        name=NAME,
        title=TITLE,
        question=QUESTION,
        paper=PAPER,
        found=f"Most tokens lie below the mean of 1; the largest scores are {tail}.",
        verdict=all_of(*held),
        figures=[study.figure(NAME, figure)],
        tables=[Table("Scores", columns, rows)],
    )
