"""Beyond the paper: do Dream's positional sinks come from its autoregressive start? A controlled triple can tell.

mini-dream began as mini-llama, mini-llada from random weights; size, data and task are the same.
"""

from __future__ import annotations

import numpy as np

from jaxsink.evals.statistics import bootstrap
from jaxsink.sinks import frontier
from jaxsink.study import Finding, Gallery, Study, Table, plots

NAME, TITLE = "origin", "Where a model's sinks come from"
QUESTION = "Does a diffusion model that was adapted from an autoregressive one keep that model's sinks?"
PAPER = "It guesses that Dream's positional, moving sinks stem from its autoregressive start; it could not test it."
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


def run(study: Study) -> Finding:
    figure, axes = plots.canvas(width=plots.PAGE, height=2.2)
    rows, heads = [], {}
    bottom = np.zeros(len(study.subjects))
    shares = []
    for subject in study.subjects:
        gallery = study.gallery(subject)
        found = bootstrap(shares_by_origin(gallery, subject.is_diffusion))
        shares.append(found.estimate)
        rows += [[subject.name, *line] for line in zip(PLACES, *(map(float, x) for x in found), strict=True)]
        heads[subject.name] = by_head(gallery)
    names = [subject.name for subject in study.subjects]
    for number, kind in enumerate(PLACES):
        height = np.array([share[number] for share in shares])
        axes[0, 0].barh(names, height, left=bottom, label=kind)
        bottom = bottom + height
    axes[0, 0].set(xlabel="share of the largest sinks", xlim=(0, 1))
    axes[0, 0].invert_yaxis()
    plots.shared_legend(figure, columns=3)
    pairs = []
    for at, one in enumerate(names):
        for other in names[at + 1 :]:
            if len(heads[one]) == len(heads[other]) and heads[one].std() and heads[other].std():
                pairs.append([one, other, float(np.corrcoef(heads[one], heads[other])[0, 1])])
    alike = "; ".join(f"{one} and {other} {value:+.2f}" for one, other, value in pairs)
    top = "; ".join(
        f"{name}: {PLACES[int(np.argmax(share))]} {max(share):.0%}" for name, share in zip(names, shares, strict=True)
    )
    return Finding(
        name=NAME,
        title=TITLE,
        question=QUESTION,
        paper=PAPER,
        found=f"Most sinks are on: {top}. Correlation over heads of the sinks in the question: {alike or 'not comparable'}.",
        verdict="new",
        figures=[study.figure(NAME, figure)],
        tables=[
            Table("Where the largest sink of a head is", ["model", "place", "share", "low", "high"], rows),
            Table(
                "Are the same heads sinks?",
                ["model", "model ", "correlation"],
                pairs,
                "of the mean score of each head's sink in the question; heads of mini-dream began as mini-llama's",
            ),
        ],
    )
