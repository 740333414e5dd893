"""Beyond the paper: other readings of Table 1. Its rows may stand for one ε per model, calibrated so that K keys pass on
average; its K = 10 is about 3 % of the tokens; and some of the top K are no sinks."""

from __future__ import annotations

from collections.abc import Sequence

from jaxsink_experiments.masking import NOTE, PLAIN, by_problem, loss_test, no_generations, rows

from jaxsink.evals.conditions import Condition, hide
from jaxsink.runs.progress import stage
from jaxsink.sinks import MaskSinks, calibrate_eps
from jaxsink.study import Measured, Outcome, Study, Subject, Table, Tested, experiment

SHARE = 0.03  # of the tokens: the paper's 10 of some 330


def calibrated(subject: Subject, study: Study, k: int) -> tuple[Condition, Condition]:
    """(all keys above an ε that k pass on average, their partners)."""
    gallery = study.gallery(subject)
    eps = round(calibrate_eps(gallery.scores, k, gallery.real), 3)
    policy = MaskSinks(rule="threshold", eps=eps, rows=None if subject.is_diffusion else "all")
    return Condition(policy), Condition(policy.control("partner"))


def readings(subject: Subject, study: Study) -> dict[str, tuple[Condition, Condition]]:
    """(condition, its control), by what is hidden."""
    rows = None if subject.is_diffusion else "all"
    with stage(f"calibrating ε for {subject.name}"):
        found = {f"all keys above an ε that {k} pass on average": calibrated(subject, study, k) for k in (1, 5)}
    found["the top 3 % of the keys"] = hide(SHARE, "top"), hide(SHARE, "partner")
    above = [hide(1, select, rule="top_k_above", rows=rows) for select in ("top", "partner")]
    found["the top key, if it is a sink"] = above[0], above[1]
    return found


def conditions(subject: Subject, study: Study) -> tuple[Condition, ...]:
    return (PLAIN, hide(1), hide(1, "bottom"), *(c for pair in readings(subject, study).values() for c in pair))


def tests(one: Measured, study: Study) -> list[Tested]:
    return [
        loss_test(one, one.scores, f"problems lost with {words} hidden", sinks, controls={"partner keys": partners})
        for words, (sinks, partners) in readings(one.subject, study).items()
    ]


@experiment(
    name="readings",
    title="Other readings of Table 1",
    question="Does it matter how the K keys are chosen?",
    paper="Rows are labelled ε₀, ε₁, ε₂. Our prediction: by every reading, sinks cost more than their partners.",
    record=no_generations,
    score=conditions,
    look=True,
)
def other_readings(measured: Sequence[Measured], study: Study) -> Outcome:
    return Outcome(
        tables=[Table.of("By condition", [line for one in measured for line in rows(one)], NOTE)],
        tests=[test for one in measured for test in tests(one, study)],
        values=[line for one in measured for line in by_problem(one)],
    )
