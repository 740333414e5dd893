"""Beyond the paper: is "ARMs break without their sinks, DLMs do not" a matter of the model, or of whose rows are masked?

In the paper a DLM's step hides a sink from *every row* and computes all rows again; the ARM decodes on a cache that was made
with the sink, which only its *newest row* loses. Here both kinds run under both protocols: the loss of given text and the
answers that are written, with the first token, the top key, the five top keys hidden, or random keys: a partner for each of
them, or as many as receive the same attention.

    jaxsink study protocol --model ./llama-3.1-8b --model ./llada-8b --prompts gsm8k --problems 500 --answers 200 --out p

Losses take one pass per condition where every row is masked, and the answer's length in cached steps where the newest is;
answers with every row masked are dear for an ARM (no cache), so `--answers` limits them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from jaxsink_experiments.masking import (
    NOTE,
    PLAIN,
    has_nothing_to_lose,
    loss_test,
    lost,
    no_generations,
)
from jaxsink_experiments.succession import Moved
from matplotlib.axes import Axes

from jaxsink.evals.conditions import Condition, hide
from jaxsink.evals.outcomes import agreement
from jaxsink.evals.results import Result
from jaxsink.evals.statistics import Estimate, clustered_mean, clustered_share
from jaxsink.sinks.choices import Rows
from jaxsink.study import Measured, Outcome, Study, Subject, Table, Tested, experiment, plots
from jaxsink.study.finding import Row
from jaxsink.study.succession import Succession
from jaxsink.study.verdicts import FEWEST, compare, not_testable

EVERY, FEW = "every row", "newest or decoded rows"
PROTOCOLS = (EVERY, FEW)
HIDDEN = {
    "the first token": (1, "first"),
    "the top key": (1, "top"),
    "5 top keys": (5, "top"),
    "a partner": (1, "partner"),
    "equal mass": (1, "mass"),
    "5 partners": (5, "partner"),
    "equal mass to 5": (5, "mass"),
}
SINKS = ("the first token", "the top key", "5 top keys")
CONTROLS = {"the top key": ("a partner", "equal mass"), "5 top keys": ("5 partners", "equal mass to 5")}


def rows_of(subject: Subject, protocol: str) -> Rows:
    if protocol == EVERY:
        return "all"
    return "decoded" if subject.is_diffusion else "newest"


def condition(subject: Subject, protocol: str, hidden: str) -> Condition:
    """As other experiments have it too, so that nothing is measured twice: each kind's usual rows go without saying."""
    usual = EVERY if subject.is_diffusion else FEW
    k, select = HIDDEN[hidden]
    return hide(k, select, rows=None if protocol == usual else rows_of(subject, protocol))


def conditions(subject: Subject, study: Study) -> tuple[Condition, ...]:
    return (PLAIN, *(condition(subject, *both) for both in product(PROTOCOLS, HIDDEN)))


def common(one: Measured, *asked: Condition) -> Measured | None:
    """The texts that were scored under all these conditions: where steps are dear, the first few. None: under one of them
    none was."""
    if any(each not in one.losses for each in asked):
        return None
    kept = {each: one.losses[each] for each in (PLAIN, *asked)}
    count = min(map(len, kept.values()))
    return replace(one, losses={each: values[:count] for each, values in kept.items()}, clusters=one.clusters[:count])


def protocol_tests(one: Measured) -> Iterator[Tested]:
    """More is lost if few rows lose a sink than if all do; and under either protocol, more than without other keys."""
    for hidden in SINKS:
        every, few = (condition(one.subject, protocol, hidden) for protocol in PROTOCOLS)
        words, part = f"nats per token lost with {hidden} hidden from {FEW}", common(one, every, few)
        if part is not None:
            yield loss_test(part, part.losses, words, few, controls={f"hidden from {EVERY}": every})
    for protocol, (hidden, names) in product(PROTOCOLS, CONTROLS.items()):
        top = condition(one.subject, protocol, hidden)
        controls = {name: condition(one.subject, protocol, name) for name in names}
        part = common(one, top, *controls.values())
        if part is not None:
            words = f"nats per token lost with {hidden}, and not with others, hidden from {protocol}"
            yield loss_test(part, part.losses, words, top, controls=controls)


def kind_tests(measured: Sequence[Measured]) -> Iterator[Tested]:
    """The paper: an autoregressive model loses more than a diffusion model. Under the same protocol, and under its own."""
    arms = [one for one in measured if not one.subject.is_diffusion]
    dlms = [one for one in measured if one.subject.is_diffusion]
    for arm, dlm in product(arms, dlms):
        for of_arm, of_dlm in ((EVERY, EVERY), (FEW, FEW), (FEW, EVERY)):
            yield kind_test(arm, dlm, of_arm, of_dlm)


def kind_test(arm: Measured, dlm: Measured, of_arm: str, of_dlm: str) -> Tested:
    """What the top key costs the one more than the other, problem by problem."""
    same = f"both {of_arm}" if of_arm == of_dlm else "as in the paper"
    statistic = f"nats per token lost with the top key hidden, {same}"
    (mine, clusters), (theirs, others) = added(arm, of_arm), added(dlm, of_dlm)
    count = min(len(mine), len(theirs))
    why = has_nothing_to_lose(arm, arm.losses) or has_nothing_to_lose(dlm, dlm.losses)
    if not why and (count == 0 or list(clusters[:count]) != list(others[:count])):
        why = "the two models were not given the same problems"
    if why:
        return not_testable(arm.subject.name, statistic, "greater", why)
    mine, theirs, clusters = mine[:count], theirs[:count], clusters[:count]
    value, difference = clustered_mean(mine, clusters), clustered_mean(mine - theirs, clusters)
    low, high = value.interval()
    comparison = compare(dlm.subject.name, float(theirs.mean()), difference, "greater")
    total = len(set(clusters))
    return Tested(arm.subject.name, statistic, "greater", value.value, low, high, total, comparisons=[comparison])


def added(one: Measured, protocol: str) -> tuple[np.ndarray, Sequence[str]]:
    """(nats per token that the top key costs, text by text; what each text belongs to)."""
    top = condition(one.subject, protocol, "the top key")
    part = common(one, top)
    return (np.zeros(0), ()) if part is None else (part.losses[top] - part.losses[PLAIN], part.clusters)


def changed(plain: Sequence[Result], hidden: Sequence[Result]) -> np.ndarray:
    """f64[N]: how far each text is from the one that the unmasked model writes, 0 … 1."""
    return np.array([1 - agreement(a["text"], b["text"]) for a, b in zip(plain, hidden, strict=True)])


def answer_tests(one: Measured, clusters: Sequence[str]) -> Iterator[Tested]:
    """Texts change more, and more problems are lost, if few rows lose a sink than if all do."""
    if not one.answers:
        return
    texts = {PLAIN: np.zeros(len(clusters))}
    texts |= {c: changed(one.answers[PLAIN], lines) for c, lines in one.answers.items() if c != PLAIN}
    asked = replace(one, clusters=clusters)
    for hidden in SINKS:
        every, few = (condition(one.subject, protocol, hidden) for protocol in PROTOCOLS)
        words, controls = f"with {hidden} hidden from {FEW}", {f"hidden from {EVERY}": every}
        statistic = f"change of the written text {words}"
        if len(set(clusters)) < FEWEST:
            yield not_testable(one.subject.name, statistic, "greater", f"{len(set(clusters))} problems are too few")
            continue
        yield loss_test(asked, texts, statistic, few, controls=controls)
        if one.subject.graded:
            right = {c: np.array([bool(line["correct"]) for line in lines]) for c, lines in one.answers.items()}
            yield loss_test(asked, right, f"problems lost {words}", few, controls=controls)


def loss_lines(one: Measured) -> Iterator[dict[str, Any]]:
    """What each choice of keys costs under both protocols, and how much more under the second."""
    for hidden in HIDDEN if one.losses else ():
        line: dict[str, Any] = {"model": one.subject.name, "hidden": hidden}
        line |= {"texts": len(one.clusters), "nothing hidden": float(one.losses[PLAIN].mean())}
        every, few = (condition(one.subject, protocol, hidden) for protocol in PROTOCOLS)
        for name, pair in ((EVERY, (PLAIN, every)), (FEW, (PLAIN, few)), ("difference", (every, few))):
            part = common(one, *pair)
            if part is None:
                continue
            found = lost(part.losses[pair[0]], part.losses[pair[1]], part.clusters)
            low, high = found.interval()
            line |= {
                name: found.value,
                f"{name}: low": low,
                f"{name}: high": high,
                f"{name}: texts": len(part.clusters),
            }
        yield line


def answer_lines(one: Measured, clusters: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The written answers under every condition, with intervals over distinct problems."""
    cases = [("nothing", "", PLAIN)] if one.answers else []
    cases += [(h, p, condition(one.subject, p, h)) for h, p in product(HIDDEN, PROTOCOLS)] if one.answers else []
    for hidden, protocol, case in cases:
        lines = one.answers[case]
        line: dict[str, Any] = {"model": one.subject.name, "hidden": hidden, "from": protocol, "answers": len(lines)}
        if one.subject.graded:
            line |= with_interval("solved", clustered_share([bool(each["correct"]) for each in lines], clusters))
        line |= with_interval("change of text", clustered_mean(changed(one.answers[PLAIN], lines), clusters))
        line |= with_interval("repeated", clustered_mean([each["repeated"] for each in lines], clusters))
        if all(each["unfinished"] is not None for each in lines):
            line |= with_interval("unfinished", clustered_share([bool(each["unfinished"]) for each in lines], clusters))
        yield line


def with_interval(name: str, share: Estimate) -> dict[str, float]:
    """Of a share, which cannot leave 0 … 1."""
    low, high = share.interval()
    return {name: share.value, f"{name}: low": max(low, 0.0), f"{name}: high": min(high, 1.0)}


def by_problem(one: Measured, clusters: Sequence[str]) -> list[Row]:
    """What each text lost, and how each answer changed, under every condition."""
    lines = []
    for number, cluster in enumerate(one.clusters):
        line: dict[str, Any] = {"model": one.subject.name, "number": number, "problem": cluster}
        line |= {f"{c} (nats)": float(values[number]) for c, values in one.losses.items() if number < len(values)}
        if one.answers and number < len(clusters):
            plain = one.answers[PLAIN][number : number + 1]
            texts = {c: changed(plain, lines[number : number + 1])[0] for c, lines in one.answers.items() if c != PLAIN}
            line |= {f"{c} (change)": float(value) for c, value in texts.items()}
        lines.append(line)
    return lines


def draw(axis: Axes, one: Measured) -> None:
    """Nats per token lost under both protocols, with intervals."""
    lines = list(loss_lines(one))
    for number, protocol in enumerate(PROTOCOLS):
        y = np.arange(len(lines)) + 0.18 * (2 * number - 1)
        x = [line.get(protocol, np.nan) for line in lines]
        reach = [line.get(f"{protocol}: high", np.nan) - line.get(protocol, np.nan) for line in lines]
        axis.errorbar(
            x, y, xerr=reach, fmt=plots.MARKERS[number], color=plots.COLOURS[number], label=protocol, capsize=2
        )
    axis.axvline(0, color=plots.GUIDE, linewidth=0.6)
    axis.set(xlabel="nats per token lost", title=one.subject.name)
    axis.set_yticks(range(len(lines)), [line["hidden"] for line in lines])
    axis.invert_yaxis()


@experiment(
    name="protocol",
    title="Every row, or the newest",
    question="Is it the kind of model that breaks without its sinks, or the protocol: whose rows lose them?",
    paper="Table 1 hides sinks from every row of a diffusion model, and from the newest row of an autoregressive one. Our "
    "prediction: for either kind, hiding a sink from few rows costs more than hiding it from all; the paper's contrast "
    "then says nothing of the kind of model.",
    record=no_generations,
    score=conditions,
    likelihood=True,
    texts=True,
    more=lambda subject: [Succession(rows_of(subject, protocol)) for protocol in PROTOCOLS],
)
def protocols(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), sharey=True)
    for axis, one in zip(axes[0], measured, strict=True):
        draw(axis, one)
    axes[0, 0].set_ylabel("keys hidden")
    plots.shared_legend(figure)
    moved = [Moved.of(study, one.subject, rows_of(one.subject, p)) for one in measured for p in PROTOCOLS]
    asked = [study.clusters(one.subject)[: len(one.answers.get(PLAIN, ()))] for one in measured]
    tests = [test for one in measured for test in protocol_tests(one)] if all(one.losses for one in measured) else []
    tests += kind_tests(measured) if tests else []
    tests += [test for one, clusters in zip(measured, asked, strict=True) for test in answer_tests(one, clusters)]
    written = [line for one, clusters in zip(measured, asked, strict=True) for line in answer_lines(one, clusters)]
    return Outcome(
        figure=figure,
        tables=[
            Table.of("Loss of given text", [line for one in measured for line in loss_lines(one)], NOTE),
            Table.of("Written answers", written),
            Table.of("Where the attention goes when the first token is hidden", [one.line() for one in moved], NOTE),
            Table.of("By layer", [line for one in moved for line in one.by_layer()]),
            Table.of("By step", [line for one in moved for line in one.by_step()]),
        ],
        tests=tests,
        values=[line for one, clusters in zip(measured, asked, strict=True) for line in by_problem(one, clusters)],
    )
