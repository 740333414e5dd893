"""Fig. 4b reads a jump as a takeover: the new sink takes the *self*-attention of the tokens that turn to it.

A query that turns to a key pays less to all its others, in proportion, so its self-attention falls whatever the model does;
and it may fall at steps at which no sink moves. A takeover is more than both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from jaxsink_experiments.canvases import pass_over, ratio

from jaxsink.recording.rerouted import takeover
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, experiment, nulls, plots
from jaxsink.study.experiments import diffusion_models

PAIRS = 32  # of neighbouring steps that are looked at, in each generation, at the most
LEAST = 0.5  # of what an average key receives: what a sink must gain, for the question to have a meaning
WHEN = ("the sink jumps", "it stays")


def kinds_of_steps(gallery: Gallery) -> np.ndarray:
    """bool[2,T-1,L,B,H]: between a step and the next the largest sink of a head jumps; it stays."""
    both = gallery.present[1:] & gallery.present[:-1]
    moved = gallery.tracks.position[1:] != gallery.tracks.position[:-1]
    return np.stack([both & moved, both & ~moved])


@lru_cache(maxsize=1)
def turning(subject: Subject, gallery: Gallery) -> dict[str, np.ndarray]:
    """f64[2,B] each: what `takeover` records, added up where the sink jumps, and where it stays; and their "number". Only
    where queries turn to the sink."""
    kinds, total = kinds_of_steps(gallery), dict[str, np.ndarray]()
    for step in np.unique(np.linspace(0, len(gallery.scores) - 2, PAIRS).astype(int)):
        tokens = np.concatenate(gallery.canvas[step : step + 2])
        record = pass_over(subject, tokens, np.tile(gallery.mask, (2, 1)), record=takeover(), parts=2).record
        record["number"] = np.ones_like(record["gain"])
        asked = kinds[:, step] & (record["gain"] >= LEAST)
        for name, values in record.items():
            here = np.where(asked, values, 0.0).sum(axis=(1, 3))
            total[name] = total.get(name, 0.0) + here
    return total


def from_self(subject: Subject, gallery: Gallery) -> np.ndarray:
    """f64[B]: of what queries give a new sink, what they took from themselves."""
    found = turning(subject, gallery)
    return ratio(found["from_self"], found["gain"])[0]


def in_proportion(subject: Subject, gallery: Gallery) -> np.ndarray:
    found = turning(subject, gallery)
    return ratio(found["in_proportion"], found["gain"])[0]


def beyond_proportion(subject: Subject, gallery: Gallery, when: int = 0) -> np.ndarray:
    found = turning(subject, gallery)
    return ratio(found["from_self"] - found["in_proportion"], found["gain"])[when]


def while_it_stays(subject: Subject, gallery: Gallery) -> np.ndarray:
    return beyond_proportion(subject, gallery, when=1)


@experiment(
    name="takeover",
    title="What a new sink takes",
    question="When a sink jumps, do the tokens that turn to the new one give up attention on themselves?",
    paper="The new sink takes over the self-attention of the tokens that turn to it (Fig. 4b, not measured).",
    predictions=(
        Prediction(
            name="from-self",
            statistic="share of what a new sink gains that queries took from their own token",
            of=from_self,
            control=nulls.Control("proportional shares", in_proportion),
        ),
        Prediction(
            name="at-jumps",
            statistic="the same, beyond proportion, at jumps",
            of=beyond_proportion,
            control=nulls.Control("steps at which the sink stays", while_it_stays),
        ),
    ),
    subjects=diffusion_models,
)
def what_it_takes(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), sharey=True)
    lines = []
    for axis, one in zip(axes[0], measured, strict=True):
        found = {name: values.sum(axis=1) for name, values in turning(one.subject, one.gallery).items()}
        for number, when in enumerate(WHEN):
            before, after = (
                float(found[name][number] / max(found["number"][number], 1)) for name in ("before", "after")
            )
            axis.plot((0, 1), (before, after), marker=plots.MARKERS[number], label=when)
            shares = {name: float(ratio(found[name], found["gain"])[number]) for name in ("from_self", "in_proportion")}
            line = {"model": one.subject.name, "when": when, "heads and steps": int(found["number"][number])}
            line |= {"on own token before": before, "after": after}
            lines.append(
                {**line, "taken from own token": shares["from_self"], "in proportion": shares["in_proportion"]}
            )
        axis.set_xticks((0, 1), ("before", "after"))
        axis.set(title=one.subject.name, xlabel="step", xlim=(-0.2, 1.2))
    axes[0, 0].set(ylabel="attention on the own token (mean)", ylim=(0, None))
    plots.shared_legend(figure)
    return Outcome(figure=figure, tables=[Table.of("Attention on the own token", lines)])
