"""Fig. 5: the score of the main sink over layers and heads."""

from __future__ import annotations

import numpy as np

from jaxsink.stats import bootstrap
from jaxsink.study import Finding, Study, Table, plots
from jaxsink.study.finding import all_of

NAME, TITLE = "fig5", "Sinks over layers and heads"
QUESTION = "Do deep layers have fewer but stronger sinks?"
PAPER = "Deep layers have fewer and stronger sinks."


def slope(values: np.ndarray) -> np.ndarray:
    """Change per layer of values [B,L], by least squares."""
    layer = np.arange(values.shape[1]) - (values.shape[1] - 1) / 2
    return values @ layer / (layer @ layer)


def run(study: Study) -> Finding:
    figure, axes = plots.canvas(1, len(study.subjects), width=3.4 * len(study.subjects), height=3.2)
    rows, held = [], []
    for axis, subject in zip(axes[0], study.subjects, strict=True):
        gallery = study.gallery(subject)
        counted = gallery.counted[:, None, :, None]
        steps = np.maximum(gallery.taken, 1)[:, None, None]
        number = np.where(counted, gallery.tracks.sink_count, 0).sum(axis=0).transpose(1, 0, 2) / steps  # [B,L,H]
        present = (gallery.tracks.sink_count > 0) & counted
        score = np.where(present, gallery.tracks.score, 0).sum(axis=0).transpose(1, 0, 2)
        strength = score / np.maximum(present.sum(axis=0).transpose(1, 0, 2), 1)
        image = axis.imshow((score / steps).mean(axis=0), cmap=plots.HEAT, vmin=0, aspect="auto")
        axis.set(title=subject.name, xlabel="head", ylabel="layer")
        figure.colorbar(image, ax=axis, label="score of the largest sink")
        fewer, stronger = bootstrap(slope(number.mean(axis=-1))), bootstrap(slope(strength.mean(axis=-1)))
        for layer, (count, size) in enumerate(zip(number.mean(axis=(0, 2)), strength.mean(axis=(0, 2)), strict=True)):
            rows.append([subject.name, layer, float(count), float(size)])
        held += [fewer.high < 0, stronger.low > 0] if subject.is_diffusion else []
    columns = ["model", "layer", "sinks per head", "score of the largest"]
    return Finding(
        NAME, TITLE, QUESTION, PAPER,
        f"{sum(held)} of {len(held)} slopes over depth (fewer, stronger; one pair per diffusion model) have its sign "
        "with a 95 % interval that excludes 0.",
        all_of(*held) if held else "not tested", [study.figure(NAME, figure)], [Table("By layer", columns, rows)],
    )  # fmt: skip
