"""Fig. 4: the attention maps of two neighbouring steps between which the sink jumps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

import jaxsink
from jaxsink.report.plots import COMMITTED, HEAT
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, experiment, plots
from jaxsink.study.experiments import diffusion_models


def largest_jump(position: np.ndarray, score: np.ndarray) -> tuple[int, int, int, int] | None:
    """(step, layer, sequence, head) of the farthest jump between two clear sinks."""
    both = (position[1:] >= 0) & (position[:-1] >= 0)
    distance = np.where(both, np.abs(position[1:] - position[:-1]), 0)
    if not distance.any():
        return None
    clear = np.minimum(score[1:], score[:-1]) * (distance > 0)
    step, layer, sequence, head = np.unravel_index(np.argmax(distance * 1000 + clear), distance.shape)
    return int(step), int(layer), int(sequence), int(head)


def draw(axis: Axes, picture: np.ndarray, sink: int, other: int) -> Any:
    """A map with its largest sink framed, and what both sinks of the jump receive in it written above them."""
    image = axis.imshow(picture, cmap=HEAT, vmin=0, vmax=1, interpolation="nearest")
    axis.add_patch(Rectangle((sink - 0.5, -0.5), 1, len(picture), fill=False, ec=COMMITTED, lw=0.9))
    for key in (sink, other):
        text = axis.annotate(
            f"{picture[:, key].sum():.1f}",
            (key, -0.5),
            (0, 9),
            textcoords="offset points",
            ha="center",
            va="bottom",
            annotation_clip=False,
            weight="bold" if key == sink else "normal",
        )
        text.set_color("black" if key == sink else plots.GUIDE)
        axis.plot(key, -2, marker="v", ms=4, mfc="black" if key == sink else "white", mec="black", clip_on=False)
    axis.set(xlabel="key (token position)", ylabel="query (token position)", ylim=(len(picture) - 0.5, -0.5))
    return image


def point_out(axis: Axes, before: int, after: int) -> None:
    """An arrow above the map, along the way of the sink."""
    arrow = {"arrowstyle": "->", "lw": 0.9, "color": "black", "shrinkA": 4, "shrinkB": 4}
    axis.annotate("", (after, -2), (before, -2), arrowprops=arrow, annotation_clip=False)


def draw_jump(line: Sequence[Axes], one: Measured, jump: tuple[int, int, int, int]) -> str:
    """Both maps of a jump side by side; what it is, in words."""
    step, layer, sequence, head = jump
    gallery, subject = one.gallery, one.subject
    real = np.flatnonzero(gallery.mask[sequence])
    before, after = (
        int(gallery.token_position[sequence][gallery.tracks.position[at, layer, sequence, head]])
        for at in (step, step + 1)
    )
    for axis, at, sink, other in zip(line, (step, step + 1), (before, after), (after, before), strict=True):
        seen = gallery.canvas[at, sequence][None, real]
        recorder = jaxsink.record.maps(layers=[layer], heads=[head])
        picture = np.asarray(jaxsink.forward(subject.model, seen, record=recorder).record)[0, 0, 0]
        image = draw(axis, picture, sink, other)
        axis.set_title(f"{subject.name}, layer {layer}, head {head}, step {at}", pad=24)
    point_out(line[1], before, after)
    line[0].figure.colorbar(image, ax=list(line), label="attention (probability)", shrink=0.8)
    return f"{subject.name}: from {before} to {after} between steps {step} and {step + 1}"


def moves(subject: Subject, gallery: Gallery) -> np.ndarray:
    """Of the steps at which the largest sink changes place: the share at which the old place stops being a sink and the
    new one was none. In the rest, sinks that last swap ranks."""
    position, sinks = gallery.tracks.position, gallery.tracks.sinks
    both = gallery.present[1:] & gallery.present[:-1]
    jump = both & (position[1:] != position[:-1])
    old, new = (np.maximum(part, 0)[..., None] for part in (position[:-1], position[1:]))
    gone = ~np.take_along_axis(sinks[1:], old, axis=-1)[..., 0]
    fresh = ~np.take_along_axis(sinks[:-1], new, axis=-1)[..., 0]
    jumps = jump.sum(axis=(0, 1, 3))
    return np.where(jumps > 0, (jump & gone & fresh).sum(axis=(0, 1, 3)) / np.maximum(jumps, 1), np.nan)


@experiment(
    name="fig4",
    title="A sink jumps between two steps",
    question="When the largest sink of a head changes place from one step to the next, has a sink moved?",
    paper="In LLaDA a sink jumps from position 62 to 88 between steps 38 and 39; in MMaDA between 36 and 37.",
    predictions=(
        Prediction(
            name="moves",
            statistic="share of jumps after which the old place is no sink, and before which the new one was none",
            of=moves,
            least=0.5,
            bound="most of them",
        ),
    ),
    subjects=diffusion_models,
)
def a_jump(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(len(measured), 2, height=3.2 * len(measured))
    words = []
    for line, one in zip(axes, measured, strict=True):
        jump = largest_jump(one.gallery.tracks.position, one.gallery.tracks.score)
        words.append(f"{one.subject.name}: no sink ever jumps" if jump is None else draw_jump(line, one, jump))
    return Outcome(figure=figure, note=f"The farthest jumps: {'; '.join(words)}.")
