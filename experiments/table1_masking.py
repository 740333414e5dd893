"""Table 1: accuracy with the top-K sinks masked, and beside it the controls that the paper lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxsink_experiments.masking import (
    NOTE,
    NULL,
    PLAIN,
    SELECTIONS,
    STATISTIC,
    no_generations,
    percent,
    row,
    rows,
    table1,
    worse,
)
from matplotlib.axes import Axes

from jaxsink.evals import paper
from jaxsink.evals.conditions import hide
from jaxsink.study import Measured, Outcome, Study, Table, experiment, plots
from jaxsink.study.finding import all_of

CLAIM = (
    "Masking one sink breaks Llama (.{:02d} to .{:02d} on GSM8K), while LLaDA and Dream lose little up to K = 5."
).format(*paper.TABLE1["llama-3.1-8b-instruct/gsm8k/study"])
COUNTS = (1, 5, 10)
LITTLE, MOST = 0.05, 0.5  # of the accuracy: what is lost by a model that is robust, and by one that breaks


def draw(axis: Axes, one: Measured) -> None:
    """Accuracy against K with intervals, a line for each choice of the keys; points are set apart where lines cross."""
    for number, select in enumerate(SELECTIONS):
        chosen = [PLAIN, *(hide(k, select) for k in COUNTS)]
        shown: list[dict[str, Any]] = [row(one.subject, c, one.scores[c], one.scores[PLAIN]) for c in chosen]
        right = [line["right"] for line in shown]
        bars = [[abs(line["right"] - line[end]) for line in shown] for end in ("low", "high")]
        x = np.array((0, *COUNTS)) + 0.15 * (number - 1)
        colour, marker = plots.COLOURS[number], plots.MARKERS[number]
        axis.errorbar(x, right, bars, fmt="none", ecolor=colour, elinewidth=0.8, capsize=1.5)
        axis.plot(x, right, color=colour, marker=marker, label=select)
    axis.set(xlabel="keys hidden per head, K", ylim=(-0.02, 1.02), title=one.subject.name)
    axis.set_xticks((0, *COUNTS))
    plots.label_lines(axis)


@experiment(
    name="table1",
    title="Accuracy with sinks masked",
    question="Does losing its sinks break an autoregressive model but not a diffusion model, more than losing any keys?",
    paper=CLAIM,
    statistic=f"{STATISTIC}, top sink hidden against nothing hidden",
    null=f"fixed thresholds: {LITTLE:.0%} lost by a robust model, {MOST:.0%} by one that breaks; beside it {NULL}",
    record=no_generations,
    score=table1,
)
def masking(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), sharey=True)
    lines, drops, held, special = [], [], [], []
    for axis, one in zip(axes[0], measured, strict=True):
        draw(axis, one)
        plain, top = one.scores[PLAIN], one.scores[hide(1)]
        lines += rows(one.subject, one.scores, plain)
        drops.append(f"{one.subject.name} {percent(plain)} to {percent(top)}")
        kept = top.mean() / max(plain.mean(), 1e-9)
        held.append(kept > 1 - LITTLE if one.subject.is_diffusion else kept < 1 - MOST)
        special += [one.subject.name] if worse(top, one.scores[hide(1, "random")]) else []
    axes[0, 0].set_ylabel("problems solved (share)")
    control = f"Top-1 hurts significantly more than a random key in: {', '.join(special) or 'none of the models'}."
    return Outcome(
        found=f"Accuracy, nothing hidden to top sink hidden: {', '.join(drops)}. {control}",
        verdict=all_of(*held),
        figure=figure,
        tables=[Table.of("Accuracy by condition", lines, NOTE)],
    )
