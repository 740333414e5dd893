"""Fig. 5: the score of the main sink over layers and heads."""

from __future__ import annotations

import numpy as np

from jaxsink.evals.statistics import bootstrap
from jaxsink.reporting.plots import plot_layers
from jaxsink.sinks import Threshold
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
    figure, axes = plots.canvas(1, len(study.subjects), height=2.2)
    rows, held = [], []
    for axis, subject in zip(axes[0], study.subjects, strict=True):
        gallery = study.gallery(subject)
        number = gallery.mean_over_steps(gallery.tracks.sink_count)  # [B,L,H]
        score = gallery.mean_over_steps(np.where(gallery.present, gallery.tracks.score, 0))
        strength = score / np.maximum(gallery.mean_over_steps(gallery.present), 1e-9)
        plot_layers(gallery.generation, rule=Threshold(study.eps), ax=axis).set_title(subject.name)
        fewer, stronger = bootstrap(slope(number.mean(axis=-1))), bootstrap(slope(strength.mean(axis=-1)))
        for layer, (count, size) in enumerate(zip(number.mean(axis=(0, 2)), strength.mean(axis=(0, 2)), strict=True)):
            rows.append([subject.name, layer, float(count), float(size)])
        held += [fewer.high < 0, stronger.low > 0] if subject.is_diffusion else []
    columns = ["model", "layer", "sinks per head", "score of the largest"]
    words = (
        f"{sum(held)} of {len(held)} slopes over depth (fewer, stronger; one pair per diffusion model) have its sign with "
        "a 95 % interval that excludes 0."
    )
    return Finding(
        name=NAME,
        title=TITLE,
        question=QUESTION,
        paper=PAPER,
        found=words if held else "No diffusion model was studied.",
        verdict=all_of(*held) if held else "not tested",
        figures=[study.figure(NAME, figure)],
        tables=[Table("By layer", columns, rows)],
    )
