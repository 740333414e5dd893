"""Fig. 1: the attention each token receives, step by step, while a diffusion model writes."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxsink.stats import bootstrap
from jaxsink.study import Finding, Study, plots
from jaxsink.study.finding import all_of

NAME, TITLE = "fig1", "Attention received per token and step"
QUESTION = "Does attention gather on a few tokens while the canvas is unmasked?"
PAPER = "In LLaDA a handful of tokens receive far more attention than the rest, at every step."


def heat(figure: Any, axis: Any, picture: np.ndarray, prompt: int, title: str) -> None:
    """picture f32[T,S]: steps up, tokens to the right; the dotted line is where the response begins."""
    image = axis.imshow(picture, aspect="auto", cmap=plots.HEAT, vmin=0, origin="lower", interpolation="nearest")
    axis.axvline(prompt - 0.5, color="white", lw=0.8, ls=":")
    axis.set(title=title, xlabel="token", ylabel="step")
    figure.colorbar(image, ax=axis, label="received")


def run(study: Study) -> Finding:
    figure, axes = plots.canvas(2, len(study.subjects), width=4 * len(study.subjects), height=6.4)
    strong, words = [], []
    for line, subject in zip(axes.T, study.subjects, strict=True):
        gallery = study.gallery(subject)
        real = np.flatnonzero(gallery.mask[0])
        received = gallery.scores[: gallery.taken[0], :, 0][..., real]  # [T,L,H,S]
        jumps = np.asarray(gallery.tracks.jumps[:, 0])
        layer, head = np.unravel_index(np.argmax(jumps), jumps.shape)
        prompt = int((real < gallery.prompt_length).sum())
        heat(figure, line[0], received.mean(axis=(1, 2)), prompt, f"{subject.name}, mean of heads")
        heat(figure, line[1], received[:, layer, head], prompt, f"most restless: layer {layer}, head {head}")
        largest = np.where(gallery.real[:, None, :, None], gallery.scores, 0).max(axis=-1)
        per_prompt = np.array(
            [largest[gallery.counted[:, row], :, row].mean() for row in range(len(gallery.tokens))]
        )  # one number per generation
        found = bootstrap(per_prompt)
        strong.append(found.low > 1 + study.eps)
        words.append(f"{subject.name} {found.estimate:.1f} [{found.low:.1f}, {found.high:.1f}]")
    return Finding(
        NAME, TITLE, QUESTION, PAPER,
        f"The largest score of a head, in units of the mean, averages {', '.join(words)}; a sink needs {1 + study.eps:g}.",
        all_of(*strong), [study.figure(NAME, figure)],
    )  # fmt: skip
