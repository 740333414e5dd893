"""Beyond the paper: ranking the maps of an unmasked pass instead of those the masked model made."""

from __future__ import annotations

from collections.abc import Sequence

from jaxsink_experiments.masking import NOTE, PLAIN, STATISTIC, no_generations, rows, worse

from jaxsink.evals.conditions import hide
from jaxsink.study import Measured, Outcome, Study, Table, experiment

COUNTS = (1, 5)
OWN, CLEAN = tuple(hide(k) for k in COUNTS), tuple(hide(k, rank_on="clean") for k in COUNTS)


@experiment(
    name="clean",
    title="Ranking on clean maps",
    question="The paper does not say which map it ranks: does it matter?",
    paper="Not stated; robustness is claimed without saying whether a hidden sink can come back a step later.",
    statistic=STATISTIC,
    null="ranked on the masked model's own maps, on the same problems (McNemar's exact test)",
    record=no_generations,
    score=lambda subject: (PLAIN, *OWN, *CLEAN),
)
def clean_ranking(measured: Sequence[Measured], study: Study) -> Outcome:
    lines, words = [], []
    for one in measured:
        right = {condition: one.scores[condition] for condition in (*OWN, *CLEAN)}
        lines += rows(one.subject, right, one.scores[PLAIN])
        for own, clean in zip(OWN, CLEAN, strict=True):
            mine, theirs = right[own], right[clean]
            sign = "worse" if worse(theirs, mine) else "better" if worse(mine, theirs) else "no different"
            words.append(f"{one.subject.name} K = {own.k} {mine.mean():.0%} and {theirs.mean():.0%} ({sign})")
    return Outcome(
        found=f"Accuracy when the masked model's own maps are ranked, and clean ones: {'; '.join(words)}. In brackets: "
        "clean against own, at the 5 % level.",
        verdict="new",
        tables=[Table.of("Ranked on", lines, NOTE)],
    )
