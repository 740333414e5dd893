"""What is lost with a key hidden per head, in the usual order of unmasking and in orders in which nothing can wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxsink_experiments.masking import PLAIN, has_nothing_to_lose, lost
from matplotlib.axes import Axes

from jaxsink import LLaDASampler, Sampler
from jaxsink.evals.conditions import hide
from jaxsink.study import Measured, Subject, Tested
from jaxsink.study.verdicts import not_testable, paired

TOP, PARTNER = hide(1), hide(1, "partner")
USUAL = "in the usual order"
ORDERS = {"in a random order": "random", "from left to right": "left_to_right"}


def other_orders(subject: Subject) -> Mapping[str, Sampler]:
    """Samplers that cannot wait. LLaDA's serves other models as well, with one block for the whole response."""
    base, length = subject.sampler, subject.sampler.response_length
    if not isinstance(base, LLaDASampler):
        base = LLaDASampler(length, vars(base).get("steps", length), length)
    return {name: replace(base, remasking=how, threshold=None) for name, how in ORDERS.items()}


def where_it_cannot_wait(one: Measured, order: str) -> Tested:
    """Problems lost with the top key hidden, against the usual order, and against a random key that is hidden as long."""
    words, scores = f"problems lost with the top key hidden, {order}", one.written[order]
    why = has_nothing_to_lose(one, scores) or has_nothing_to_lose(one, one.scores)
    if why:
        return not_testable(one.subject.name, words, "greater", why)
    gone = {
        "here": scores[PLAIN] * 1.0 - scores[TOP],
        "the usual order": one.scores[PLAIN] * 1.0 - one.scores[TOP],
        "partner keys": scores[PLAIN] * 1.0 - scores[PARTNER],
    }
    return paired(one.subject.name, words, "greater", gone.pop("here"), gone, one.clusters)


def lines_of(one: Measured) -> list[dict[str, Any]]:
    """What is lost in each order."""
    lines = []
    for order, scores in {USUAL: one.scores, **one.written}.items():
        for condition, kind in ((TOP, "top"), (PARTNER, "partner")):
            gone = lost(scores[PLAIN], scores[condition], one.clusters)
            low, high = gone.interval()
            line = {"model": one.subject.name, "order": order, "hidden": kind, "solved": scores[PLAIN].mean()}
            lines.append({**line, "lost": gone.value, "low": low, "high": high})
    return lines


def draw(axis: Axes, lines: Sequence[dict[str, Any]], name: str) -> None:
    orders = list(dict.fromkeys(line["order"] for line in lines))
    for number, kind in enumerate(("top", "partner")):
        found = [line for line in lines if line["hidden"] == kind]
        reach = [(line["high"] - line["low"]) / 2 for line in found]
        place = np.arange(len(found)) + 0.4 * (number - 0.5)
        axis.barh(place, [line["lost"] for line in found], 0.38, xerr=reach, label=kind, error_kw={"lw": 0.8})
    axis.set_yticks(range(len(orders)), orders)
    axis.set(title=name, xlabel="problems lost (share)", ylim=(len(orders) - 0.5, -0.5))
