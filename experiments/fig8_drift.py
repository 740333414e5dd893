"""Fig. 8: which way sinks move, and whether they follow the frontier of unmasking."""

from __future__ import annotations

import numpy as np

from jaxsink.evals.statistics import bootstrap
from jaxsink.sinks import distance, frontier
from jaxsink.study import Finding, Study, Table, plots
from jaxsink.study.finding import all_of

NAME, TITLE = "fig8", "Which way sinks drift"
QUESTION = "Do LLaDA-like sinks drift right with the blocks, and Dream-like ones left from the rightmost mask?"
PAPER = "LLaDA's sinks drift right as blocks are denoised; Dream's start at the rightmost mask and move left."


def run(study: Study) -> Finding:
    figure, axes = plots.canvas()
    rows, held = [], []
    for subject in study.subjects:
        gallery = study.gallery(subject)
        tracks = gallery.tracks
        seen = gallery.present.sum(axis=(1, 2, 3))
        total = np.where(gallery.present, gallery.sink_token_position, 0).sum(axis=(1, 2, 3))
        axes[0, 0].plot(np.where(seen > 0, total / np.maximum(seen, 1), np.nan), label=subject.name)
        drift = bootstrap(tracks.drift.mean(axis=(0, 2)))
        row = [subject.name, drift.estimate, drift.low, drift.high]
        if subject.is_diffusion:
            at = frontier(gallery.committed_at, gallery.mask, np.arange(len(gallery.scores)))
            for end in (at.first, at.last):
                away = np.asarray(distance(tracks.position, end))
                row.append(float(np.nanmean(np.abs(away))))
            moves_left = subject.model.config.shift_logits
            held.append(drift.high < 0 if moves_left else drift.low > 0)
        else:
            row += ["", ""]
        rows.append([value if isinstance(value, str) else float(value) for value in row])
    axes[0, 0].set(xlabel="step", ylabel="largest sinks: mean token position")
    axes[0, 0].invert_yaxis()
    plots.whole_ticks(axes[0, 0])
    plots.label_lines(axes[0, 0])
    columns = ["model", "drift per step", "low", "high", "distance to the leftmost mask", "to the rightmost mask"]
    words = "; ".join(f"{r[0]} {r[1]:+.2f} [{r[2]:+.2f}, {r[3]:+.2f}]" for r in rows)
    return Finding(
        name=NAME,
        title=TITLE,
        question=QUESTION,
        paper=PAPER,
        found=f"Drift in positions per step: {words}.",
        verdict=all_of(*held) if held else "not tested",
        figures=[study.figure(NAME, figure)],
        tables=[Table("Drift", columns, rows, "95 % intervals over generations; positive = to the right")],
    )
