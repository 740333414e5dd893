"""Fig. 5: the score of the main sink over layers and heads.

A few layers in random order have some slope by chance, however many problems are asked; so untrained models, each with a
slope of its own, are the null, and shuffling layers adds nothing to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxsink.report.plots import plot_layers
from jaxsink.sinks import Threshold
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Table, experiment, plots


def sinks_by_layer(gallery: Gallery) -> np.ndarray:
    """f64[B,L]: sinks per head and step."""
    return gallery.mean_over_steps(gallery.tracks.sink_count).mean(axis=-1)


def strength_by_layer(gallery: Gallery) -> np.ndarray:
    """f64[B,L]: the score of the largest sink, over the heads and steps that have one; NaN where none has."""
    total = np.where(gallery.present, gallery.tracks.score, 0.0).sum(axis=(0, 3)).T
    count = gallery.present.sum(axis=(0, 3)).T
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def slope(values: np.ndarray) -> np.ndarray:
    """f64[B]: change per layer of values [B,L], by least squares over the layers that have one; NaN for fewer than two."""
    there = ~np.isnan(values)
    count = np.maximum(there.sum(axis=1, keepdims=True), 1)
    layer = np.where(there, np.arange(values.shape[1]), 0.0)
    layer = np.where(there, layer - layer.sum(axis=1, keepdims=True) / count, 0.0)
    spread = (layer**2).sum(axis=1)
    return np.where(spread > 0, (layer * np.where(there, values, 0.0)).sum(axis=1) / np.maximum(spread, 1e-9), np.nan)


@experiment(
    name="fig5",
    title="Sinks over layers and heads",
    question="Do deep layers have fewer but stronger sinks?",
    paper="Deep layers have fewer and stronger sinks.",
    predictions=(
        Prediction(
            name="fewer",
            statistic="change per layer of the number of sinks per head",
            of=lambda subject, gallery: slope(sinks_by_layer(gallery)),
            expected="less",
        ),
        Prediction(
            name="stronger",
            statistic="change per layer of the largest sink's score",
            of=lambda subject, gallery: slope(strength_by_layer(gallery)),
        ),
    ),
)
def layers_and_heads(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), height=2.2)
    rows = []
    for axis, one in zip(axes[0], measured, strict=True):
        plot_layers(one.gallery.generation, rule=Threshold(study.eps), ax=axis).set_title(one.subject.name)
        count, strength = sinks_by_layer(one.gallery), strength_by_layer(one.gallery)
        rows += [
            {
                "model": one.subject.name,
                "layer": layer,
                "sinks per head": float(count[:, layer].mean()),
                "score of the largest": float(np.nanmean(strength[:, layer])),
            }
            for layer in range(count.shape[1])
            if not np.isnan(strength[:, layer]).all()
        ]
    return Outcome(figure=figure, tables=[Table.of("By layer", rows, "layers without a sink are left out")])
