"""LLaDA-8B's early layers are said to have one channel that is much larger than all others for nearly every token, and
that cannot be pruned: without it the model writes loops (arXiv 2605.06366).

Is there such a channel? And what does it cost to take it out, against random channels that are together as large? The
channel is the largest one on average over the first half of the layers; out means that no weight writes it any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxsink_experiments.canvases import mean_of
from jaxsink_experiments.masking import SOLVES
from jaxsink_experiments.pruning import as_large, largest, nats, one_other, pruned, sizes

from jaxsink.evals.conditions import PLAIN
from jaxsink.evals.results import Result
from jaxsink.evals.statistics import wilson
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, Tested, experiment, nulls
from jaxsink.study.finding import Row
from jaxsink.study.predictions import everyone
from jaxsink.study.verdicts import not_testable, paired

TEN = 1.0  # log10: ten times the median channel; LLaDA-8B's is hundreds of times larger
MOST = 0.5  # of the tokens
DRAWS = 4
ANSWERS = 50  # problems that are written with channels taken out, at most
OUT, RANDOM, ONE = "the largest channel", "random channels as large", "one random channel"
LOOPS = "repeated runs of four tokens, with the largest channel taken out"
LOST = "problems lost with the largest channel taken out"


def times_the_median(subject: Subject, gallery: Gallery) -> np.ndarray:
    """f64[B]: log10 of how many times larger the largest channel is than the median one."""
    mean = sizes(subject, gallery)[0]
    return np.log10(mean[:, largest(subject, gallery)] / np.median(mean, axis=1))


def largest_of_tokens(subject: Subject, gallery: Gallery) -> np.ndarray:
    """f64[B]: the share of tokens of which it is the largest."""
    return sizes(subject, gallery)[1][:, largest(subject, gallery)]


def nats_lost(subject: Subject, gallery: Gallery) -> np.ndarray:
    return nats(subject, gallery, (largest(subject, gallery),)) - nats(subject, gallery)


def nats_lost_at_random(subject: Subject, gallery: Gallery) -> np.ndarray:
    drawn = [nats(subject, gallery, as_large(subject, gallery, number)) for number in range(DRAWS)]
    return np.mean(drawn, axis=0) - nats(subject, gallery)


def taken_out(subject: Subject, gallery: Gallery) -> dict[str, tuple[int, ...]]:
    """Channels by the name of what they are."""
    return {
        OUT: (largest(subject, gallery),),
        RANDOM: as_large(subject, gallery, 0),
        ONE: one_other(subject, gallery, 0),
    }


def written(one: Measured, study: Study) -> dict[str, list[Result]]:
    """Answers to the first problems, of the whole model and with channels taken out; none of a model that is not graded."""
    if not one.subject.graded:
        return {}
    subject, found = one.subject, {"nothing": study.answered(one.subject, (PLAIN,), ANSWERS)[PLAIN]}
    for name, channels in taken_out(subject, one.gallery).items():
        without = pruned(subject, channels, f"{subject.name} without {name}")
        found[name] = study.answered(without, (PLAIN,), ANSWERS)[PLAIN]
    return found


def values_of(answers: Sequence[Result], column: str) -> np.ndarray:
    return np.array([float(answer[column]) for answer in answers])


def nothing_to_lose(answers: dict[str, list[Result]]) -> str:
    """Why what it writes cannot be tested, if so."""
    if not answers:
        return "its answers are not graded"
    right = values_of(answers["nothing"], "correct")
    solved = wilson(int(right.sum()), len(right))
    return "" if solved.low > SOLVES else f"it solves {solved.estimate:.0%} of the problems, so it has none to lose"


def tests_of(one: Measured, answers: dict[str, list[Result]], clusters: Sequence[str]) -> list[Tested]:
    """Loops and losses of what it writes, against the whole model and the control."""
    name, why = one.subject.name, nothing_to_lose(answers)
    if why:
        return [not_testable(name, statistic, "greater", why) for statistic in (LOOPS, LOST)]
    right, loops = (
        {key: values_of(answers[key], column) for key in ("nothing", OUT, RANDOM)} for column in ("correct", "repeated")
    )
    gone = {key: right["nothing"] - values for key, values in right.items()}
    return [
        paired(name, statistic, "greater", found[OUT], {"nothing": found["nothing"], RANDOM: found[RANDOM]}, clusters)
        for statistic, found in ((LOOPS, loops), (LOST, gone))
    ]


def lines_of(one: Measured, answers: dict[str, list[Result]]) -> list[dict[str, Any]]:
    """A line for each set of channels that is taken out."""
    subject, gallery, lines = one.subject, one.gallery, []
    whole, mean = nats(subject, gallery), sizes(subject, gallery)[0].mean(axis=0)
    for name, channels in {"nothing": (), **taken_out(subject, gallery)}.items():
        more = mean_of(nats(subject, gallery, channels) - whole, gallery)
        line = {
            "model": subject.name,
            "taken out": name,
            "channels": len(channels),
            "together, in medians": float(mean[list(channels)].sum() / np.median(mean)),
            "nats per token lost": more.value,
            **more.columns,
        }
        if name in answers:
            line |= {
                "solved": float(values_of(answers[name], "correct").mean()),
                "repeated": float(values_of(answers[name], "repeated").mean()),
            }
        lines.append(line)
    return lines


def channel_line(one: Measured) -> dict[str, Any]:
    mean, first = (part.mean(axis=0) for part in sizes(one.subject, one.gallery))
    order = np.argsort(-mean)
    return {
        "model": one.subject.name,
        "channel": int(order[0]),
        "of": len(mean),
        "in medians": float(mean[order[0]] / np.median(mean)),
        "the second": float(mean[order[1]] / np.median(mean)),
        "largest of tokens": float(first[order[0]]),
    }


@experiment(
    name="outlier",
    title="One super-outlier channel",
    question="Does one channel of the early residual stream dwarf all others, and does the model need it?",
    paper="One channel of LLaDA-8B's early residual stream dwarfs all others, and without it the model writes loops "
    "(arXiv 2605.06366).",
    predictions=(
        Prediction(
            name="times",
            statistic="log10 of the largest channel's size over the median channel's, in the first half of the layers",
            of=times_the_median,
            least=TEN,
            bound="ten times",
            about=everyone,
        ),
        Prediction(
            name="most-tokens",
            statistic="share of the tokens of which this channel is the largest",
            of=largest_of_tokens,
            least=MOST,
            bound="half of them",
            about=everyone,
        ),
        Prediction(
            name="pruned",
            statistic="nats per token lost with the largest channel taken out",
            of=nats_lost,
            control=nulls.Control("random channels that are together as large", nats_lost_at_random),
            about=everyone,
        ),
    ),
)
def super_outlier(measured: Sequence[Measured], study: Study) -> Outcome:
    tests, lines, values = [], [], list[Row]()
    for one in measured:
        answers = written(one, study)
        clusters = study.clusters(one.subject)[:ANSWERS]
        tests += tests_of(one, answers, clusters)
        lines += lines_of(one, answers)
        for number, problem in enumerate(clusters if answers else ()):
            line: dict[str, Any] = {
                "model": one.subject.name,
                "statistic": "written",
                "number": number,
                "problem": problem,
            }
            for name, found in answers.items():
                line |= {
                    f"{name}: right": int(found[number]["correct"]),
                    f"{name}: repeated": found[number]["repeated"],
                }
            values.append(line)
    note = f"random channels as large: of {DRAWS} draws, the first; sizes: mean of |x| in the first half of the layers"
    tables = [Table.of("Largest channels", [channel_line(one) for one in measured]), Table.of("Taken out", lines, note)]
    return Outcome(tables=tables, tests=tests, values=values)
