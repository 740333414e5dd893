"""Table 1: accuracy with the top-K sinks masked, and beside it the controls that the paper lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxsink_experiments.masking import COLUMNS, NOTE, PLAIN, SELECTIONS, TABLE1, percent, rows, worse

from jaxsink.evals import paper
from jaxsink.evals.conditions import hide
from jaxsink.study import Finding, Measurement, Scored, Study, Subject, Table, plots
from jaxsink.study.finding import all_of

NAME, TITLE = "table1", "Accuracy with sinks masked"
QUESTION = "Does losing its sinks break an autoregressive model but not a diffusion model, more than losing any keys?"
PAPER = (
    "Masking one sink breaks Llama (.{:02d} to .{:02d} on GSM8K), while LLaDA and Dream lose little up to K = 5."
).format(*paper.TABLE1["llama-3.1-8b-instruct/gsm8k/study"])
COUNTS = (1, 5, 10)
LITTLE, MOST = 0.05, 0.5  # of the accuracy: what is lost by a model that is robust, and by one that breaks


def needs(study: Study) -> list[tuple[Subject, Measurement]]:
    return [(subject, Scored(TABLE1)) for subject in study.subjects]


def draw(axis: Any, mine: list[list[Any]]) -> None:
    """Accuracy against K with intervals, a line for each choice of the keys; points are set apart where lines cross."""
    for number, select in enumerate(SELECTIONS):
        chosen = [mine[0], *(line for line in mine if line[1].endswith(select))]
        bars = [[abs(line[2] - line[at]) for line in chosen] for at in (3, 4)]
        x = np.array((0, *COUNTS)) + 0.15 * (number - 1)
        colour, marker = plots.COLOURS[number], plots.MARKERS[number]
        axis.errorbar(x, [line[2] for line in chosen], bars, fmt="none", ecolor=colour, elinewidth=0.8, capsize=1.5)
        axis.plot(x, [line[2] for line in chosen], color=colour, marker=marker, label=select)
    axis.set(xlabel="keys hidden per head, K", ylim=(-0.02, 1.02))
    axis.set_xticks((0, *COUNTS))
    plots.label_lines(axis)


def run(study: Study) -> Finding:
    figure, axes = plots.canvas(1, len(study.subjects), sharey=True)
    lines, held, special = [], [], []
    for axis, subject in zip(axes[0], study.subjects, strict=True):
        right = study.scores(subject, TABLE1)
        plain = right[PLAIN]
        mine = rows(subject, right, plain)
        lines += mine
        draw(axis, mine)
        axis.set_title(subject.name)
        kept = right[hide(1)].mean() / max(plain.mean(), 1e-9)
        held.append(kept > 1 - LITTLE if subject.is_diffusion else kept < 1 - MOST)
        if worse(right[hide(1)], right[hide(1, "random")]):
            special.append(subject.name)
    axes[0, 0].set_ylabel("problems solved (share)")
    by_model = {subject.name: [line for line in lines if line[0] == subject.name] for subject in study.subjects}
    drops = ", ".join(
        f"{name} {percent(mine[0])} to {percent(next(line for line in mine if line[1] == str(hide(1))))}"
        for name, mine in by_model.items()
    )
    control = f"Top-1 hurts significantly more than a random key in: {', '.join(special) or 'none of the models'}."
    return Finding(
        name=NAME,
        title=TITLE,
        question=QUESTION,
        paper=PAPER,
        found=f"Accuracy, nothing hidden to top sink hidden: {drops}. {control}",
        verdict=all_of(*held),
        figures=[study.figure(NAME, figure)],
        tables=[Table("Accuracy by condition", COLUMNS, lines, NOTE)],
    )
