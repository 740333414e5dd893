"""Beyond the paper: do sinks carry information? The values at sinks, what they hand on, and attention on the diagonal.

A sink that only takes up attention has short values; one that carries information hands on as much as it receives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxsink_experiments.canvases import STEPS, canvases, fair_scores, pass_over, sinks

import jaxsink
from jaxsink.sinks import at_sinks
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, experiment
from jaxsink.study.predictions import everyone

RECORD = {
    "received": jaxsink.record.received(),
    "value": jaxsink.record.value_norm(),
    "handed": jaxsink.record.contribution(),
    "diagonal": jaxsink.record.diagonal(),
}


def look(subject: Subject, gallery: Gallery) -> dict[str, np.ndarray]:
    """Records [N,L,B,H,...] of N steps, with `sinks` bool[N,L,B,H,S] and `real` bool[N,B,S]."""
    found = []
    for _, tokens, there in canvases(subject, gallery):
        record = pass_over(subject, tokens, there, record=RECORD).record
        fair = fair_scores(subject.model.config, record["received"], there)
        found.append({**record, "sinks": sinks(fair, there, gallery.eps), "real": there})
    return {name: np.stack([part[name] for part in found]) for name in found[0]}


def value_ratio(subject: Subject, gallery: Gallery) -> np.ndarray:
    """f64[B]: the log of how much longer values are at a head's sinks than elsewhere, mean over heads that have sinks."""
    seen = look(subject, gallery)
    ratio = np.log(np.asarray(at_sinks(seen["value"], seen["sinks"], seen["real"][:, None, :, None]).ratio))
    return mean_over_heads(ratio)


def handed_on(subject: Subject, gallery: Gallery) -> np.ndarray:
    """f64[B]: the log of the sinks' share of what all keys hand on, over their share of the attention."""
    seen = look(subject, gallery)

    def share(values: np.ndarray) -> np.ndarray:
        return np.where(seen["sinks"], values, 0.0).sum(axis=-1) / np.maximum(values.sum(axis=-1), 1e-30)

    attention = share(seen["received"])
    with np.errstate(divide="ignore", invalid="ignore"):
        return mean_over_heads(np.where(attention > 0, np.log(share(seen["handed"]) / attention), np.nan))


def mean_over_heads(values: np.ndarray) -> np.ndarray:
    """[N,L,B,H] -> f64[B]: over those that have a value; NaN where none has."""
    there = np.isfinite(values)
    count = there.sum(axis=(0, 1, 3))
    return np.where(count > 0, np.where(there, values, 0.0).sum(axis=(0, 1, 3)) / np.maximum(count, 1), np.nan)


@experiment(
    name="values",
    title="What sinks hand on",
    question="Are the values at sinks short, as those of real sinks are, so that they take attention and give nothing?",
    paper="Not measured. Follow-ups (arXiv 2601.19657) find short values at sinks; we predict the same.",
    predictions=(
        Prediction(
            name="value-norm",
            statistic="log ratio of the length of values, sinks to other keys",
            of=value_ratio,
            expected="less",
            most=0.0,
            bound="no difference",
            about=everyone,
        ),
        Prediction(
            name="handed-on",
            statistic="log ratio of the sinks' share of what is handed on to their share of the attention",
            of=handed_on,
            expected="less",
            most=0.0,
            bound="no difference",
            about=everyone,
        ),
    ),
)
def what_sinks_hand_on(measured: Sequence[Measured], study: Study) -> Outcome:
    lines = []
    for one in measured:
        seen = look(one.subject, one.gallery)
        both = at_sinks(seen["value"], seen["sinks"], seen["real"][:, None, :, None])
        lines.append(
            {
                "model": one.subject.name,
                "length of values at sinks": float(np.nanmean(both.sinks)),
                "elsewhere": float(np.nanmean(both.elsewhere)),
                "attention on the diagonal": float(seen["diagonal"].mean()),
                "keys that are sinks": float(seen["sinks"].mean(axis=(1, 3)).sum() / seen["real"].sum()),
            }
        )
    return Outcome(tables=[Table.of("Values", lines, f"of {STEPS} steps of each generation; sinks by Eq. 3")])
