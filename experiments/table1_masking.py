"""Table 1: accuracy with the top-K sinks masked, and beside it the controls that the paper lacks."""

from __future__ import annotations

from jaxsink_experiments.masking import COLUMNS, SELECTIONS, row, worse

from jaxsink.sinks import MaskSinks
from jaxsink.study import Finding, Study, Table, plots
from jaxsink.study.finding import all_of

NAME, TITLE = "table1", "Accuracy with sinks masked"
QUESTION = "Does losing its sinks break an autoregressive model but not a diffusion model, more than losing any keys?"
PAPER = "Masking one sink breaks Llama (.85 to .02 on GSM8K), while LLaDA and Dream lose little up to K = 5."
COUNTS = (1, 5, 10)


def run(study: Study) -> Finding:
    figure, axes = plots.canvas(1, len(study.subjects), width=3.4 * len(study.subjects), sharey=True)
    rows, robust, breaks, special = [], [], [], []
    for axis, subject in zip(axes[0], study.subjects, strict=True):
        plain = study.right(subject, "K = 0")
        rows.append(row(subject, "K = 0", plain, plain))
        right = {}
        for select in SELECTIONS:
            for count in COUNTS:
                label = f"K = {count}, {select}"
                right[select, count] = study.right(subject, label, MaskSinks(count, select=select))
                rows.append(row(subject, label, right[select, count], plain))
            axis.plot(
                (0, *COUNTS),
                [plain.mean(), *(right[select, count].mean() for count in COUNTS)],
                marker="o",
                label=select,
            )
        axis.set(title=subject.name, xlabel="K keys hidden per head", ylabel="accuracy", ylim=(-0.02, 1.02))
        lost = plain.mean() - right["top", 1].mean()
        if subject.is_diffusion:
            robust.append(lost < 0.05)
        else:
            breaks.append(lost > 0.5)
        if worse(right["top", 1], right["random", 1]):
            special.append(subject.name)
    axes[0, 0].legend(title="hidden")
    drops = ", ".join(f"{r[0]} {r[2]:.0%} [{r[3]:.0%}, {r[4]:.0%}]" for r in rows if r[1] in ("K = 0", "K = 1, top"))
    control = f"Top-1 hurts significantly more than a random key in: {', '.join(special) or 'none of the models'}."
    return Finding(
        NAME, TITLE, QUESTION, PAPER, f"Accuracy at K = 0 and with the top sink hidden: {drops}. {control}",
        all_of(*robust, *breaks), [study.figure(NAME, figure)],
        [Table("Accuracy by condition", COLUMNS, rows, "95 % Wilson intervals; exact McNemar tests on the same problems")],
    )  # fmt: skip
