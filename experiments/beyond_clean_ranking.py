"""Beyond the paper: ranking the maps of an unmasked pass instead of those the masked model made."""

from __future__ import annotations

from collections.abc import Sequence

from jaxsink_experiments.masking import NOTE, PLAIN, by_problem, loss_test, no_generations, rows

from jaxsink.evals.conditions import hide
from jaxsink.study import Measured, Outcome, Study, Table, experiment

COUNTS = (1, 5)
OWN, CLEAN = tuple(hide(k) for k in COUNTS), tuple(hide(k, rank_on="clean") for k in COUNTS)


@experiment(
    name="clean",
    title="Ranking on clean maps",
    question="The paper does not say which map it ranks: does it matter?",
    paper="Not stated. Our prediction: a sink that cannot come back a step later costs more.",
    record=no_generations,
    score=lambda subject, study: (PLAIN, *OWN, *CLEAN),
)
def clean_ranking(measured: Sequence[Measured], study: Study) -> Outcome:
    tests = [
        loss_test(
            one,
            one.scores,
            f"problems lost with {own.k} top keys hidden, ranked on clean maps",
            clean,
            controls={"ranked on the masked model's own": own},
        )
        for one in measured
        for own, clean in zip(OWN, CLEAN, strict=True)
    ]
    return Outcome(
        tables=[Table.of("Ranked on", [line for one in measured for line in rows(one)], NOTE)],
        tests=tests,
        values=[line for one in measured for line in by_problem(one)],
    )
