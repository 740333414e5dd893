"""Fig. 1: the attention each token receives, step by step, while a diffusion model writes."""

from __future__ import annotations

import numpy as np

from jaxsink.stats import bootstrap
from jaxsink.study import Finding, Study, plots
from jaxsink.study.finding import all_of

NAME, TITLE = "fig1", "Attention received per token and step"
QUESTION = "Does attention gather on a few tokens while the canvas is unmasked?"
PAPER = "In LLaDA a handful of tokens receive far more attention than the rest, at every step."


def run(study: Study) -> Finding:
    figure, axes = plots.canvas(1, len(study.subjects), width=4 * len(study.subjects), height=3.6)
    strong, words = [], []
    for axis, subject in zip(axes[0], study.subjects, strict=True):
        gallery = study.gallery(subject)
        real = np.flatnonzero(gallery.mask[0])
        picture = gallery.scores[: gallery.taken[0], :, 0][..., real].mean(axis=(1, 2))
        image = axis.imshow(picture, aspect="auto", cmap=plots.HEAT, vmin=0, origin="lower", interpolation="nearest")
        axis.axvline((real < gallery.prompt_length).sum() - 0.5, color="white", lw=0.8, ls=":")
        axis.set(title=subject.name, xlabel="token", ylabel="step")
        figure.colorbar(image, ax=axis, label="received (mean of heads)")
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
