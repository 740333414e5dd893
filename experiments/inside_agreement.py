"""Focus-dLLM (arXiv 2602.02159) looks for sinks in one layer and reuses their positions in others, because layers agree.

A layer's sinks are the keys that its heads attend to most on average. They are held against the same scores moved round in
each layer by a distance of its own: then each layer has sinks as strong and as close together, at positions of chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from jaxsink_experiments.canvases import mean_of

from jaxsink.sinks import Agreement, TopK, agreement
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, experiment, nulls, plots
from jaxsink.study.experiments import diffusion_models

SINKS = 3  # of a layer
MOST = 0.5  # of a layer's sinks, for reuse to find most of them


def moved_round(gallery: Gallery, draw: np.random.Generator) -> Gallery:
    """The scores of each layer and sequence moved round by a distance of their own, the same in all steps and heads."""
    scores = np.zeros_like(gallery.scores)
    share = draw.random((gallery.scores.shape[1], len(gallery.tokens)))
    for step, row in np.ndindex(gallery.real.shape[:2]):
        real = np.flatnonzero(gallery.real[step, row])
        for layer, part in enumerate(share[:, row]):
            moved = np.roll(real, int(part * len(real)))
            scores[step, layer, row][:, real] = gallery.scores[step, layer, row][:, moved]
    return replace(gallery, scores=scores)


def of_layers(gallery: Gallery) -> Agreement:
    return agreement(gallery.fair, TopK(SINKS), gallery.real)


def over_steps(gallery: Gallery, values: np.ndarray) -> np.ndarray:
    """[T,B] -> f64[B]: the mean over the steps that each sequence took."""
    there = gallery.counted & ~np.isnan(values)
    count = there.sum(axis=0)
    return np.where(count > 0, np.where(there, values, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)


def all_pairs(subject: Subject, gallery: Gallery) -> np.ndarray:
    """f64[B]: the share of a layer's sinks that another layer has, mean over pairs and steps."""
    return over_steps(gallery, np.asarray(of_layers(gallery).between_layers(), np.float64))


def from_one_layer(subject: Subject, gallery: Gallery) -> np.ndarray:
    """f64[B]: the same of the later layers' sinks in the middle layer."""
    layers = gallery.scores.shape[1]
    middle = layers // 2 - 1 if layers > 1 else 0
    overlap = np.asarray(of_layers(gallery).overlap, np.float64)[:, middle, middle + 1 :]
    return over_steps(gallery, overlap.mean(axis=1)) if overlap.shape[1] else np.full(len(gallery.tokens), np.nan)


@lru_cache(maxsize=4)
def by_pair(gallery: Gallery) -> np.ndarray:
    """f64[L,L,B]: found in layer i of layer j's."""
    overlap = np.asarray(of_layers(gallery).overlap, np.float64)
    return np.stack([[over_steps(gallery, one) for one in row] for row in np.moveaxis(overlap, 0, 2)])


def of_another_text(gallery: Gallery) -> np.ndarray:
    """f64[B]: the share of a layer's sinks that other layers have in the text before, at the same positions: what the form
    of the texts alone makes of it."""
    strongest = np.where(gallery.real[:, None], gallery.fair.mean(axis=3), -1.0).argsort(axis=-1)[..., -SINKS:]
    sinks = np.zeros(gallery.scores.shape[:3] + gallery.scores.shape[-1:], bool)
    np.put_along_axis(sinks, strongest, True, axis=-1)
    shared = np.einsum("tibs,tjbs->tijb", np.roll(sinks, 1, axis=2).astype(float), sinks.astype(float)) / SINKS
    others = ~np.eye(shared.shape[1], dtype=bool)
    return over_steps(gallery, shared[:, others].mean(axis=1)) if others.any() else np.full(len(gallery.tokens), np.nan)


LAYERS = nulls.Shuffle("each layer moved round", moved_round, repeats=3)
PREDICTIONS = (
    Prediction(
        name="agree",
        statistic=f"share of a layer's {SINKS} strongest keys that another layer has among its own",
        of=all_pairs,
        shuffle=LAYERS,
    ),
    Prediction(
        name="reuse",
        statistic="share of the later layers' strongest keys that the middle layer has among its own",
        of=from_one_layer,
        least=MOST,
        bound="half of them",
    ),
)


@experiment(
    name="agreement",
    title="Agreement of layers",
    question="Are the sinks of one layer those of another, so that they need to be found only once?",
    paper="Sink positions are consistent across layers, so one layer's serve the others (Focus-dLLM, arXiv 2602.02159).",
    subjects=diffusion_models,
    predictions=PREDICTIONS,
)
def agreement_of_layers(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured))
    lines = []
    for axis, one in zip(axes[0], measured, strict=True):
        gallery, draw = one.gallery, np.random.default_rng(0)
        pairs = by_pair(gallery)
        image = axis.imshow(pairs.mean(axis=2), vmin=0, vmax=1, origin="lower")
        axis.set(title=one.subject.name, xlabel="sinks of layer", ylabel="found in layer")
        plots.whole_ticks(axis, x=True, y=True)
        figure.colorbar(image, ax=axis, label="share")
        parts = {
            "all pairs": all_pairs(one.subject, gallery),
            "later layers in the middle one": from_one_layer(one.subject, gallery),
            "neighbouring layers": np.nanmean([pairs[n, n + 1] for n in range(len(pairs) - 1)], axis=0),
            "the last in the first": pairs[0, -1],
            "each layer moved round": all_pairs(one.subject, moved_round(gallery, draw)),
            "another text": of_another_text(gallery),
        }
        for name, values in parts.items():
            mean = mean_of(values, gallery)
            lines.append({"model": one.subject.name, "pairs": name, "share": mean.value, **mean.columns})
    note = f"of the {SINKS} keys that a layer attends to most; 95 % intervals over problems"
    return Outcome(figure=figure, tables=[Table.of("What of one layer's sinks another has", lines, note)])
