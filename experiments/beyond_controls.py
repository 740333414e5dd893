"""Beyond the paper: is it the sinks that count, or would any keys do? Masking against fair controls.

A partner is a random key that is hidden just as long as its sink; mass-matched keys receive as much attention together.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxsink_experiments.masking import CONTROLS, NOTE, PLAIN, SELECTIONS, loss_test, lost, no_generations, table1
from matplotlib.axes import Axes

from jaxsink.evals.conditions import Condition, hide
from jaxsink.study import Measured, Outcome, Study, Table, Tested, experiment, plots


def against_controls(one: Measured, statistic: str, of: str, condition: Condition) -> Tested:
    """A condition against its partner and mass-matched controls."""
    assert condition.policy is not None
    controls = {f"{select} keys": Condition(condition.policy.control(select)) for select in CONTROLS}
    values = one.scores if of == "problems" else one.losses
    return loss_test(one, values, f"{of} lost {statistic}", condition, controls=controls)


def tests(one: Measured) -> list[Tested]:
    """K = 1, all Eq. 3 sinks, and an autoregressive model's masked in all rows, by answers and by likelihood."""
    rows = None if one.subject.is_diffusion else "all"
    asked = {"with the top key hidden": hide(1), "with all sinks hidden": hide(None, rule="threshold", rows=rows)}
    if not one.subject.is_diffusion:
        asked["with the top key hidden from all rows"] = hide(1, rows="all")
    return [against_controls(one, words, of, c) for of in ("problems", "nats per token") for words, c in asked.items()]


def draw(axis: Axes, one: Measured) -> None:
    """Nats per token lost at K = 1, with intervals, by what is hidden."""
    found = [lost(one.losses[PLAIN], one.losses[hide(1, select)], one.clusters) for select in SELECTIONS]
    reach = [(high - low) / 2 for low, high in (estimate.interval() for estimate in found)]
    axis.barh(
        SELECTIONS, [estimate.value for estimate in found], xerr=reach, color=plots.COLOURS[0], error_kw={"lw": 0.8}
    )
    axis.set(xlabel="nats per token lost at K = 1", title=one.subject.name)
    axis.invert_yaxis()


@experiment(
    name="controls",
    title="Sinks against fair controls",
    question="Does hiding the strongest keys cost more than hiding random ones for as long, or with as much attention?",
    paper="No control was run. Our prediction, if sinks are special: more is lost than with either control.",
    record=no_generations,
    score=table1,
    likelihood=True,
)
def controls(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), sharey=True)
    lines = []
    for axis, one in zip(axes[0], measured, strict=True):
        draw(axis, one)
        for select in SELECTIONS:
            more = lost(one.losses[PLAIN], one.losses[hide(1, select)], one.clusters)
            low, high = more.interval()
            name = {"model": one.subject.name, "hidden at K = 1": select}
            lines.append({**name, "nats per token lost": more.value, "low": low, "high": high})
    axes[0, 0].set_ylabel("keys hidden")
    return Outcome(
        figure=figure,
        tables=[Table.of("Likelihood of the published answers", lines, NOTE)],
        tests=[test for one in measured for test in tests(one)],
    )
