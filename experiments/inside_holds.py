"""What sinks at future positions hold is the first open question of the paper, which names the logit lens as a way to see.

Of every recorded canvas the lens reads each layer at the masks. A mask is a sink if it is one of some head (Eq. 3). Does the
lens read at sinks, before they are written, what stands there in the end, in more layers than at other masks? Each sink is
held against the mask of the same canvas that is no sink and is filled in at nearly the same step, because masks that are
about to be filled in can be read everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxsink_experiments.canvases import canvases, mean_of, pass_over, sinks

from jaxsink.recording.lens import lens
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, experiment, nulls, plots
from jaxsink.study.experiments import diffusion_models

COUNT = 8  # steps of each generation
WAITS = (0, 1, 2, 4, 8, 16)  # steps until a mask is written, from these numbers on


class Pair(NamedTuple):
    """A masked sink and the mask that it is held against, as the layers before the last read them: f64[2,L-1] each."""

    readable: np.ndarray  # the best token is what stands there in the end
    kl: np.ndarray  # from what the last layer says
    entropy: np.ndarray
    share: float  # of the steps that are done
    last: np.ndarray  # bool[2]: the last layer reads what stands there in the end
    wait: np.ndarray  # i64[2]: steps until it is written


def of_position(values: np.ndarray, by: int) -> np.ndarray:
    """[L,B,S] of queries, as those that speak of each position."""
    return np.roll(values, by, axis=2) if by else values


@lru_cache(maxsize=4)
def pairs(subject: Subject, gallery: Gallery) -> tuple[tuple[Pair, ...], ...]:
    """Of each generation."""
    found: list[list[Pair]] = [[] for _ in gallery.tokens]
    by, last = int(subject.model.config.predicts_next), max(len(gallery.scores) - 1, 1)
    for canvas in canvases(subject, gallery, COUNT):
        seen = pass_over(subject, canvas.tokens, canvas.there, record=lens(1), parts=1).record
        best, kl, entropy = (of_position(seen[name], by) for name in ("token", "kl", "entropy"))
        readable = best[..., 0] == gallery.tokens
        is_sink = sinks(gallery.scores[canvas.step], canvas.there[None, :, None], gallery.eps).any(axis=(0, 2))
        masked = canvas.there & (canvas.tokens == subject.mask_id)
        for row, one, other in matched(gallery, masked, is_sink):
            known, apart, unsure = (
                values[:-1, row, [one, other]].T.astype(float) for values in (readable, kl, entropy)
            )
            read, wait = readable[-1, row, [one, other]], gallery.committed_at[row, [one, other]] - canvas.step
            found[row].append(Pair(known, apart, unsure, canvas.step / last, read, wait))
    return tuple(map(tuple, found))


def matched(gallery: Gallery, masked: np.ndarray, is_sink: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """(generation, a masked sink, the other mask that is filled in nearest to it in time, of those the nearest in place)."""
    for row in range(len(masked)):
        others = np.flatnonzero(masked[row] & ~is_sink[row])
        for one in np.flatnonzero(masked[row] & is_sink[row]) if len(others) else ():
            wait = np.abs(gallery.committed_at[row, others] - gallery.committed_at[row, one])
            yield row, int(one), int(others[np.lexsort((np.abs(others - one), wait))[0]])


def mean_of_pairs(subject: Subject, gallery: Gallery, name: str, which: int) -> np.ndarray:
    """f64[B]: over pairs and layers, at sinks (0) or at the others (1); NaN without pairs."""
    values = [[getattr(pair, name)[which].mean() for pair in made] for made in pairs(subject, gallery)]
    return np.array([np.mean(one) if one else np.nan for one in values])


def readable_at_sinks(subject: Subject, gallery: Gallery) -> np.ndarray:
    return mean_of_pairs(subject, gallery, "readable", 0)


def readable_at_others(subject: Subject, gallery: Gallery) -> np.ndarray:
    return mean_of_pairs(subject, gallery, "readable", 1)


def by_layer(one: Measured) -> list[dict[str, float | str]]:
    """A line for each layer before the last, and half of the run."""
    lines: list[dict[str, float | str]] = []
    for half, name in enumerate(("first", "second")):
        made = [[pair for pair in of_one if (pair.share >= 0.5) == half] for of_one in pairs(one.subject, one.gallery)]
        for layer in range(one.subject.model.config.layers - 1):
            line: dict[str, float | str] = {"model": one.subject.name, "half of the run": name, "layer": layer}
            for which, place in enumerate(("sinks", "others")):
                for what in ("readable", "kl", "entropy"):
                    values = [
                        np.mean([getattr(pair, what)[which, layer] for pair in some]) if some else np.nan
                        for some in made
                    ]
                    line[f"{what}: {place}"] = mean_of(np.array(values), one.gallery).value
            lines.append(line)
    return lines


def by_wait(one: Measured) -> list[dict[str, float | str]]:
    """What the last layer reads, by the steps that are left until the token is written."""
    lines: list[dict[str, float | str]] = []
    starts = [wait for wait in WAITS if wait < len(one.gallery.scores)]
    for first, after in zip(starts, (*starts[1:], len(one.gallery.scores)), strict=True):
        line: dict[str, float | str] = {"model": one.subject.name, "steps until it is written": span(first, after)}
        for which, place in enumerate(("sinks", "others")):
            made = [
                [float(pair.last[which]) for pair in of_one if first <= pair.wait[which] < after]
                for of_one in pairs(one.subject, one.gallery)
            ]
            values = np.array([np.mean(some) if some else np.nan for some in made])
            line[f"readable: {place}"] = mean_of(values, one.gallery).value
            line[f"masks: {place}"] = float(sum(map(len, made)))
        lines.append(line)
    return lines


def span(first: int, after: int) -> str:
    return str(first) if after == first + 1 else f"{first} to {after - 1}"


@experiment(
    name="holds",
    title="What a future sink holds",
    question="Is what stands at a masked sink in the end to be read there, before it is written, more than at other masks?",
    paper="Not known; it is the first open question, and the logit lens is proposed.",
    subjects=diffusion_models,
    predictions=(
        Prediction(
            name="holds",
            statistic="share of the layers before the last in which the lens reads the final token at masked sinks",
            of=readable_at_sinks,
            control=nulls.Control("masks that are no sinks and are filled in at the same time", readable_at_others),
            same_texts=True,  # untrained models have too few sinks of their own
        ),
    ),
)
def what_sinks_hold(measured: Sequence[Measured], study: Study) -> Outcome:
    lines = [line for one in measured for line in by_layer(one)]
    figure, axes = plots.canvas(1, len(measured), sharey=True)
    for axis, one in zip(axes[0], measured, strict=True):
        for number, half in enumerate(("first", "second")):
            mine = [line for line in lines if (line["model"], line["half of the run"]) == (one.subject.name, half)]
            x = [line["layer"] for line in mine]
            for place, style in (("sinks", "-"), ("others", ":")):
                y = [line[f"readable: {place}"] for line in mine]
                label = f"{place}, {half} half"
                axis.plot(x, y, style, color=plots.COLOURS[number], marker=plots.MARKERS[number], label=label)
        axis.set(title=one.subject.name, xlabel="layer")
    axes[0, 0].set_ylabel("share that reads the final token")
    plots.shared_legend(figure, columns=2)
    note = f"{COUNT} steps of each generation; means over generations; kl: to the last layer, in nats"
    waits = [line for one in measured for line in by_wait(one)]
    told = "share of masks at which the best token of the last layer is what stands there in the end; 0: this step writes it"
    tables = [
        Table.of("What the lens reads at masks", lines, note),
        Table.of("What the last layer reads, by the steps that are left", waits, told),
    ]
    return Outcome(figure=figure, tables=tables)
