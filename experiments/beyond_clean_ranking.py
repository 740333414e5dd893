"""Beyond the paper: ranking the maps of an unmasked pass instead of those the masked model made."""

from __future__ import annotations

from jaxsink_experiments.masking import COLUMNS, row, worse

from jaxsink.sinks import MaskSinks
from jaxsink.study import Finding, Study, Table
from jaxsink.study.finding import all_of

NAME, TITLE = "clean", "Ranking on clean maps"
QUESTION = "The paper does not say which map it ranks: does it matter?"
PAPER = "Not stated; robustness is claimed without saying whether a hidden sink can come back a step later."


def run(study: Study) -> Finding:
    rows, same = [], []
    for subject in study.subjects:
        plain = study.right(subject, "K = 0")
        right = {
            rank_on: study.right(subject, f"K = 1, {rank_on}", MaskSinks(1, rank_on=rank_on))
            for rank_on in ("masked", "clean")
        }
        rows += [row(subject, f"K = 1, ranked on {name}", value, plain) for name, value in right.items()]
        same.append(not worse(right["clean"], right["masked"]) and not worse(right["masked"], right["clean"]))
    words = "; ".join(f"{r[0]} {r[1].split()[-1]} {r[2]:.0%}" for r in rows)
    return Finding(
        NAME, TITLE, QUESTION, PAPER, f"Accuracy at K = 1: {words}. 'Holds': the choice makes no significant difference.",
        all_of(*same), [], [Table("Ranked on", COLUMNS, rows)],
    )  # fmt: skip
