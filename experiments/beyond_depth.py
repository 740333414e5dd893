"""Beyond the paper: masking the top sink in one layer only."""

from __future__ import annotations

from jaxsink_experiments.masking import COLUMNS, row

from jaxsink.sinks import MaskSinks
from jaxsink.study import Finding, Study, Table, plots

NAME, TITLE = "depth", "Masking by depth"
QUESTION = "In which layers does the model need its sinks?"
PAPER = "Not studied: the paper masks all layers at once."


def run(study: Study) -> Finding:
    figure, axes = plots.canvas(width=6)
    rows, words = [], []
    for subject in study.subjects:
        plain, layers = study.right(subject, "K = 0"), range(subject.model.config.layers)
        right = [study.right(subject, f"K = 5, layer {n} only", MaskSinks(5, layers=(n,))) for n in layers]
        rows += [row(subject, f"K = 5, layer {n}", value, plain) for n, value in zip(layers, right, strict=True)]
        axes[0, 0].plot(list(layers), [value.mean() for value in right], marker="o", label=subject.name)
        worst = min(layers, key=lambda n: right[n].mean())
        words.append(f"{subject.name}: layer {worst} ({right[worst].mean():.0%})")
    axes[0, 0].set(xlabel="layer whose top-5 sinks are hidden", ylabel="accuracy", ylim=(-0.02, 1.02))
    axes[0, 0].legend()
    return Finding(
        NAME, TITLE, QUESTION, PAPER, f"The most sensitive layers: {'; '.join(words)}.", "not tested",
        [study.figure(NAME, figure)], [Table("One layer at a time", COLUMNS, rows)],
    )  # fmt: skip
