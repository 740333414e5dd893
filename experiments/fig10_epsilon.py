"""Fig. 10: the share of tokens that are no sinks, against ε."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxsink.evals.statistics import bootstrap
from jaxsink.sinks import sweep
from jaxsink.study import Measured, Outcome, Study, Table, experiment, plots
from jaxsink.study.finding import all_of

GRID = np.linspace(0, 10, 41)


@experiment(
    name="fig10",
    title="Non-sinks against the threshold",
    question="Does ε = 3 filter out at least 96 % of the tokens?",
    paper="At ε = 3 at least 96 % of tokens are no sinks, in all three diffusion models.",
    statistic="share of tokens that are no sinks at ε = 3",
    null="the paper's 96 %",
)
def non_sinks(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas()
    rows, words, held = [], [], []
    for one in measured:
        gallery, name = one.gallery, one.subject.name
        share = np.asarray(sweep(gallery.scores, GRID, gallery.real))  # [T,L,B,H,ε]
        steps = np.maximum(gallery.taken, 1)
        counted = gallery.counted[:, None, :, None, None]
        per_prompt = np.where(counted, share, 0).sum(axis=0).mean(axis=(0, 2)) / steps[:, None]  # [B,ε]
        axes[0, 0].plot(GRID, per_prompt.mean(axis=0), label=name)
        found = bootstrap(per_prompt[:, np.argmin(np.abs(GRID - 3))])
        rows.append({"model": name, "share": found.estimate, "low": found.low, "high": found.high})
        words.append(f"{name} {found.estimate:.1%} [{found.low:.1%}, {found.high:.1%}]")
        held += [found.low >= 0.96] if one.subject.is_diffusion else []
    axes[0, 0].axhline(0.96, color=plots.GUIDE, lw=0.8, ls=":")
    axes[0, 0].axvline(3, color=plots.GUIDE, lw=0.8, ls=":")
    axes[0, 0].annotate("paper: 96 % at ε = 3", (3, 0.96), (6, -12), textcoords="offset points", color=plots.GUIDE)
    axes[0, 0].set(xlabel="threshold ε (column sum)", ylabel="share of tokens that are no sinks")
    axes[0, 0].legend()
    return Outcome(
        found=f"At ε = 3 the share of non-sinks is {', '.join(words)}.",
        verdict=all_of(*held) if held else "not tested",
        figure=figure,
        tables=[Table.of("Share of non-sinks at ε = 3", rows)],
    )
