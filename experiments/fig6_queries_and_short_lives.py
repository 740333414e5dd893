"""Fig. 6: masked and unmasked queries sink to different tokens, and some sinks live for one step."""

from __future__ import annotations

import numpy as np

from jaxsink.evals.statistics import bootstrap
from jaxsink.sinks import scale_to_all_queries
from jaxsink.study import Finding, Study, Table, plots
from jaxsink.study.finding import all_of

NAME, TITLE = "fig6", "Who sinks where, and for how long"
QUESTION = "Do masked and unmasked queries have different sinks, and do sinks appear for a single step?"
PAPER = "(a) Masked and unmasked queries sink to different tokens; (b) sinks can live for one step."


def run(study: Study) -> Finding:
    diffusion = [subject for subject in study.subjects if subject.is_diffusion]
    if not diffusion:
        return Finding(
            name=NAME,
            title=TITLE,
            question=QUESTION,
            paper=PAPER,
            found="No diffusion model was studied.",
            verdict="not tested",
        )
    figure, axes = plots.canvas(1, len(diffusion), sharey=True)
    rows, held = [], []
    for axis, subject in zip(axes[0], diffusion, strict=True):
        gallery = study.gallery(subject)
        assert gallery.masked is not None
        split = scale_to_all_queries({"masked": gallery.masked, "unmasked": gallery.scores - gallery.masked})
        top = {kind: np.asarray(scores).argmax(axis=-1) for kind, scores in split.items()}
        compared = np.broadcast_to(gallery.counted[:, None, :, None], top["masked"].shape)
        differ = np.where(compared, top["masked"] != top["unmasked"], False)
        apart = bootstrap(differ.sum(axis=(0, 1, 3)) / compared.sum(axis=(0, 1, 3)))
        tracks = gallery.tracks
        brief = ((tracks.births > 0) & (tracks.longest == 1)).sum(axis=(0, 2, 3)) / np.maximum(
            (tracks.births > 0).sum(axis=(0, 2, 3)), 1
        )
        short = bootstrap(brief)
        lengths = tracks.steps_as_sink[tracks.births > 0] / tracks.births[tracks.births > 0]
        axis.hist(lengths, bins=np.arange(1, len(gallery.scores) + 2) - 0.5, log=lengths.size > 0, rwidth=0.85)
        axis.set(
            title=subject.name, xlabel="length of a stay (steps; mean of each token)", ylabel="number of tokens × heads"
        )
        axis.set_xlim(0, len(gallery.scores) + 1)
        plots.whole_ticks(axis)
        rows.append([subject.name, apart.estimate, apart.low, apart.high, short.estimate, short.low, short.high])
        held += [apart.low > 0.5, short.low > 0]
    axes[0, 0].set_ylim(bottom=0.7)  # on a logarithmic axis, one is to be seen
    columns = ["model", "tops differ", "low", "high", "never longer than one step", "low", "high"]
    words = "; ".join(
        f"{r[0]}: tops differ in {r[1]:.0%} of cases, {r[4]:.0%} of sinks never last two steps" for r in rows
    )
    return Finding(
        name=NAME,
        title=TITLE,
        question=QUESTION,
        paper=PAPER,
        found=words + ".",
        verdict=all_of(*held),
        figures=[study.figure(NAME, figure)],
        tables=[Table("Queries and lives", columns, rows, "95 % intervals over generations")],
    )
