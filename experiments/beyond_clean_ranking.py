"""Beyond the paper: ranking the maps of an unmasked pass instead of those the masked model made."""

from __future__ import annotations

from jaxsink_experiments.masking import COLUMNS, NOTE, PLAIN, TABLE1, rows, worse

from jaxsink.evals.conditions import hide
from jaxsink.study import Finding, Measurement, Scored, Study, Subject, Table

NAME, TITLE = "clean", "Ranking on clean maps"
QUESTION = "The paper does not say which map it ranks: does it matter?"
PAPER = "Not stated; robustness is claimed without saying whether a hidden sink can come back a step later."
COUNTS = (1, 5)
CLEAN = tuple(hide(k, rank_on="clean") for k in COUNTS)


def needs(study: Study) -> list[tuple[Subject, Measurement]]:
    return [(subject, Scored(group)) for subject in study.subjects for group in (TABLE1, CLEAN)]


def run(study: Study) -> Finding:
    lines, words = [], []
    for subject in study.subjects:
        right = study.scores(subject, (PLAIN, *(hide(k) for k in COUNTS), *CLEAN))
        plain = right.pop(PLAIN)
        lines += rows(subject, right, plain)
        for k, clean in zip(COUNTS, CLEAN, strict=True):
            ran, whole = right[hide(k)], right[clean]
            sign = "worse" if worse(whole, ran) else "better" if worse(ran, whole) else "no different"
            words.append(f"{subject.name} K = {k} {ran.mean():.0%} and {whole.mean():.0%} ({sign})")
    return Finding(
        name=NAME,
        title=TITLE,
        question=QUESTION,
        paper=PAPER,
        found=f"Accuracy when the masked model's own maps are ranked, and clean ones: {'; '.join(words)}. In brackets: "
        "clean against own, at the 5 % level.",
        verdict="new",
        figures=[],
        tables=[Table("Ranked on", COLUMNS, lines, NOTE)],
    )
