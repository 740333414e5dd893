"""Beyond the paper: one extra token that everybody sees ("One Token Is Enough"). Needs two runs (`--runs DIR`):

jaxsink train mini-llada --out RUNS/extra-sink --init mini-llada --extra-sink --steps 600 --learning-rate 5e-4
jaxsink train mini-llada --out RUNS/extra-sink-control --init mini-llada --steps 600 --learning-rate 5e-4
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jaxsink_experiments.masking import COLUMNS, NOTE, PLAIN, TABLE1, percent, rows

from jaxsink.evals.statistics import bootstrap
from jaxsink.study import Finding, Measurement, Recorded, Scored, Study, Subject, Table, trained

NAME, TITLE = "extra", "An extra token as the sink"
QUESTION = "Does a model that is given a token to sink to stop using others, and does it solve more?"
PAPER = "Not in the paper; a follow-up (arXiv 2601.19657) reports fixed sinks and better scores from one extra token."
HOW = "The two runs that this needs were not given; experiments/beyond_extra_sink.py has the commands."
RUNS = ("extra-sink-control", "extra-sink")


@cache
def pair(runs: Path | None) -> tuple[Subject, ...]:
    """(tuned without, tuned with the token); nothing where one is missing."""
    if runs is None or not all((runs / name / "model").is_dir() for name in RUNS):
        return ()
    return tuple(trained(runs / name) for name in RUNS)


def needs(study: Study) -> list[tuple[Subject, Measurement]]:
    return [(s, spec) for s in pair(study.runs) for spec in (Recorded(), Scored(TABLE1))]


def run(study: Study) -> Finding:
    subjects = pair(study.runs)
    if not subjects:
        return Finding(name=NAME, title=TITLE, question=QUESTION, paper=PAPER, found=HOW, verdict="not tested")
    figures, masking, words = [], [], []
    for subject in subjects:
        gallery, right = study.gallery(subject), study.scores(subject, TABLE1)
        count = bootstrap(gallery.mean_over_steps(gallery.tracks.sink_count).mean(axis=(1, 2)))
        taken = bootstrap(1 - gallery.scores.sum(axis=-1).mean(axis=(0, 1, 3)) / gallery.mask.sum(axis=1))
        figures.append([subject.name, *map(float, count), *map(float, taken)])
        mine = rows(subject, right, right[PLAIN])
        masking += mine
        words.append(
            f"{subject.name}: {count.estimate:.2f} sinks per head [{count.low:.2f}, {count.high:.2f}], accuracy "
            f"{percent(mine[0])}, the extra token takes {taken.estimate:.0%} of the attention"
        )
    columns = ["model", "sinks per head", "low", "high", "attention on the extra token", "low", "high"]
    return Finding(
        name=NAME,
        title=TITLE,
        question=QUESTION,
        paper=PAPER,
        found="; ".join(words) + ".",
        verdict="new",
        figures=[],
        tables=[
            Table("Sinks", columns, figures, "95 % intervals over generations"),
            Table("Masking", COLUMNS, masking, NOTE),
        ],
    )
