"""Beyond the paper: masking the top sinks in one layer only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from jaxsink_experiments.masking import NOTE, NULL, PLAIN, STATISTIC, no_generations, rows, worse

from jaxsink.evals.conditions import Condition
from jaxsink.sinks import MaskSinks
from jaxsink.study import Measured, Outcome, Study, Subject, Table, experiment, plots

K = 5


def in_layer(number: int, select: Literal["top", "random"]) -> Condition:
    return Condition(MaskSinks(K, select=select, layers=(number,)))


def by_layer(subject: Subject) -> tuple[Condition, ...]:
    """The top-K sinks of one layer, and as many random keys of it."""
    return tuple(in_layer(n, select) for select in ("top", "random") for n in range(subject.model.config.layers))


@experiment(
    name="depth",
    title="Masking by depth",
    question="In which layers does the model need its sinks?",
    paper="Not studied: the paper masks all layers at once.",
    statistic=STATISTIC,
    null=NULL,
    record=no_generations,
    score=lambda subject: (PLAIN, *by_layer(subject)),
)
def masking_by_depth(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas()
    lines, words = [], []
    for number, one in enumerate(measured):
        right = {condition: one.scores[condition] for condition in by_layer(one.subject)}
        lines += rows(one.subject, right, one.scores[PLAIN])
        layers = range(one.subject.model.config.layers)
        top, random = ([right[in_layer(n, select)] for n in layers] for select in ("top", "random"))
        colour = plots.COLOURS[number % len(plots.COLOURS)]
        marker = plots.MARKERS[number % len(plots.MARKERS)]
        axes[0, 0].plot(list(layers), [x.mean() for x in top], marker=marker, color=colour, label=one.subject.name)
        axes[0, 0].plot(list(layers), [x.mean() for x in random], marker=marker, mfc="white", ls=":", color=colour)
        worst = min(layers, key=lambda n: top[n].mean())
        sinks = [str(n) for n in layers if worse(top[n], random[n])]
        words.append(
            f"{one.subject.name}: layer {worst} ({top[worst].mean():.0%}); sinks count for more than random keys in "
            f"{'layers ' + ', '.join(sinks) if sinks else 'no layer'}"
        )
    axes[0, 0].set(xlabel=f"layer in which {K} keys are hidden per head", ylim=(-0.02, 1.02))
    axes[0, 0].set(ylabel="problems solved (share)", title="solid: the top sinks; dotted: random keys")
    plots.whole_ticks(axes[0, 0])
    plots.label_lines(axes[0, 0])
    return Outcome(
        found=f"Most sensitive to losing its top {K}: {'; '.join(words)}.",
        verdict="new",
        figure=figure,
        tables=[Table.of("One layer at a time", lines, NOTE)],
    )
