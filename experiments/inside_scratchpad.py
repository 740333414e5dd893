"""Diffusion models are said to think in the end-of-text tokens behind their answer ("Diffusion LLMs can think EoS-by-EoS",
arXiv 2603.05197): patched with the hidden states of another problem, these tokens change the answer to the other problem's.

At the canvases of some steps, the residual streams of the positions that end as end-of-text tokens are replaced, after every
layer, by those of another sequence's pass at the same step. If they work for the answer, the masks of the answer turn to the
tokens of that sequence's answer: their log-probability rises more than that of a third sequence's answer, which is as likely
a wrong one. The same with as many positions of the prompt instead says how strong a patch can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
from jaxsink_experiments.canvases import (
    Canvas,
    canvases,
    groups,
    log_prob_of,
    logits_of,
    mean_of,
    of_their_queries,
    own_queries,
)
from jaxsink_experiments.inside_residual import mean_where, over_steps

from jaxsink import forward
from jaxsink.nn import edits as edit
from jaxsink.recording import recorders as record
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, experiment, nulls, plots
from jaxsink.study.experiments import diffusion_models

COUNT = 4  # steps of each generation
REGIONS = ("end-of-text", "prompt")
WHOSE = ("the other's answer", "a third's answer", "its own answer")


def regions(subject: Subject, gallery: Gallery, there: np.ndarray) -> dict[str, np.ndarray]:
    """bool[B,S]: what ends as end-of-text tokens; and as many positions at the end of the prompt."""
    config, place = subject.model.config, np.arange(gallery.tokens.shape[1])
    ends = [*config.eos_ids, *(() if config.eot_id is None else (config.eot_id,))]
    region = np.isin(gallery.tokens, ends) & (place >= gallery.prompt_length) & there
    before = (place < gallery.prompt_length) & there
    number = before[:, ::-1].cumsum(axis=1)[:, ::-1]  # from the end of the prompt
    return {"end-of-text": region, "prompt": before & (number <= region.sum(axis=1, keepdims=True))}


@lru_cache(maxsize=4)
def moved(subject: Subject, gallery: Gallery) -> dict[tuple[str, str], np.ndarray]:
    """(region, whose) -> f64[B, steps]: nats by which these tokens become more likely at the answer's masks."""
    found: dict[tuple[str, str], list[np.ndarray]] = {(region, whose): [] for region in REGIONS for whose in WHOSE}
    config, count = subject.model.config, len(gallery.tokens)
    turns = [np.roll(np.arange(count), -by) for by in (1, 2, 0)]
    other, third, own = (gallery.tokens[turn] for turn in turns)
    differs = dict(
        zip(WHOSE, ((other != own) & (other != third), (third != own) & (other != third), own == own), strict=True)
    )
    for canvas in canvases(subject, gallery, COUNT):
        places = regions(subject, gallery, canvas.there)
        where = {region: places[region] & canvas.there[turns[0]] for region in REGIONS}  # that the other one has, too
        rise = rises(subject, canvas, where, np.stack([other, third, own], axis=-1), turns[0])
        answer = canvas.there & (canvas.tokens == subject.mask_id) & ~places["end-of-text"]
        for region in REGIONS:
            asked = answer & where[region].any(axis=1, keepdims=True) & ~of_their_queries(config, where[region])
            for number, whose in enumerate(WHOSE):
                found[region, whose].append(mean_where(rise[region][..., number], asked & differs[whose]))
    return {key: np.stack(values, axis=1) for key, values in found.items()}


def rises(
    subject: Subject, canvas: Canvas, where: dict[str, np.ndarray], token: np.ndarray, donor: np.ndarray
) -> dict[str, np.ndarray]:
    """f64[B,S,W] of each region: nats by which tokens [B,S,W] become more likely at every position, with the streams of
    the sequences `donor` there."""
    found = {region: np.zeros(token.shape) for region in where}
    query = own_queries(subject.model.config, token.shape[1])
    for rows in groups(subject, canvas.tokens):
        given = donor[rows]
        streams = forward(subject.model, canvas.tokens[given], canvas.there[given], record=record.residual()).record
        before = log_prob_of(logits_of(subject, canvas, rows), query, token[rows])
        for region, here in where.items():
            logits = logits_of(subject, canvas, rows, edit.patch(streams, at=here[rows]))
            found[region][rows] = log_prob_of(logits, query, token[rows]) - before
    return found


def rise(subject: Subject, gallery: Gallery, region: str, whose: str) -> np.ndarray:
    """f64[B]: over steps."""
    return over_steps(moved(subject, gallery)[region, whose])


@experiment(
    name="scratchpad",
    title="End-of-text as a scratchpad",
    question="Does patching the end-of-text positions with another problem's turn the answer to that problem's?",
    paper="It frequently does, so these tokens carry information on the problem (arXiv 2603.05197).",
    subjects=diffusion_models,
    predictions=(
        Prediction(
            name="scratchpad",
            statistic="nats by which the other problem's answer becomes more likely with its end-of-text streams patched in",
            of=partial(rise, region="end-of-text", whose=WHOSE[0]),
            control=nulls.Control("a third problem's answer", partial(rise, region="end-of-text", whose=WHOSE[1])),
            same_texts=True,  # those of untrained models do not end
        ),
    ),
)
def end_of_text(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), sharey=True)
    lines = []
    for axis, one in zip(axes[0], measured, strict=True):
        for number, (key, values) in enumerate(moved(one.subject, one.gallery).items()):
            mean = mean_of(rise(one.subject, one.gallery, *key), one.gallery)
            steps = {
                f"step {n + 1} of {COUNT}": mean_of(values[:, n], one.gallery).value for n in range(values.shape[1])
            }
            known = {"model": one.subject.name, "patched": key[0], "likelihood of": key[1]}
            lines.append({**known, "nats": mean.value, **mean.columns, **steps})
            label = f"{key[1]}, {key[0]} patched"
            axis.plot(list(steps.values()), plots.MARKERS[number % 3] + "-", color=plots.COLOURS[number], label=label)
        axis.set(title=one.subject.name, xlabel="step")
    axes[0, 0].set_ylabel("nats more likely")
    plots.shared_legend(figure, columns=2)
    note = f"at masks of the answer where the problems' answers differ; {COUNT} steps of each generation; after every layer"
    return Outcome(figure=figure, tables=[Table.of("What the answer turns to", lines, note)])
