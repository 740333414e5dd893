"""Fig. 6: masked and unmasked queries sink to different tokens, and some sinks live for one step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, experiment, nulls, plots
from jaxsink.study.experiments import diffusion_models


def tops_differ(gallery: Gallery) -> np.ndarray:
    """bool[T,L,B,H]: masked queries and all others have another largest key."""
    assert gallery.masked is not None
    return gallery.masked.argmax(axis=-1) != (gallery.scores - gallery.masked).argmax(axis=-1)


def with_both_kinds(gallery: Gallery) -> np.ndarray:
    """bool[T,1,B,1]: steps with masked and with other queries."""
    masked = (gallery.canvas == gallery.mask_id) & gallery.mask
    return (masked.any(axis=-1) & ~(masked | ~gallery.mask).all(axis=-1))[:, None, :, None]


def differ(subject: Subject, gallery: Gallery) -> np.ndarray:
    return gallery.mean_where(tops_differ(gallery), np.broadcast_to(with_both_kinds(gallery), gallery.present.shape))


def differ_at_sinks(subject: Subject, gallery: Gallery) -> np.ndarray:
    return gallery.mean_where(tops_differ(gallery), gallery.present & with_both_kinds(gallery))


def draw(axis: Axes, one: Measured) -> None:
    """How long sinks stay."""
    tracks, steps = one.gallery.tracks, len(one.gallery.scores)
    lengths = tracks.steps_as_sink[tracks.births > 0] / tracks.births[tracks.births > 0]
    axis.hist(lengths, bins=np.arange(1, steps + 2) - 0.5, log=lengths.size > 0, rwidth=0.85)
    axis.set(xlabel="length of a stay (steps; mean of each token)", ylabel="number of tokens × heads")
    axis.set_title(one.subject.name)
    axis.set_xlim(0, steps + 1)
    plots.whole_ticks(axis)


@experiment(
    name="fig6",
    title="Who sinks where, and for how long",
    question="Do masked and unmasked queries have different sinks, more than any two groups of queries?",
    paper="(a) Masked and unmasked queries sink to different tokens; (b) sinks can live for one step.",
    predictions=(
        Prediction(
            name="differ",
            statistic="share of heads and steps in which masked and other queries have another largest key",
            of=differ,
            shuffle=nulls.SPLIT,
        ),
        Prediction(
            name="differ-at-sinks",
            statistic="the same where the head has a sink",
            of=differ_at_sinks,
            shuffle=nulls.SPLIT,
        ),
    ),
    subjects=diffusion_models,
)
def queries_and_short_lives(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), sharey=True)
    rows = []
    for axis, one in zip(axes[0], measured, strict=True):
        draw(axis, one)
        tracks = one.gallery.tracks
        born = tracks.births > 0
        rows.append(
            {
                "model": one.subject.name,
                "tokens that are ever sinks, per head": float(born.sum(axis=-1).mean()),
                "share that never last two steps": float((born & (tracks.longest == 1)).sum() / max(1, born.sum())),
            }
        )
    axes[0, 0].set_ylim(bottom=0.7)  # on a logarithmic axis, one is to be seen
    note = "Part (b) of the claim is that such sinks exist; the table counts them."
    return Outcome(figure=figure, tables=[Table.of("Lives", rows)], note=note)
