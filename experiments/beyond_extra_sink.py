"""Beyond the paper: one extra token that everybody sees ("One Token Is Enough"). Needs two runs (`--runs DIR`):

jaxsink train mini-llada --out RUNS/extra-sink --init mini-llada --extra-sink --steps 600 --learning-rate 5e-4
jaxsink train mini-llada --out RUNS/extra-sink-control --init mini-llada --steps 600 --learning-rate 5e-4
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from jaxsink_experiments.masking import NOTE, PLAIN, rows, table1

from jaxsink.study import Measured, Outcome, Study, Subject, Table, Tested, experiment, trained
from jaxsink.study.verdicts import paired

RUNS = ("extra-sink-control", "extra-sink")


@cache
def pair(runs: Path | None) -> tuple[Subject, ...]:
    """(tuned without, tuned with the token); nothing where one is missing."""
    if runs is None or not all((runs / name / "model").is_dir() for name in RUNS):
        return ()
    return tuple(trained(runs / name) for name in RUNS)


def sinks_per_head(one: Measured) -> np.ndarray:
    return one.gallery.mean_over_steps(one.gallery.tracks.sink_count).mean(axis=(1, 2))


def fewer_sinks(control: Measured, given: Measured) -> Tested:
    """Sinks per head with the token, against the same tuning without it, on the same problems."""
    return paired(
        given.subject.name,
        "sinks per head",
        "less",
        sinks_per_head(given),
        {"tuned without it": sinks_per_head(control)},
        given.gallery.clusters,
    )


@experiment(
    name="extra",
    title="An extra token as the sink",
    question="Does a model that is given a token to sink to stop using others, and does it solve more?",
    paper="Not in the paper; a follow-up (arXiv 2601.19657) reports fixed sinks and better scores from one extra token.",
    subjects=lambda study: pair(study.runs),
    score=table1,
    missing="The two runs that this needs were not given; experiments/beyond_extra_sink.py has the commands.",
)
def extra_sink(measured: Sequence[Measured], study: Study) -> Outcome:
    lines = []
    for one in measured:
        taken = 1 - one.gallery.scores.sum(axis=-1).mean(axis=(0, 1, 3)) / one.gallery.mask.sum(axis=1)
        on_token = {"attention on the extra token": float(taken.mean()), "solved": float(one.scores[PLAIN].mean())}
        lines.append({"model": one.subject.name, "sinks per head": float(sinks_per_head(one).mean()), **on_token})
    return Outcome(
        tables=[
            Table.of("Sinks", lines),
            Table.of("Masking", [line for one in measured for line in rows(one)], NOTE),
        ],
        tests=[fewer_sinks(*measured)],
    )
