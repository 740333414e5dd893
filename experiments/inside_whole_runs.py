"""Whole runs in which the residual stream at the sink is edited: does what is written change, is it still right, and does it
matter whether that happens early or late?

Decoding is greedy, so nothing but the edit can change a text. A patch puts there what stood at another sequence's sink, a
third (for late steps two thirds) through its run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxsink_experiments.canvases import Canvas, canvases

import jaxsink
from jaxsink.nn import edits as edit
from jaxsink.sampling.generation import before_end, end_ids
from jaxsink.study import Gallery, Measured, Study, Subject

LAYERS = 4  # that are edited one at a time, spread evenly over the model
CHANGES, PLACES = ("zero", "patch"), ("sink", "second token")
WHEN = {"all": (0, 1), "first half": (0,), "second half": (1,)}
Line = dict[str, float | str]
Edits = Callable[[np.ndarray], list[edit.Edit]]  # of these sequences


def whole_runs(one: Measured, study: Study, streams: Callable[[Subject, Canvas], np.ndarray]) -> list[Line]:
    """A line for each edit. streams: f32[L,B,E], what stands at the sinks of a canvas."""
    subject, gallery = one.subject, one.gallery
    plain = written(subject, gallery, study.rows)
    right = grades(subject, gallery, study)
    lines = [line_of(subject, {"change": "nothing", "at": "", "layer": "", "steps": ""}, plain, plain, right)]
    donors = [streams(subject, canvas) for canvas in list(canvases(subject, gallery, 4))[1:3]]
    for layer in spread(subject.model.config.layers):
        for when, halves in WHEN.items():
            for change in CHANGES:
                for place in PLACES:
                    edits = edits_of(gallery, donors, layer, halves, change, place)
                    known = {"change": change, "at": place, "layer": str(layer), "steps": when}
                    lines.append(line_of(subject, known, written(subject, gallery, study.rows, edits), plain, right))
    return lines


def spread(layers: int) -> list[int]:
    """Which layers are edited."""
    return np.unique(np.rint(np.linspace(0, layers - 1, min(LAYERS, layers))).astype(int)).tolist()


def edits_of(
    gallery: Gallery, donors: Sequence[np.ndarray], layer: int, halves: Sequence[int], change: str, place: str
) -> Edits:
    """An edit for each half of the run."""
    count, (batch, length) = len(gallery.scores), gallery.tokens.shape
    steps = (range(count // 2), range(count // 2, count))
    second = (np.cumsum(gallery.mask, axis=1) == 2) & gallery.mask

    def made(rows: np.ndarray) -> list[edit.Edit]:
        at = "sink" if place == "sink" else second[rows]
        if change == "zero":
            return [edit.zero("residual", layers=[layer], at=at, steps=steps[half]) for half in halves]
        given = [donors[half][layer, (rows + 1) % batch][None, :, None] for half in halves]
        whole = [np.broadcast_to(one, (1, len(rows), length, one.shape[-1])) for one in given]
        chosen = [steps[half] for half in halves]
        return [edit.patch(one, layers=[layer], at=at, steps=now) for one, now in zip(whole, chosen, strict=True)]

    return made


def written(subject: Subject, gallery: Gallery, size: int, edits: Edits = lambda rows: []) -> np.ndarray:
    """i64[B,R]: the responses, so many sequences at a time."""
    prompt, mask = gallery.tokens[:, : gallery.prompt_length], gallery.mask[:, : gallery.prompt_length]
    found = []
    for first in range(0, len(prompt), size):
        rows = np.arange(first, min(first + size, len(prompt)))
        out = jaxsink.generate(subject.model, prompt[rows], subject.sampler, mask[rows], intervene=edits(rows))
        found.append(np.asarray(out.response))
    return np.concatenate(found)


def grades(subject: Subject, gallery: Gallery, study: Study) -> Callable[[np.ndarray], list[bool]] | None:
    """Which responses are right answers; None where prompts have none."""
    if not subject.graded:
        return None
    questions = subject.exam(len(gallery.tokens), study.seed).questions
    ends = end_ids(subject.model.config)

    def right(responses: np.ndarray) -> list[bool]:
        texts = [subject.tokenizer.decode(before_end(ids, ends)) for ids in responses.tolist()]
        return [bool(question.grade(text).correct) for question, text in zip(questions, texts, strict=True)]

    return right


def line_of(
    subject: Subject,
    known: dict[str, str],
    found: np.ndarray,
    plain: np.ndarray,
    right: Callable[[np.ndarray], list[bool]] | None,
) -> Line:
    line: Line = {"model": subject.name, **known}
    line["other texts"] = float((found != plain).any(axis=1).mean())
    line["other tokens"] = float((found != plain).mean())
    return line if right is None else {**line, "solved": float(np.mean(right(found)))}
