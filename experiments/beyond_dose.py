"""Beyond the paper: K from none to nearly all keys."""

from __future__ import annotations

from jaxsink_experiments.masking import COLUMNS, SELECTIONS, row

from jaxsink.sinks import MaskSinks
from jaxsink.study import Finding, Study, Table, plots

NAME, TITLE = "dose", "How many keys can a model lose?"
QUESTION = "At which K does accuracy fall by half, and is it the sinks or the number of keys?"
PAPER = "Only K = 1, 5, 10 were tried, and without controls."
COUNTS = (1, 2, 5, 10, 20, 40)  # 1, 5 and 10 are Table 1's, and kept


def run(study: Study) -> Finding:
    figure, axes = plots.canvas(1, len(study.subjects), width=3.4 * len(study.subjects), sharey=True)
    rows, words = [], []
    for axis, subject in zip(axes[0], study.subjects, strict=True):
        plain = study.right(subject, "K = 0")
        for select in SELECTIONS:
            curve = {0: plain}
            for count in COUNTS:
                curve[count] = study.right(subject, f"K = {count}, {select}", MaskSinks(count, select=select))
                rows.append(row(subject, f"K = {count}, {select}", curve[count], plain))
            axis.plot(list(curve), [value.mean() for value in curve.values()], marker="o", label=select)
            halved = next((count for count, value in curve.items() if value.mean() < plain.mean() / 2), None)
            words.append(f"{subject.name} {select}: {'never' if halved is None else f'K = {halved}'}")
        axis.set(title=subject.name, xlabel="K", ylabel="accuracy", ylim=(-0.02, 1.02))
    axes[0, 0].legend(title="hidden")
    return Finding(
        NAME, TITLE, QUESTION, PAPER, f"First K that halves the accuracy: {'; '.join(words)}.", "not tested",
        [study.figure(NAME, figure)], [Table("All doses", COLUMNS, rows)],
    )  # fmt: skip
