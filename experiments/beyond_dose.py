"""Beyond the paper: K from none to nearly all keys."""

from __future__ import annotations

from collections.abc import Sequence

from jaxsink_experiments.masking import NOTE, PLAIN, SELECTIONS, STATISTIC, TABLE1, no_generations, rows, with_controls

from jaxsink.evals.conditions import OPPOSITE, Condition, hide
from jaxsink.sinks import MaskSinks
from jaxsink.study import Measured, Outcome, Study, Table, experiment, plots

MORE = (20, 40)  # beside Table 1's
COUNTS = (1, 5, 10, *MORE)
LEFT = 5  # keys that a head keeps at the far end
ALL_BUT = {select: Condition(MaskSinks(LEFT, select=OPPOSITE[select], keep=True)) for select in SELECTIONS}
LABELS = [*(f"K = {k}" for k in (0, *COUNTS)), f"all but {LEFT}"]


@experiment(
    name="dose",
    title="How many keys can a model lose?",
    question="At which K does accuracy fall by half, and is it the sinks or the number of keys?",
    paper="Only K = 1, 5, 10 were tried, and without controls.",
    statistic=f"{STATISTIC}; the first K that halves it",
    null="as many random keys hidden, and as many of those that receive least",
    record=no_generations,
    score=lambda subject: (*TABLE1, *with_controls(MORE), *ALL_BUT.values()),
)
def dose(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), sharey=True)
    lines, words = [], []
    for axis, one in zip(axes[0], measured, strict=True):
        plain = one.scores[PLAIN]
        lines += rows(one.subject, one.scores, plain)
        for select in SELECTIONS:
            conditions = (PLAIN, *(hide(k, select) for k in COUNTS), ALL_BUT[select])
            curve = [one.scores[condition].mean() for condition in conditions]
            axis.plot(range(len(curve)), curve, marker=plots.MARKERS[SELECTIONS.index(select)], label=select)
            halved = (label for label, share in zip(LABELS, curve, strict=True) if share < plain.mean() / 2)
            words.append(f"{one.subject.name} {select}: {next(halved, 'never')}")
        axis.set_xticks(range(len(LABELS)), [label.removeprefix("K = ") for label in LABELS], rotation=60)
        axis.set(title=one.subject.name, xlabel="keys hidden per head, K", ylim=(-0.02, 1.02))
        plots.label_lines(axis)
    axes[0, 0].set_ylabel("problems solved (share)")
    return Outcome(
        found=f"First K that halves the accuracy: {'; '.join(words)}.",
        verdict="new",
        figure=figure,
        tables=[Table.of("All doses", lines, NOTE)],
    )
