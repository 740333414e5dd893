"""Fig. 7: the position of the largest sink over the steps, for each model."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxsink.evals.statistics import bootstrap
from jaxsink.reporting.plots import plot_trajectory
from jaxsink.sinks import Threshold
from jaxsink.sinks.track import KINDS
from jaxsink.study import Finding, Gallery, Study, Table, plots
from jaxsink.study.finding import all_of

NAME, TITLE = "fig7", "Where the largest sink is, step by step"
QUESTION = "Do sinks move in diffusion models, and stay on the first token in an autoregressive one?"
PAPER = "Sinks move in LLaDA and Dream, hardly in MMaDA; an autoregressive model's stays on the first token."


def draw(axis: Any, gallery: Gallery) -> None:
    """Of the first generation: the head whose sink moves most, the one with the strongest sink, and all others."""
    rule = Threshold(gallery.eps)
    strength = gallery.tracks.score[:, :, 0].mean(axis=0)  # [L,H], 0 where there is no sink
    layer, head = (int(index) for index in np.unravel_index(np.argmax(strength), strength.shape))
    plot_trajectory(
        gallery.generation,
        layer=layer,
        head=head,
        rule=rule,
        ax=axis,
        color=plots.COLOURS[1],
        lw=2.4,
        alpha=0.6,
        marker="",
        label="strongest sink",
    )
    if gallery.tracks.jumps[:, 0].any():
        plot_trajectory(
            gallery.generation, rule=rule, others=False, ax=axis, color=plots.COLOURS[0], marker="", label="moves most"
        )


def run(study: Study) -> Finding:
    figure, axes = plots.canvas(1, len(study.subjects), height=2.9)
    rows, held = [], []
    for axis, subject in zip(axes[0], study.subjects, strict=True):
        gallery = study.gallery(subject)
        tracks = gallery.tracks
        draw(axis, gallery)
        plots.title_of_head(axis, subject.name, tracks.jumps[:, 0].any())
        seen = np.maximum(gallery.present.sum(axis=(0, 1, 3)), 1)
        first = bootstrap((gallery.present & (gallery.sink_token_position == 0)).sum(axis=(0, 1, 3)) / seen)
        jumps = bootstrap(tracks.jumps.sum(axis=(0, 2)) / seen)
        kinds = np.bincount(tracks.kind.ravel(), minlength=len(KINDS)) / tracks.kind.size
        rows.append(
            [subject.name, first.estimate, first.low, first.high, jumps.estimate, jumps.low, jumps.high, *kinds]
        )
        held.append(
            jumps.low > 0.02 if subject.is_diffusion else first.low > 0.5 and kinds[KINDS.index("moving")] < 0.5
        )
    plots.shared_legend(figure, columns=5)
    columns = ["model", "on the first token", "low", "high", "jumps per step", "low", "high", *KINDS]
    words = "; ".join(f"{r[0]}: on the first token in {r[1]:.0%} of steps, {r[4]:.2f} jumps per step" for r in rows)
    return Finding(
        name=NAME,
        title=TITLE,
        question=QUESTION,
        paper=PAPER,
        found=words + ".",
        verdict=all_of(*held),
        figures=[study.figure(NAME, figure)],
        tables=[
            Table(
                "Trajectories", columns, [[*map(_plain, row)] for row in rows], "kinds: share of heads; 95 % intervals"
            )
        ],
    )


def _plain(value: object) -> object:
    return value if isinstance(value, str) else float(value)  # type: ignore[arg-type]
