"""Fig. 5: the score of the main sink over layers and heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxsink.evals.statistics import bootstrap
from jaxsink.report.plots import plot_layers
from jaxsink.sinks import Threshold
from jaxsink.study import Measured, Outcome, Study, Table, experiment, plots
from jaxsink.study.finding import all_of


def slope(values: np.ndarray) -> np.ndarray:
    """Change per layer of values [B,L], by least squares."""
    layer = np.arange(values.shape[1]) - (values.shape[1] - 1) / 2
    return values @ layer / (layer @ layer)


@experiment(
    name="fig5",
    title="Sinks over layers and heads",
    question="Do deep layers have fewer but stronger sinks?",
    paper="Deep layers have fewer and stronger sinks.",
    statistic="slopes over depth of the number of sinks per head and of the score of the largest",
    null="slope 0, by the interval over generations",
)
def layers_and_heads(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), height=2.2)
    rows, held = [], []
    for axis, one in zip(axes[0], measured, strict=True):
        gallery = one.gallery
        number = gallery.mean_over_steps(gallery.tracks.sink_count)  # [B,L,H]
        score = gallery.mean_over_steps(np.where(gallery.present, gallery.tracks.score, 0))
        strength = score / np.maximum(gallery.mean_over_steps(gallery.present), 1e-9)
        plot_layers(gallery.generation, rule=Threshold(study.eps), ax=axis).set_title(one.subject.name)
        rows += [
            {
                "model": one.subject.name,
                "layer": layer,
                "sinks per head": float(count),
                "score of the largest": float(size),
            }
            for layer, (count, size) in enumerate(
                zip(number.mean(axis=(0, 2)), strength.mean(axis=(0, 2)), strict=True)
            )
        ]
        if one.subject.is_diffusion:
            fewer, stronger = bootstrap(slope(number.mean(axis=-1))), bootstrap(slope(strength.mean(axis=-1)))
            held += [fewer.high < 0, stronger.low > 0]
    words = (
        f"{sum(held)} of {len(held)} slopes over depth (fewer, stronger; one pair per diffusion model) have its sign with "
        "a 95 % interval that excludes 0."
    )
    return Outcome(
        found=words if held else "No diffusion model was studied.",
        verdict=all_of(*held) if held else "not tested",
        figure=figure,
        tables=[Table.of("By layer", rows)],
    )
