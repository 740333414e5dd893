"""Beyond the paper: K from none to nearly all keys."""

from __future__ import annotations

from jaxsink_experiments.masking import COLUMNS, NOTE, PLAIN, SELECTIONS, TABLE1, rows, with_controls

from jaxsink.evals.conditions import OPPOSITE, Condition, hide
from jaxsink.sinks import MaskSinks
from jaxsink.study import Finding, Measurement, Scored, Study, Subject, Table, plots

NAME, TITLE = "dose", "How many keys can a model lose?"
QUESTION = "At which K does accuracy fall by half, and is it the sinks or the number of keys?"
PAPER = "Only K = 1, 5, 10 were tried, and without controls."
MORE = (20, 40)  # beside Table 1's
COUNTS = (1, 5, 10, *MORE)
LEFT = 5  # keys that a head keeps at the far end
ALL_BUT = {select: Condition(MaskSinks(LEFT, select=OPPOSITE[select], keep=True)) for select in SELECTIONS}
EXTRA = (*with_controls(MORE), *ALL_BUT.values())


def needs(study: Study) -> list[tuple[Subject, Measurement]]:
    return [(subject, Scored(group)) for subject in study.subjects for group in (TABLE1, EXTRA)]


def run(study: Study) -> Finding:
    figure, axes = plots.canvas(1, len(study.subjects), sharey=True)
    labels = [f"K = {k}" for k in (0, *COUNTS)] + [f"all but {LEFT}"]
    lines, words = [], []
    for axis, subject in zip(axes[0], study.subjects, strict=True):
        right = study.scores(subject, (*TABLE1, *EXTRA))
        plain = right[PLAIN]
        lines += rows(subject, right, plain)
        for select in SELECTIONS:
            curve = [plain, *(right[hide(k, select)] for k in COUNTS), right[ALL_BUT[select]]]
            marker = plots.MARKERS[SELECTIONS.index(select)]
            axis.plot(range(len(curve)), [value.mean() for value in curve], marker=marker, label=select)
            halved = next(
                (at for at, value in zip(labels, curve, strict=True) if value.mean() < plain.mean() / 2), "never"
            )
            words.append(f"{subject.name} {select}: {halved}")
        axis.set_xticks(range(len(labels)), [label.removeprefix("K = ") for label in labels], rotation=60)
        axis.set(title=subject.name, xlabel="keys hidden per head, K", ylim=(-0.02, 1.02))
        plots.label_lines(axis)
    axes[0, 0].set_ylabel("problems solved (share)")
    return Finding(
        name=NAME,
        title=TITLE,
        question=QUESTION,
        paper=PAPER,
        found=f"First K that halves the accuracy: {'; '.join(words)}.",
        verdict="new",
        figures=[study.figure(NAME, figure)],
        tables=[Table("All doses", COLUMNS, lines, NOTE)],
    )
