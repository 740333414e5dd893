"""Beyond the paper: masking the top sinks in one layer only."""

from __future__ import annotations

from typing import Literal

from jaxsink_experiments.masking import COLUMNS, NOTE, PLAIN, TABLE1, rows, worse

from jaxsink.evals.conditions import Condition
from jaxsink.sinks import MaskSinks
from jaxsink.study import Finding, Measurement, Scored, Study, Subject, Table, plots

NAME, TITLE = "depth", "Masking by depth"
QUESTION = "In which layers does the model need its sinks?"
PAPER = "Not studied: the paper masks all layers at once."
K = 5


def in_layer(number: int, select: Literal["top", "random"]) -> Condition:
    return Condition(MaskSinks(K, select=select, layers=(number,)))


def by_layer(subject: Subject) -> tuple[Condition, ...]:
    """The top-K sinks of one layer, and as many random keys of it."""
    return tuple(in_layer(n, select) for select in ("top", "random") for n in range(subject.model.config.layers))


def needs(study: Study) -> list[tuple[Subject, Measurement]]:
    return [(s, Scored(group)) for s in study.subjects for group in (TABLE1, by_layer(s))]


def run(study: Study) -> Finding:
    figure, axes = plots.canvas()
    lines, words = [], []
    for number, subject in enumerate(study.subjects):
        plain, right = study.scores(subject, (PLAIN,))[PLAIN], study.scores(subject, by_layer(subject))
        lines += rows(subject, right, plain)
        layers = range(subject.model.config.layers)
        top, random = ([right[in_layer(n, s)] for n in layers] for s in ("top", "random"))
        colour = plots.COLOURS[number % len(plots.COLOURS)]
        marker = plots.MARKERS[number % len(plots.MARKERS)]
        axes[0, 0].plot(list(layers), [x.mean() for x in top], marker=marker, color=colour, label=subject.name)
        axes[0, 0].plot(list(layers), [x.mean() for x in random], marker=marker, mfc="white", ls=":", color=colour)
        worst = min(layers, key=lambda n: top[n].mean())
        sinks = [str(n) for n in layers if worse(top[n], random[n])]
        words.append(
            f"{subject.name}: layer {worst} ({top[worst].mean():.0%}); sinks count for more than random keys in "
            f"{'layers ' + ', '.join(sinks) if sinks else 'no layer'}"
        )
    axes[0, 0].set(xlabel=f"layer in which {K} keys are hidden per head", ylim=(-0.02, 1.02))
    axes[0, 0].set(ylabel="problems solved (share)", title="solid: the top sinks; dotted: random keys")
    plots.whole_ticks(axes[0, 0])
    plots.label_lines(axes[0, 0])
    return Finding(
        name=NAME,
        title=TITLE,
        question=QUESTION,
        paper=PAPER,
        found=f"Most sensitive to losing its top {K}: {'; '.join(words)}.",
        verdict="new",
        figures=[study.figure(NAME, figure)],
        tables=[Table("One layer at a time", COLUMNS, lines, NOTE)],
    )
