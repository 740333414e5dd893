"""Table 1: accuracy with the top-K sinks masked, and beside it the controls that the paper lacks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxsink_experiments.masking import NOTE, PLAIN, by_problem, loss_test, lost, no_generations, rows, table1
from matplotlib.axes import Axes

from jaxsink.evals import paper
from jaxsink.evals.conditions import hide
from jaxsink.study import Measured, Outcome, Study, Table, Tested, experiment, plots

CLAIM = (
    "Masking one sink breaks Llama (.{:02d} to .{:02d} on GSM8K), while LLaDA and Dream lose little up to K = 5."
).format(*paper.TABLE1["llama-3.1-8b-instruct/gsm8k/study"])
COUNTS = (1, 5, 10)
LITTLE, HALF = 0.05, 0.5  # of the problems: what a robust model may lose, and what one that breaks loses at least
SHOWN = ("top", "partner", "mass")


def draw(axis: Axes, one: Measured) -> None:
    """Problems solved against K with intervals, a line for each choice of keys; points are set apart where lines cross."""
    plain = one.scores[PLAIN]
    for number, select in enumerate(SHOWN):
        chosen = [PLAIN, *(hide(k, select) for k in COUNTS)]
        right = [one.scores[condition].mean() for condition in chosen]
        ends = [lost(plain, one.scores[condition], one.clusters).interval() for condition in chosen[1:]]
        reach = [0.0, *((high - low) / 2 for low, high in ends)]
        x = np.array((0, *COUNTS)) + 0.15 * (number - 1)
        colour, marker = plots.COLOURS[number], plots.MARKERS[number]
        axis.errorbar(x, right, reach, fmt="none", ecolor=colour, elinewidth=0.8, capsize=1.5)
        axis.plot(x, right, color=colour, marker=marker, label=select)
    axis.set(xlabel="keys hidden per head, K", ylim=(-0.02, 1.02), title=one.subject.name)
    axis.set_xticks((0, *COUNTS))
    plots.label_lines(axis)


def claimed(one: Measured) -> list[Tested]:
    """What the paper says of such a model."""
    if one.subject.is_diffusion:
        few = ("little: 5 %", LITTLE)
        return [
            loss_test(one, one.scores, f"problems lost with {keys} hidden", hide(k), expected="less", bound=few)
            for k, keys in ((1, "the top key"), (5, "5 top keys"))
        ]
    return [loss_test(one, one.scores, "problems lost with the top key hidden", hide(1), bound=("half", HALF))]


@experiment(
    name="table1",
    title="Accuracy with sinks masked",
    question="Does losing its sinks break an autoregressive model but not a diffusion model?",
    paper=CLAIM,
    record=no_generations,
    score=table1,
    likelihood=True,
    look=True,
)
def masking(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), sharey=True)
    for axis, one in zip(axes[0], measured, strict=True):
        draw(axis, one)
    axes[0, 0].set_ylabel("problems solved (share)")
    return Outcome(
        figure=figure,
        tables=[Table.of("By condition", [line for one in measured for line in rows(one)], NOTE)],
        tests=[test for one in measured for test in claimed(one)],
        values=[line for one in measured for line in by_problem(one)],
    )
