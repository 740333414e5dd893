"""§4.2 calls LLaDA's sinks semantic and Dream's positional: does a sink follow its token, or stay at its position?

Two changes of the text tell them apart: the sink's token changes places with another one, and the whole text moves to the
right. Every key's attention depends on both token and position; the sinks of a semantic model go with their tokens more than
other keys do, and those of a positional one less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from jaxsink_experiments.canvases import mean_of
from jaxsink_experiments.displaced import CHANGES, SHIFT, displacement

from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, experiment, nulls, plots

EVENLY = 0.5
WORDS = {"swap": "its token changes places with another", "shift": f"the text moves by {SHIFT} tokens"}


def of_sinks(change: str, subject: Subject, gallery: Gallery) -> np.ndarray:
    return displacement(subject, gallery, change).sinks


def of_others(change: str, subject: Subject, gallery: Gallery) -> np.ndarray:
    return displacement(subject, gallery, change).others


def is_semantic(subject: Subject) -> bool:
    """Models like LLaDA; those that began as autoregressive ones have shifted logits."""
    return subject.is_diffusion and not subject.model.config.shift_logits


def is_positional(subject: Subject) -> bool:
    return not is_semantic(subject)


def prediction(change: str, semantic: bool) -> Prediction:
    about: Callable[[Subject], bool] = is_semantic if semantic else is_positional
    return Prediction(
        name=f"{change}-{'token' if semantic else 'position'}",
        statistic=f"share of a sink's attention that goes with its token when {WORDS[change]}"
        + ("" if semantic else " (positional)"),
        of=partial(of_sinks, change),
        expected="greater" if semantic else "less",
        control=nulls.Control("other keys", partial(of_others, change)),
        least=EVENLY if semantic else None,
        most=None if semantic else EVENLY,
        bound="half of it",
        about=about,
    )


@experiment(
    name="token",
    title="Token or position",
    question="Does a sink go with its token, or stay at its position, when the text is changed?",
    paper="LLaDA's sinks are semantic; Dream's positional, because it began as an autoregressive model (§4.2, not tested).",
    predictions=tuple(prediction(change, semantic) for change in CHANGES for semantic in (True, False)),
)
def token_or_position(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(CHANGES), sharey=True)
    lines = []
    for axis, change in zip(axes[0], CHANGES, strict=True):
        for place, one in enumerate(measured):
            found = displacement(one.subject, one.gallery, change)
            for number, (kind, values) in enumerate(found._asdict().items()):
                mean, colour = mean_of(values, one.gallery), plots.COLOURS[number]
                x, marker = place + 0.15 * (number - 0.5), plots.MARKERS[number]
                axis.errorbar(x, mean.value, mean.reach, fmt=marker, color=colour, label=kind, capsize=2)
                name = {"model": one.subject.name, "change": change, "keys": kind}
                lines.append({**name, "goes with the token": mean.value, **mean.columns})
        axis.axhline(EVENLY, color=plots.GUIDE, lw=0.6, ls=":")
        axis.set_xticks(range(len(measured)), [one.subject.name for one in measured])
        axis.set(title=WORDS[change], xlabel="model")
    axes[0, 0].set_ylabel("share that goes with the token")
    plots.shared_legend(figure)
    return Outcome(figure=figure, tables=[Table.of("What goes with the token", lines, "95 % intervals over problems")])
