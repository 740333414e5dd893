"""Beyond the paper: may this autoregressive model stand for Llama? Only one with a true sink on its first token may.

A true sink takes much attention in several heads (Gu et al.'s α₁ > 0.3), has short values, and is missed: the loss rises if
the newest row can no longer see it. All three must hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from jaxsink_experiments.canvases import canvases, pass_over
from jaxsink_experiments.masking import NOTE, PLAIN, loss_test, lost

import jaxsink
from jaxsink.evals.conditions import Condition, hide
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, experiment
from jaxsink.study.predictions import autoregressive

ALPHA = 0.3  # attention that makes the first token a sink of a head
SEVERAL = 2.0  # heads, and more
RECORD = {"received": jaxsink.record.received(), "value": jaxsink.record.value_norm()}
NEWEST, EVERY, PARTNER = hide(1, "first"), hide(1, "first", rows="all"), hide(1, "partner")


def autoregressive_models(study: Study) -> list[Subject]:
    return [subject for subject in study.subjects if autoregressive(subject)]


def conditions(subject: Subject, study: Study) -> tuple[Condition, ...]:
    return (PLAIN, NEWEST, EVERY, PARTNER)


@lru_cache(maxsize=2)
def first_token(subject: Subject, gallery: Gallery) -> tuple[np.ndarray, np.ndarray]:
    """(f64[L,B,H]: α₁, attention that the first token receives from each query that sees it; f64[L,B,K]: the log of the
    length of its values over the mean of the others), on the text as it stands in the end."""
    _, tokens, there = list(canvases(subject, gallery))[-1]
    record = pass_over(subject, tokens, there, record=RECORD).record
    first, count = np.argmax(there, axis=1), there.sum(axis=1)
    at = first[None, :, None, None]
    alpha = np.take_along_axis(record["received"], at, axis=-1)[..., 0] / count[None, :, None]
    value = np.take_along_axis(record["value"], at, axis=-1)[..., 0]
    others = (np.where(there[None, :, None], record["value"], 0.0).sum(axis=-1) - value) / (count - 1)[None, :, None]
    return alpha, np.log(value / others)


def heads_with_sink(subject: Subject, gallery: Gallery) -> np.ndarray:
    """f64[B]: heads whose α₁ is above ALPHA."""
    return (first_token(subject, gallery)[0] > ALPHA).sum(axis=(0, 2)).astype(float)


def value_ratio(subject: Subject, gallery: Gallery) -> np.ndarray:
    """f64[B]: mean over layers and heads."""
    return first_token(subject, gallery)[1].mean(axis=(0, 2))


def line(one: Measured) -> dict[str, Any]:
    alpha, values = first_token(one.subject, one.gallery)
    found: dict[str, Any] = {
        "model": one.subject.name,
        "α₁": float(alpha.mean()),
        "heads above 0.3": float(heads_with_sink(one.subject, one.gallery).mean()),
        "of": alpha.shape[0] * alpha.shape[2],
        "length of values, first to others": float(np.exp(values.mean())),
    }
    cases = {"newest row": NEWEST, "every row": EVERY, "a partner, newest row": PARTNER} if one.losses else {}
    for name, case in cases.items():
        more = lost(one.losses[PLAIN], one.losses[case], one.clusters)
        low, high = more.interval()
        found |= {f"nats lost: {name}": more.value, f"{name}: low": low, f"{name}: high": high}
    return found


@experiment(
    name="gate",
    title="A true first-token sink",
    question="Does this autoregressive model have the sink that the paper's Llama has, so that it may stand for it?",
    paper="Llama-3.1-8B has it. A small model may stand for it only if all of this is supported.",
    subjects=autoregressive_models,
    predictions=(
        Prediction(
            name="gate-heads",
            statistic="heads in which the first token receives more than 0.3 of each query",
            of=heads_with_sink,
            least=SEVERAL,
            bound="two heads",
            about=autoregressive,
        ),
        Prediction(
            name="gate-values",
            statistic="log ratio of the length of values, first token to others",
            of=value_ratio,
            expected="less",
            most=0.0,
            bound="no difference",
            about=autoregressive,
        ),
    ),
    score=conditions,
    writes=False,
    likelihood=True,
    missing="No autoregressive model was studied.",
)
def gate(measured: Sequence[Measured], study: Study) -> Outcome:
    words = "nats per token lost with the first token hidden from the newest row"
    tests = [
        loss_test(one, one.losses, words, NEWEST, controls={"a partner": PARTNER}) for one in measured if one.losses
    ]
    return Outcome(tables=[Table.of("The gate", [line(one) for one in measured], NOTE)], tests=tests)
