"""Fig. 4: the attention maps of two neighbouring steps between which the sink jumps."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.patches import Rectangle

import jaxsink
from jaxsink.reporting.plots import COMMITTED, HEAT
from jaxsink.study import Finding, Study, plots
from jaxsink.study.finding import all_of

NAME, TITLE = "fig4", "A sink jumps between two steps"
QUESTION = "Does the largest sink of a head leave its place from one step to the next?"
PAPER = "In LLaDA a sink jumps from position 62 to 88 between steps 38 and 39; in MMaDA between 36 and 37."


def largest_jump(position: np.ndarray, score: np.ndarray) -> tuple[int, int, int, int] | None:
    """(step, layer, sequence, head) of the farthest jump between two clear sinks."""
    both = (position[1:] >= 0) & (position[:-1] >= 0)
    distance = np.where(both, np.abs(position[1:] - position[:-1]), 0)
    if not distance.any():
        return None
    clear = np.minimum(score[1:], score[:-1]) * (distance > 0)
    step, layer, sequence, head = np.unravel_index(np.argmax(distance * 1000 + clear), distance.shape)
    return int(step), int(layer), int(sequence), int(head)


def draw(axis: Any, picture: np.ndarray, sink: int, other: int) -> Any:
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


def point_out(axis: Any, before: int, after: int) -> None:
    """An arrow above the map, along the way of the sink."""
    arrow = {"arrowstyle": "->", "lw": 0.9, "color": "black", "shrinkA": 4, "shrinkB": 4}
    axis.annotate("", (after, -2), (before, -2), arrowprops=arrow, annotation_clip=False)


def run(study: Study) -> Finding:
    diffusion = [subject for subject in study.subjects if subject.is_diffusion]
    if not diffusion:
        return Finding(
            name=NAME,
            title=TITLE,
            question=QUESTION,
            paper=PAPER,
            found="No diffusion model was studied.",
            verdict="not tested",
        )
    figure, axes = plots.canvas(len(diffusion), 2, height=3.2 * len(diffusion))
    words, held = [], []
    for line, subject in zip(axes, diffusion, strict=True):
        gallery = study.gallery(subject)
        jump = largest_jump(gallery.tracks.position, gallery.tracks.score)
        held.append(jump is not None)
        if jump is None:
            words.append(f"{subject.name}: no sink ever jumps")
            continue
        step, layer, sequence, head = jump
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
        figure.colorbar(image, ax=list(line), label="attention (probability)", shrink=0.8)
        words.append(f"{subject.name}: from {before} to {after} between steps {step} and {step + 1}")
    return Finding(
        name=NAME,
        title=TITLE,
        question=QUESTION,
        paper=PAPER,
        found="; ".join(words) + ".",
        verdict=all_of(*held),
        figures=[study.figure(NAME, figure)],
    )
