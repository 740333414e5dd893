"""Beyond the paper: masking the top sinks in one layer only."""

from __future__ import annotations

from collections.abc import Sequence

from jaxsink_experiments.masking import NOTE, PLAIN, by_problem, loss_test, no_generations, rows

from jaxsink.evals.conditions import Condition
from jaxsink.sinks import MaskSinks
from jaxsink.sinks.mask import Select
from jaxsink.study import Measured, Outcome, Study, Subject, Table, experiment, plots

K = 5


def in_layer(number: int, select: Select) -> Condition:
    return Condition(MaskSinks(K, select=select, layers=(number,)))


def by_layer(subject: Subject) -> tuple[Condition, ...]:
    """The top-K sinks of one layer, and their partners in it."""
    return tuple(in_layer(n, select) for select in ("top", "partner") for n in range(subject.model.config.layers))


@experiment(
    name="depth",
    title="Masking by depth",
    question="In which layers does the model need its sinks?",
    paper="Not studied: the paper masks all layers at once. Our prediction: in every layer, more than other keys.",
    record=no_generations,
    score=lambda subject, study: (PLAIN, *by_layer(subject)),
)
def masking_by_depth(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas()
    tests = []
    for number, one in enumerate(measured):
        layers = range(one.subject.model.config.layers)
        colour = plots.COLOURS[number % len(plots.COLOURS)]
        marker = plots.MARKERS[number % len(plots.MARKERS)]
        solved = {select: [one.scores[in_layer(n, select)].mean() for n in layers] for select in ("top", "partner")}
        axes[0, 0].plot(list(layers), solved["top"], marker=marker, color=colour, label=one.subject.name)
        axes[0, 0].plot(list(layers), solved["partner"], marker=marker, mfc="white", ls=":", color=colour)
        for n in layers:
            words = f"problems lost with {K} top keys of layer {n} hidden"
            control = {"partner keys": in_layer(n, "partner")}
            tests.append(loss_test(one, one.scores, words, in_layer(n, "top"), controls=control))
    axes[0, 0].set(xlabel=f"layer in which {K} keys are hidden per head", ylim=(-0.02, 1.02))
    axes[0, 0].set(ylabel="problems solved (share)", title="solid: the top sinks; dotted: their partners")
    plots.whole_ticks(axes[0, 0])
    plots.label_lines(axes[0, 0])
    return Outcome(
        figure=figure,
        tables=[Table.of("One layer at a time", [line for one in measured for line in rows(one)], NOTE)],
        tests=tests,
        values=[line for one in measured for line in by_problem(one)],
    )
