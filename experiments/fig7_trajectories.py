"""Fig. 7: the position of the largest sink over the steps, for each model."""

from __future__ import annotations

import numpy as np

from jaxsink.sinks.track import KINDS
from jaxsink.stats import bootstrap
from jaxsink.study import Finding, Study, Table, plots
from jaxsink.study.finding import all_of

NAME, TITLE = "fig7", "Where the largest sink is, step by step"
QUESTION = "Do sinks move in diffusion models, and stay on the first token in an autoregressive one?"
PAPER = "Sinks move in LLaDA and Dream, hardly in MMaDA; an autoregressive model's stays on the first token."


def run(study: Study) -> Finding:
    figure, axes = plots.canvas(width=7)
    rows, held = [], []
    for subject in study.subjects:
        gallery = study.gallery(subject)
        tracks = gallery.tracks
        strength = np.where(tracks.position[:, :, 0] >= 0, tracks.score[:, :, 0], 0).mean(
            axis=0
        )  # [L,H] of generation 0
        layer, head = np.unravel_index(np.argmax(strength), strength.shape)
        steps, shown = slice(gallery.taken[0]), (layer, 0, head)
        line = np.where(gallery.present[steps, *shown], gallery.sink_place[steps, *shown], np.nan)
        axes[0, 0].plot(line, marker=".", label=f"{subject.name} (layer {layer}, head {head})")
        seen = np.maximum(gallery.present.sum(axis=(0, 1, 3)), 1)
        first = bootstrap((gallery.present & (gallery.sink_place == 0)).sum(axis=(0, 1, 3)) / seen)
        jumps = bootstrap(tracks.jumps.sum(axis=(0, 2)) / seen)
        kinds = np.bincount(tracks.kind.ravel(), minlength=len(KINDS)) / tracks.kind.size
        rows.append(
            [subject.name, first.estimate, first.low, first.high, jumps.estimate, jumps.low, jumps.high, *kinds]
        )
        held.append(
            jumps.low > 0.02 if subject.is_diffusion else first.low > 0.5 and kinds[KINDS.index("moving")] < 0.5
        )
    axes[0, 0].set(xlabel="step", ylabel="position of the largest sink")
    axes[0, 0].legend()
    columns = ["model", "on the first token", "low", "high", "jumps per step", "low", "high", *KINDS]
    words = "; ".join(f"{r[0]}: on the first token in {r[1]:.0%} of steps, {r[4]:.2f} jumps per step" for r in rows)
    return Finding(
        NAME, TITLE, QUESTION, PAPER, words + ".", all_of(*held), [study.figure(NAME, figure)],
        [Table("Trajectories", columns, [[*map(_plain, row)] for row in rows], "kinds: share of heads; 95 % intervals")],
    )  # fmt: skip


def _plain(value: object) -> object:
    return value if isinstance(value, str) else float(value)  # type: ignore[arg-type]
