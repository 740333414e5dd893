"""Fig. 2: block decoding unmasks block after block; Dream may unmask anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxsink.evals.statistics import bootstrap
from jaxsink.study import Finding, Study, plots
from jaxsink.study.finding import all_of

NAME, TITLE = "fig2", "The order in which tokens are unmasked"
QUESTION = "Do the samplers unmask in blocks, and freely, as the paper draws it?"
PAPER = "LLaDA and MMaDA fill block after block, Dream fills any place."


def rank_correlation(order: np.ndarray) -> float:
    """Spearman's, of the position in the response and the step that filled it."""
    position, step = np.arange(len(order)), np.argsort(np.argsort(order, kind="stable"))
    return float(np.corrcoef(position, step)[0, 1])


def draw(axis: Any, committed_at: np.ndarray, block: int | None) -> None:
    """When each position is filled in; lines part the blocks of block decoding."""
    length = len(committed_at)
    axis.scatter(committed_at, np.arange(length), s=10)
    for edge in range(block, length, block) if block else ():
        axis.axhline(edge - 0.5, color=plots.GUIDE, lw=0.5, ls=":")
    axis.set(xlabel="step", ylabel="position in the response (token)", ylim=(length - 0.5, -0.5))
    plots.whole_ticks(axis, y=True)


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
    figure, axes = plots.canvas(1, len(diffusion))
    words, held = [], []
    for axis, subject in zip(axes[0], diffusion, strict=True):
        gallery = study.gallery(subject)
        response = gallery.committed_at[:, gallery.prompt_length :]
        block = getattr(subject.sampler, "block_length", None)
        draw(axis, response[0], block)
        axis.set_title(subject.name)
        found = bootstrap(np.array([rank_correlation(sequence) for sequence in response]))
        words.append(f"{subject.name} {found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}]")
        if block is not None and block < response.shape[1]:
            blocks = response[:, : response.shape[1] // block * block].reshape(len(response), -1, block)
            held.append(bool((blocks[:, :-1].max(axis=-1) < blocks[:, 1:].min(axis=-1)).all()))
        else:
            held.append(found.high < 1)
    return Finding(
        name=NAME,
        title=TITLE,
        question=QUESTION,
        paper=PAPER,
        found=f"Rank correlation of place and step: {', '.join(words)}. Blocks are filled strictly one after the other.",
        verdict=all_of(*held),
        figures=[study.figure(NAME, figure)],
    )
