"""Beyond the paper: ranking the maps of an unmasked pass instead of those the masked model made."""

from __future__ import annotations

from jaxsink_experiments.masking import COLUMNS, NOTE, PLAIN, TABLE1, rows, worse

from jaxsink.sinks import MaskSinks
from jaxsink.study import Finding, Measurement, Scored, Study, Subject, Table

NAME, TITLE = "clean", "Ranking on clean maps"
QUESTION = "The paper does not say which map it ranks: does it matter?"
PAPER = "Not stated; robustness is claimed without saying whether a hidden sink can come back a step later."
CLEAN = {f"K = {k}, top, ranked on clean maps": MaskSinks(k, rank_on="clean") for k in (1, 5)}


def needs(study: Study) -> list[tuple[Subject, Measurement]]:
    return [(subject, Scored.of(group)) for subject in study.subjects for group in (TABLE1, CLEAN)]


def run(study: Study) -> Finding:
    lines, words = [], []
    for subject in study.subjects:
        masked, clean = study.right(subject, TABLE1), study.right(subject, CLEAN)
        compared = {f"K = {k}, top": masked[f"K = {k}, top"] for k in (1, 5)} | clean
        lines += rows(subject, compared, masked[PLAIN])
        for k in (1, 5):
            ran, whole = compared[f"K = {k}, top"], compared[f"K = {k}, top, ranked on clean maps"]
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
