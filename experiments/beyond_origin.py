"""Beyond the paper: do Dream's positional sinks come from its autoregressive start? A controlled triple can tell.

mini-dream began as mini-llama, mini-llada from random weights; size, data and task are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from matplotlib.axes import Axes

from jaxsink.evals.statistics import clustered_mean
from jaxsink.sinks import frontier
from jaxsink.study import Gallery, Measured, Outcome, Study, Table, Tested, experiment, plots
from jaxsink.study.verdicts import Comparison, not_testable

SHUFFLES = 9_999
NO_PAIR = "No diffusion model with shifted logits was studied beside an autoregressive one."
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


def alike(one: Measured, other: Measured) -> Tested:
    """Correlation over heads of the sinks in the question. Heads are the sample, so heads are what is shuffled."""
    mine, theirs = by_head(one.gallery), by_head(other.gallery)
    pair, words = f"{one.subject.name} and {other.subject.name}", "correlation over heads of the sinks in the question"
    if len(mine) != len(theirs) or not mine.std() or not theirs.std():
        return not_testable(pair, words, "greater", "heads cannot be paired, or have no sinks to compare")
    draw, value = np.random.default_rng(0), float(np.corrcoef(mine, theirs)[0, 1])
    chance = np.array([np.corrcoef(mine, draw.permutation(theirs))[0, 1] for _ in range(SHUFFLES)])
    above, below = ((1 + hits.sum()) / (1 + SHUFFLES) for hits in (chance >= value, chance <= value))
    low, high = np.quantile(value - chance, (0.025, 0.975))
    shuffled = Comparison(
        "heads shuffled",
        null_value=float(chance.mean()),
        difference=value - float(chance.mean()),
        low=float(low),
        high=float(high),
        p=min(1.0, 2 * float(above)),
        p_opposite=min(1.0, 2 * float(below)),
    )
    problems = len(set(one.gallery.clusters))
    return Tested(pair, words, "greater", value, value, value, problems, comparisons=[shuffled])


def adapted(measured: Sequence[Measured]) -> list[tuple[Measured, Measured]]:
    """Diffusion models that may have begun as an autoregressive one (shifted logits), each with every such model."""
    shifted = [one for one in measured if one.subject.is_diffusion and one.subject.model.config.shift_logits]
    return [(one, other) for one in shifted for other in measured if not other.subject.is_diffusion]


@experiment(
    name="origin",
    title="Where a model's sinks come from",
    question="Does a diffusion model that was adapted from an autoregressive one keep that model's sinks, head by head?",
    paper="It guesses that Dream's positional, moving sinks stem from its autoregressive start; it could not test it.",
)
def origin(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(width=plots.PAGE, height=2.2)
    lines, shares = [], []
    for one in measured:
        found = shares_by_origin(one.gallery, one.subject.is_diffusion)
        shares.append(found.mean(axis=0))
        for number, place in enumerate(PLACES):
            mean = clustered_mean(found[:, number], list(one.gallery.clusters))
            low, high = mean.interval()
            lines.append({"model": one.subject.name, "place": place, "share": mean.value, "low": low, "high": high})
    draw(axes[0, 0], [one.subject.name for one in measured], np.array(shares))
    plots.shared_legend(figure, columns=3)
    pairs = combinations(measured, 2)
    others = [
        {"model": test.model, "correlation": test.value, "p": test.comparisons[0].p}
        for test in (alike(one, other) for one, other in pairs)
        if test.comparisons
    ]
    return Outcome(
        figure=figure,
        tables=[
            Table.of("Where the largest sink of a head is", lines, "of heads and steps that have one, by column sums"),
            Table.of("Are the same heads sinks?", others, "of the mean score of each head's sink in the question"),
        ],
        tests=[alike(one, other) for one, other in adapted(measured)],
        note="" if adapted(measured) else NO_PAIR,
    )
