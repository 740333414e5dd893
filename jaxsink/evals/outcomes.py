"""What can be said of an answer besides whether it is right: did it end, is there anything, does it go round in circles.

A model that loses its sinks may keep its accuracy and still write loops, or the reverse; weak models show it here alone.

    unfinished  no end token; none for a model that has no such token
    empty       nothing but white space
    zlib        bytes after compression, over bytes before; loops compress well; none for an empty answer
    repeated    the share of runs of four tokens that the answer had before
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxsink.evals.conditions import Comparison
from jaxsink.evals.results import Result
from jaxsink.evals.statistics import bootstrap, paired_difference, wilson
from jaxsink.sampling.generation import before_end

SHARES = ("unfinished", "empty")
OUTCOMES = (*SHARES, "zlib", "repeated")
RUN = 4  # tokens of a run that may be repeated
RESAMPLES = 2_000  # of each interval: an evaluation has a few dozen

Answers = Sequence[Mapping[str, Any]]  # lines of one condition, in order of question


def outcomes(response: Sequence[int], text: str, ends: Sequence[int]) -> Result:
    """Of one answer: its token ids, its text, and the ids that end a text."""
    ids = before_end(response, ends)
    return {
        "unfinished": len(ids) == len(response) if ends else None,
        "empty": not text.strip(),
        "zlib": compressed(text),
        "repeated": repeated(ids),
    }


def compressed(text: str) -> float | None:
    plain = text.strip().encode()
    return len(zlib.compress(plain)) / len(plain) if plain else None


def repeated(ids: Sequence[int]) -> float:
    runs = [tuple(ids[start : start + RUN]) for start in range(len(ids) - RUN + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def agreement(text: str, other: str) -> float:
    """How much two texts have in common: words in the same order, as a share of all (ROUGE-L's F1); 1 if both are empty."""
    first, second = text.split(), other.split()
    if not first and not second:
        return 1.0
    common = np.zeros(len(second) + 1, int)  # with the words of the first text so far
    for word in first:
        longer = np.where([word == one for one in second], common[:-1] + 1, 0)
        common[1:] = np.maximum(np.maximum.accumulate(longer), common[1:]) if second else common[1:]
    return 2 * int(common[-1]) / (len(first) + len(second))


def summed_up(answers: Answers) -> dict[str, Any]:
    """Each outcome's mean over the answers that have it, with a 95 % interval: Wilson's for shares, else the bootstrap's."""
    found = {}
    for name in OUTCOMES:
        values = np.array([answer[name] for answer in answers if answer.get(name) is not None], float)
        if len(values):
            interval = (
                wilson(int(values.sum()), len(values)) if name in SHARES else bootstrap(values, resamples=RESAMPLES)
            )
            found[name] = {**interval._asdict(), "total": len(values)}
    return found


def compared_outcomes(pair: Comparison, by_condition: Mapping[str, Answers]) -> dict[str, Any]:
    """Differences over the questions whose answers have the outcome under both conditions, with the sign-flip test."""
    found = {}
    for name in OUTCOMES:
        both = [
            (first[name], second[name])
            for first, second in zip(*(by_condition[label] for label in pair[:2]), strict=True)
            if first.get(name) is not None and second.get(name) is not None
        ]
        if both:
            values = np.array(both, float)
            found[name] = paired_difference(values[:, 0], values[:, 1], resamples=RESAMPLES)._asdict()
    return found
