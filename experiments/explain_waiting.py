"""§5.2 explains robustness by waiting: a token that depended on the hidden sink is less sure, so it is not unmasked yet.

If that is so: confidence falls where the hidden key was attended to, these tokens are unmasked later, and robustness is gone
where nothing can wait: in a random order, from left to right, and in a single pass that fills in published answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxsink_experiments.dependence import delays, falls, falls_of_others
from jaxsink_experiments.masking import NOTE, PLAIN, by_problem, loss_test
from jaxsink_experiments.orders import PARTNER, TOP, USUAL, draw, lines_of, other_orders, where_it_cannot_wait

from jaxsink.sinks import MaskSinks
from jaxsink.study import (
    Measured,
    Outcome,
    Prediction,
    Recorded,
    Study,
    Subject,
    Table,
    Tested,
    experiment,
    nulls,
    plots,
)
from jaxsink.study.experiments import RECORDED, diffusion_models
from jaxsink.study.finding import Row
from jaxsink.study.verdicts import paired

DELAY = "rank correlation of a token's attention to the hidden keys and how much later it is unmasked"


def recorded(subject: Subject) -> Mapping[str, Recorded]:
    """As it writes, and with the top key of every head, or its partner, hidden."""
    return {RECORDED: Recorded(), "top": Recorded(hide=MaskSinks(1)), "partner": Recorded(hide=MaskSinks(1, "partner"))}


def tests_of(one: Measured) -> list[Tested]:
    name, plain = one.subject.name, one.gallery
    later, control = (delays(one.subject, plain, one.galleries[kind]) for kind in ("top", "partner"))
    return [
        paired(name, DELAY, "greater", later, {"partner keys": control}, plain.clusters),
        *(where_it_cannot_wait(one, order) for order in one.written),
        loss_test(
            one,
            one.losses,
            "nats per token lost with the top key hidden, in a single pass",
            TOP,
            controls={"partner keys": PARTNER},
        ),
    ]


def values_of(one: Measured) -> list[Row]:
    """What the tests rest on: answers in each order, and delays."""
    orders = {USUAL: one, **{name: replace(one, scores=found, losses={}) for name, found in one.written.items()}}
    answers = [{"order": order, **line} for order, found in orders.items() for line in by_problem(found)]
    later, control = (delays(one.subject, one.gallery, one.galleries[kind]) for kind in ("top", "partner"))
    name = {"model": one.subject.name, "statistic": "delay"}
    numbered = enumerate(zip(one.gallery.clusters, later, control, strict=True))
    lines = [{"generation": n, "problem": str(problem), "value": x, "control": y} for n, (problem, x, y) in numbered]
    return [*({**name, **line} for line in lines), *answers]


@experiment(
    name="waiting",
    title="Waiting for confidence",
    question="Do tokens that depended on a hidden sink wait, and is robustness gone where they cannot?",
    paper="Decoding makes it robust: without its sink the model is less sure of what depended on it, and fills that in "
    "later (§5.2, not tested).",
    predictions=(
        Prediction(
            name="confidence-falls",
            statistic="fall of confidence (log-odds) without the top keys, at masks that attend to them more than others do",
            of=falls,
            control=nulls.Control("random keys hidden instead", falls_of_others),
        ),
    ),
    subjects=diffusion_models,
    record=recorded,
    score=lambda subject, study: (PLAIN, TOP, PARTNER),
    samplers=other_orders,
    likelihood=True,
)
def waiting(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), sharey=True)
    lines = {one.subject.name: lines_of(one) for one in measured}
    for axis, one in zip(axes[0], measured, strict=True):
        draw(axis, lines[one.subject.name], one.subject.name)
    axes[0, 0].set_ylabel("order of unmasking")
    plots.shared_legend(figure)
    return Outcome(
        figure=figure,
        tables=[
            Table.of("Problems lost with one key hidden per head", [x for found in lines.values() for x in found], NOTE)
        ],
        tests=[test for one in measured for test in tests_of(one)],
        values=[line for one in measured for line in values_of(one)],
    )
