"""Beyond the paper: do Dream's positional sinks come from its autoregressive start? A controlled triple can tell.

mini-dream began as mini-llama, mini-llada from random weights; size, data and task are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from jaxsink.evals.statistics import bootstrap
from jaxsink.sinks import frontier
from jaxsink.study import Gallery, Measured, Outcome, Study, Table, experiment, plots

PLACES = (
    "first token",
    "elsewhere in the question",
    "leftmost mask",
    "rightmost mask",
    "other masks",
    "written answer",
)


def shares_by_origin(gallery: Gallery, is_diffusion: bool) -> np.ndarray:
    """f64[B,origins]: where the largest sinks are, as shares of each generation's sinks."""
    position, token_position, present = gallery.tracks.position, gallery.sink_token_position, gallery.present
    in_prompt = position < gallery.prompt_length
    first = in_prompt & (token_position == 0)
    kinds = [first, in_prompt & ~first]
    if is_diffusion:
        steps = np.arange(len(gallery.scores))
        ends = frontier(gallery.committed_at, gallery.mask, steps)
        left, right = (position == np.asarray(end)[:, None, :, None] for end in (ends.first, ends.last))
        sequences = np.arange(len(gallery.tokens))[None, None, :, None]
        masked = ~in_prompt & (gallery.committed_at[sequences, np.maximum(position, 0)] >= steps[:, None, None, None])
        kinds += [masked & left, masked & right & ~left, masked & ~left & ~right, ~in_prompt & ~masked]
    else:
        nothing = np.zeros_like(first)
        kinds += [nothing, nothing, nothing, ~in_prompt]
    counts = np.stack([(kind & present).sum(axis=(0, 1, 3)) for kind in kinds], axis=-1)
    return counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1)


def by_head(gallery: Gallery) -> np.ndarray:
    """f64[L·H]: the mean score of each head's largest sink on the first token or elsewhere in the question."""
    held = gallery.present & (gallery.tracks.position < gallery.prompt_length)
    return gallery.mean_over_steps(np.where(held, gallery.tracks.score, 0)).mean(axis=0).ravel()


def draw(axis: Axes, names: Sequence[str], shares: np.ndarray) -> None:
    """Bars of shares [models, places] that add up to one."""
    ends = np.cumsum(shares, axis=1)
    for number, place in enumerate(PLACES):
        axis.barh(names, shares[:, number], left=ends[:, number] - shares[:, number], label=place)
    axis.set(xlabel="share of the largest sinks", xlim=(0, 1))
    axis.invert_yaxis()


def alike(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Correlation over heads of the sinks in the question, for each pair of models of one shape."""
    found = []
    for one, other in combinations(measured, 2):
        mine, theirs = by_head(one.gallery), by_head(other.gallery)
        if len(mine) == len(theirs) and mine.std() and theirs.std():
            value = float(np.corrcoef(mine, theirs)[0, 1])
            found.append({"model": one.subject.name, "other model": other.subject.name, "correlation": value})
    return found


@experiment(
    name="origin",
    title="Where a model's sinks come from",
    question="Does a diffusion model that was adapted from an autoregressive one keep that model's sinks?",
    paper="It guesses that Dream's positional, moving sinks stem from its autoregressive start; it could not test it.",
    statistic="where the largest sinks are; correlation over heads of the sinks in the question",
    null="the diffusion model that began from random weights",
)
def origin(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(width=plots.PAGE, height=2.2)
    rows, shares = [], []
    for one in measured:
        found = bootstrap(shares_by_origin(one.gallery, one.subject.is_diffusion))
        shares.append(found.estimate)
        for place, share, low, high in zip(PLACES, *found, strict=True):
            line = {"share": float(share), "low": float(low), "high": float(high)}
            rows.append({"model": one.subject.name, "place": place, **line})
    names = [one.subject.name for one in measured]
    draw(axes[0, 0], names, np.array(shares))
    plots.shared_legend(figure, columns=3)
    pairs = alike(measured)
    together = "; ".join(f"{pair['model']} and {pair['other model']} {pair['correlation']:+.2f}" for pair in pairs)
    top = "; ".join(
        f"{name}: {PLACES[int(np.argmax(share))]} {max(share):.0%}" for name, share in zip(names, shares, strict=True)
    )
    note = "of the mean score of each head's sink in the question; heads of mini-dream began as mini-llama's"
    return Outcome(
        found=f"Most sinks are on: {top}. Correlation over heads of the sinks in the question: "
        f"{together or 'not comparable'}.",
        verdict="new",
        figure=figure,
        tables=[
            Table.of("Where the largest sink of a head is", rows),
            Table.of("Are the same heads sinks?", pairs, note),
        ],
    )
