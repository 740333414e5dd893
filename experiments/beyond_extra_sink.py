"""Beyond the paper: one extra token that everybody sees ("One Token Is Enough"). Needs two runs (`--runs DIR`):

jaxsink train mini-llada --out RUNS/extra-sink --init mini-llada --extra-sink --steps 600 --learning-rate 5e-4
jaxsink train mini-llada --out RUNS/extra-sink-control --init mini-llada --steps 600 --learning-rate 5e-4
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jaxsink_experiments.masking import NOTE, PLAIN, percent, rows, table1

from jaxsink.evals.statistics import bootstrap
from jaxsink.study import Measured, Outcome, Study, Subject, Table, experiment, trained
from jaxsink.study.finding import with_limits

RUNS = ("extra-sink-control", "extra-sink")


@cache
def pair(runs: Path | None) -> tuple[Subject, ...]:
    """(tuned without, tuned with the token); nothing where one is missing."""
    if runs is None or not all((runs / name / "model").is_dir() for name in RUNS):
        return ()
    return tuple(trained(runs / name) for name in RUNS)


@experiment(
    name="extra",
    title="An extra token as the sink",
    question="Does a model that is given a token to sink to stop using others, and does it solve more?",
    paper="Not in the paper; a follow-up (arXiv 2601.19657) reports fixed sinks and better scores from one extra token.",
    statistic="sinks per head; share of problems solved",
    null="the same tuning without the token",
    subjects=lambda study: pair(study.runs),
    score=table1,
    missing="The two runs that this needs were not given; experiments/beyond_extra_sink.py has the commands.",
)
def extra_sink(measured: Sequence[Measured], study: Study) -> Outcome:
    sinks, masking, words = [], [], []
    for one in measured:
        gallery, plain = one.gallery, one.scores[PLAIN]
        count = bootstrap(gallery.mean_over_steps(gallery.tracks.sink_count).mean(axis=(1, 2)))
        taken = bootstrap(1 - gallery.scores.sum(axis=-1).mean(axis=(0, 1, 3)) / gallery.mask.sum(axis=1))
        limits = with_limits("sinks per head", count) | with_limits("attention on the extra token", taken)
        sinks.append({"model": one.subject.name, **limits})
        masking += rows(one.subject, one.scores, plain)
        words.append(
            f"{one.subject.name}: {count.estimate:.2f} sinks per head [{count.low:.2f}, {count.high:.2f}], accuracy "
            f"{percent(plain)}, the extra token takes {taken.estimate:.0%} of the attention"
        )
    return Outcome(
        found="; ".join(words) + ".",
        verdict="new",
        tables=[
            Table.of("Sinks", sinks, "95 % intervals over generations"),
            Table.of("Masking", masking, NOTE),
        ],
    )
