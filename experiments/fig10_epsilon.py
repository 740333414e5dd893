"""Fig. 10: the share of tokens that are no sinks, against ε."""

from __future__ import annotations

import numpy as np

from jaxsink.evals.statistics import bootstrap
from jaxsink.sinks import sweep
from jaxsink.study import Finding, Study, Table, plots
from jaxsink.study.finding import all_of

NAME, TITLE = "fig10", "Non-sinks against the threshold"
QUESTION = "Does ε = 3 filter out at least 96 % of the tokens?"
PAPER = "At ε = 3 at least 96 % of tokens are no sinks, in all three diffusion models."
GRID = np.linspace(0, 10, 41)


def run(study: Study) -> Finding:
    figure, axes = plots.canvas()
    rows, held = [], []
    for subject in study.subjects:
        gallery = study.gallery(subject)
        share = np.asarray(sweep(gallery.scores, GRID, gallery.real))  # [T,L,B,H,ε]
        steps = np.maximum(gallery.taken, 1)
        counted = gallery.counted[:, None, :, None, None]
        per_prompt = np.where(counted, share, 0).sum(axis=0).mean(axis=(0, 2)) / steps[:, None]  # [B,ε]
        axes[0, 0].plot(GRID, per_prompt.mean(axis=0), label=subject.name)
        found = bootstrap(per_prompt[:, np.argmin(np.abs(GRID - 3))])
        rows.append([subject.name, *map(float, found)])
        held += [found.low >= 0.96] if subject.is_diffusion else []
    axes[0, 0].axhline(0.96, color=plots.GUIDE, lw=0.8, ls=":")
    axes[0, 0].axvline(3, color=plots.GUIDE, lw=0.8, ls=":")
    axes[0, 0].annotate("paper: 96 % at ε = 3", (3, 0.96), (6, -12), textcoords="offset points", color=plots.GUIDE)
    axes[0, 0].set(xlabel="threshold ε (column sum)", ylabel="share of tokens that are no sinks")
    axes[0, 0].legend()
    words = ", ".join(f"{r[0]} {r[1]:.1%} [{r[2]:.1%}, {r[3]:.1%}]" for r in rows)
    return Finding(
        name=NAME,
        title=TITLE,
        question=QUESTION,
        paper=PAPER,
        found=f"At ε = 3 the share of non-sinks is {words}.",
        verdict=all_of(*held) if held else "not tested",
        figures=[study.figure(NAME, figure)],
        tables=[Table("Share of non-sinks at ε = 3", ["model", "share", "low", "high"], rows)],
    )
