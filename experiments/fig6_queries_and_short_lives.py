"""Fig. 6: masked and unmasked queries sink to different tokens, and some sinks live for one step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from jaxsink.evals.statistics import Interval, bootstrap
from jaxsink.sinks import scale_to_all_queries
from jaxsink.study import Gallery, Measured, Outcome, Study, Table, experiment, plots
from jaxsink.study.experiments import diffusion_models
from jaxsink.study.finding import all_of, with_limits


def tops_differ(gallery: Gallery) -> Interval:
    """Share of head-steps in which masked and unmasked queries have another largest key."""
    assert gallery.masked is not None
    split = scale_to_all_queries({"masked": gallery.masked, "unmasked": gallery.scores - gallery.masked})
    top = {kind: np.asarray(scores).argmax(axis=-1) for kind, scores in split.items()}
    compared = np.broadcast_to(gallery.counted[:, None, :, None], top["masked"].shape)
    differ = np.where(compared, top["masked"] != top["unmasked"], False)
    return bootstrap(differ.sum(axis=(0, 1, 3)) / compared.sum(axis=(0, 1, 3)))


def never_two_steps(gallery: Gallery) -> Interval:
    """Share of sinks that never last two steps."""
    tracks = gallery.tracks
    brief = ((tracks.births > 0) & (tracks.longest == 1)).sum(axis=(0, 2, 3))
    return bootstrap(brief / np.maximum((tracks.births > 0).sum(axis=(0, 2, 3)), 1))


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
    question="Do masked and unmasked queries have different sinks, and do sinks appear for a single step?",
    paper="(a) Masked and unmasked queries sink to different tokens; (b) sinks can live for one step.",
    statistic="share of head-steps in which the two kinds of queries have another largest key; share of sinks of one step",
    null="fixed thresholds: one half, and none",
    subjects=diffusion_models,
)
def queries_and_short_lives(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), sharey=True)
    rows, words, held = [], [], []
    for axis, one in zip(axes[0], measured, strict=True):
        draw(axis, one)
        apart, short = tops_differ(one.gallery), never_two_steps(one.gallery)
        limits = with_limits("tops differ", apart) | with_limits("never longer than one step", short)
        rows.append({"model": one.subject.name, **limits})
        words.append(
            f"{one.subject.name}: tops differ in {apart.estimate:.0%} of cases, {short.estimate:.0%} of sinks never last "
            "two steps"
        )
        held += [apart.low > 0.5, short.low > 0]
    axes[0, 0].set_ylim(bottom=0.7)  # on a logarithmic axis, one is to be seen
    return Outcome(
        found="; ".join(words) + ".",
        verdict=all_of(*held),
        figure=figure,
        tables=[Table.of("Queries and lives", rows, "95 % intervals over generations")],
    )
