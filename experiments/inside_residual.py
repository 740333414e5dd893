"""Is the sink's own residual stream needed, and when? Sinks may be places to look away to, whose content does not matter.

In one layer at a time, and in passes over recorded canvases, the residual stream after the layer is set to zero at the
position that receives most attention there ("the sink"), or replaced by what stood at the sink of another sequence's pass
("patched"). What changes is the prediction at the other masks, in nats: KL(plain ‖ edited). Where a model predicts the next
token, the mask that is predicted at the edited position is left out as well. The same at a random other position is the
control. Whole runs (inside_whole_runs.py) say whether the answer changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
from jaxsink_experiments.canvases import (
    Canvas,
    canvases,
    divergence,
    groups,
    logits_of,
    mean_of,
    of_their_queries,
    one_key,
    pass_over,
    random_key,
)
from jaxsink_experiments.inside_whole_runs import whole_runs

from jaxsink.nn import edits as edit
from jaxsink.recording import recorders as record
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, experiment, nulls, plots
from jaxsink.study.experiments import diffusion_models

COUNT = 4  # steps of each generation
SEED = 11
PLACES, CHANGES = ("sink", "random"), ("zero", "patch")
STEPS, LAYERS = "share of the run", "layer"


@lru_cache(maxsize=4)
def changes(subject: Subject, gallery: Gallery) -> dict[tuple[str, str], np.ndarray]:
    """(change, place) -> f64[B, steps, layers]: nats by which the other masks' predictions change; NaN without masks."""
    found: dict[tuple[str, str], list[np.ndarray]] = {(change, place): [] for change in CHANGES for place in PLACES}
    draw, config = np.random.default_rng(SEED), subject.model.config
    for canvas in canvases(subject, gallery, COUNT):
        seen = sinks_of(subject, canvas)
        masked = canvas.there & (canvas.tokens == subject.mask_id)
        edited = {key: edited_places(key[1], canvas, seen["at"], draw) for key in found}
        nats = {key: np.zeros(where.shape, np.float32) for key, where in edited.items()}  # by queries
        for rows in groups(subject, canvas.tokens):
            plain = logits_of(subject, canvas, rows)
            for (change, place), where in edited.items():
                for layer in range(config.layers):
                    made = edit_at(change, layer, where[layer, rows], seen["stream"][layer], rows)
                    nats[change, place][layer, rows] = divergence(plain, logits_of(subject, canvas, rows, made))
        for key, values in found.items():
            of_layers = [
                mean_where(of_their_queries(config, kl), masked & ~where & ~of_their_queries(config, where))
                for kl, where in zip(nats[key].astype(np.float64), edited[key], strict=True)
            ]
            values.append(np.stack(of_layers, axis=-1))
    return {key: np.stack(values, axis=1) for key, values in found.items()}


def sinks_of(subject: Subject, canvas: Canvas) -> dict[str, np.ndarray]:
    """{"at": i64[L,B], "stream": f32[L,B,E]}: the position that receives most in each layer, and what stands there."""

    def keep(seen: dict[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
        at = np.where(canvas.there[rows], seen["received"].sum(axis=2), -1.0).argmax(axis=-1)
        return {"at": at, "stream": np.take_along_axis(seen["residual"], at[..., None, None], axis=2)[:, :, 0]}

    wanted = {"received": record.received(), "residual": record.residual()}
    return pass_over(subject, canvas.tokens, canvas.there, record=wanted, keep=keep).record


def edited_places(place: str, canvas: Canvas, sink: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """bool[L,B,S]: the sink of each layer, or a random other token."""
    length = canvas.there.shape[1]
    if place == "sink":
        return one_key(sink, length)
    return np.stack([one_key(random_key(canvas.there & ~one_key(at, length), draw), length) for at in sink])


def edit_at(change: str, layer: int, where: np.ndarray, streams: np.ndarray, rows: np.ndarray) -> edit.Edit:
    """Of these sequences. streams: f32[B,E], what stands at the sink of every one; each is given the next one's."""
    if change == "zero":
        return edit.zero("residual", layers=[layer], at=where)
    donor = streams[(rows + 1) % len(streams)]
    return edit.patch(
        np.broadcast_to(donor[None, :, None], (1, *where.shape, donor.shape[-1])), layers=[layer], at=where
    )


def mean_where(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    count = where.sum(axis=-1)
    return np.where(count > 0, np.where(where, values, 0.0).sum(axis=-1) / np.maximum(count, 1), np.nan)


def nats(subject: Subject, gallery: Gallery, change: str, place: str) -> np.ndarray:
    """f64[B]: over steps and layers."""
    return over_steps(changes(subject, gallery)[change, place].reshape(len(gallery.tokens), -1))


def over_steps(values: np.ndarray) -> np.ndarray:
    """f64[B]: the mean of those [B,N] that are there."""
    there = ~np.isnan(values)
    return np.where(there.any(axis=1), np.nansum(values, axis=1) / np.maximum(there.sum(axis=1), 1), np.nan)


def streams_of(subject: Subject, canvas: Canvas) -> np.ndarray:
    return sinks_of(subject, canvas)["stream"]


PREDICTIONS = tuple(
    Prediction(
        name=f"residual-{change}",
        statistic=f"nats by which other masks' predictions change with the sink's stream {words}, by layer and step",
        of=partial(nats, change=change, place="sink"),
        control=nulls.Control("the same at a random position", partial(nats, change=change, place="random")),
    )
    for change, words in (("zero", "at zero"), ("patch", "replaced by another sequence's sink"))
)


@experiment(
    name="residual",
    title="The sink's own residual stream",
    question="Do predictions depend on what is at the sink more than on what is elsewhere, and when?",
    paper="Not tested: only attention to sinks is masked.",
    subjects=diffusion_models,
    predictions=PREDICTIONS,
)
def the_sinks_residual(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), sharey=True)
    lines, answers = [], []
    for axis, one in zip(axes[0], measured, strict=True):
        found = changes(one.subject, one.gallery)
        for number, (key, values) in enumerate(found.items()):
            per_layer = [mean_of(over_steps(values[:, :, layer]), one.gallery) for layer in range(values.shape[2])]
            axis.plot([mean.value for mean in per_layer], color=plots.COLOURS[number], label=", ".join(key))
            for layer, mean in enumerate(per_layer):
                steps = {
                    f"step {n + 1} of {COUNT}": float(np.nanmean(values[:, n, layer])) for n in range(values.shape[1])
                }
                known = {"model": one.subject.name, "change": key[0], "at": key[1], LAYERS: layer}
                lines.append({**known, "nats": mean.value, **mean.columns, **steps})
        axis.set(title=one.subject.name, xlabel="layer", yscale="log")
        answers += whole_runs(one, study, streams_of)
    axes[0, 0].set_ylabel("nats")
    plots.shared_legend(figure, columns=2)
    note = f"KL(plain ‖ edited) at masks that are not edited nor predicted there; {COUNT} steps of each generation"
    told = "the residual stream edited after one layer in these steps; greedy, so that nothing else can change a text"
    return Outcome(
        figure=figure,
        tables=[Table.of("What other masks lose", lines, note), Table.of("Whole runs", answers, told)],
    )
