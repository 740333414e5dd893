"""Beyond the paper: K from none to nearly all keys."""

from __future__ import annotations

from collections.abc import Sequence

from jaxsink_experiments.masking import NOTE, PLAIN, by_problem, loss_test, no_generations, rows

from jaxsink.evals.conditions import OPPOSITE, Condition, amount_text, hide
from jaxsink.sinks import MaskSinks
from jaxsink.sinks.mask import SELECTIONS
from jaxsink.study import Measured, Outcome, Study, Table, experiment, plots

COUNTS = (1, 5, 10, 0.35, 0.7)  # below 1: a share of the tokens
LEFT = 5  # keys that a head keeps at the far end
ALL_BUT = {select: Condition(MaskSinks(LEFT, select=OPPOSITE[select], keep=True)) for select in SELECTIONS}
LABELS = [*map(amount_text, (0, *COUNTS)), f"all but {LEFT}"]
DOSES = (PLAIN, *(hide(k, select) for select in SELECTIONS for k in COUNTS), *ALL_BUT.values())


@experiment(
    name="dose",
    title="How many keys can a model lose?",
    question="At which K does accuracy fall, and is it the sinks or the number of keys?",
    paper="Only K = 1, 5, 10 were tried, without controls. Our prediction: at every K, sinks cost more than random keys.",
    record=no_generations,
    score=lambda subject, study: DOSES,
)
def dose(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), sharey=True)
    tests, words = [], []
    for axis, one in zip(axes[0], measured, strict=True):
        plain = one.scores[PLAIN]
        for select in SELECTIONS:
            curve = [one.scores[c].mean() for c in (PLAIN, *(hide(k, select) for k in COUNTS), ALL_BUT[select])]
            axis.plot(range(len(curve)), curve, marker=plots.MARKERS[SELECTIONS.index(select)], label=select)
            halved = (label for label, share in zip(LABELS, curve, strict=True) if share < plain.mean() / 2)
            words.append(f"{one.subject.name} {select}: {next(halved, 'never')}")
        axis.set_xticks(range(len(LABELS)), LABELS, rotation=60)
        axis.set(title=one.subject.name, xlabel="keys hidden per head, K", ylim=(-0.02, 1.02))
        plots.label_lines(axis)
        for k in COUNTS:
            control = {"random keys": hide(k, "random")}
            tests.append(
                loss_test(
                    one, one.scores, f"problems lost with {amount_text(k)} top keys hidden", hide(k), controls=control
                )
            )
    axes[0, 0].set_ylabel("problems solved (share)")
    return Outcome(
        figure=figure,
        tables=[Table.of("All doses", [line for one in measured for line in rows(one)], NOTE)],
        tests=tests,
        values=[line for one in measured for line in by_problem(one)],
        note=f"First K that halves the accuracy: {'; '.join(words)}.",
    )
