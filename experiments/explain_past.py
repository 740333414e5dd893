"""§5.3 says that diffusion models can discard past context, because their sinks often lie in the future.

The first tokens of the question, or of what is written of the answer, are hidden from every layer and head, in single
passes over recorded canvases; as many others of the same part stand beside them. And the first tokens are hidden while the
model writes, against others that were drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
from jaxsink_experiments.canvases import Canvas, at, canvases, mean_of, of_their_own, pass_over, ratio
from jaxsink_experiments.masking import NOTE, PLAIN, by_problem, loss_test, rows
from scipy.special import log_softmax

from jaxsink.evals.conditions import Condition, hide
from jaxsink.sinks import MaskSinks
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, experiment, nulls, plots

COUNT = 8  # tokens that are hidden
NEAR = 40  # the other ones are among the tokens up to this position
DRAWS = 2
OLDEST = {"question": "the first tokens of the question", "answer": "the first tokens of the answer"}


def other_tokens(number: int) -> Condition:
    """As many positions that are not among the first, drawn once for all problems."""
    drawn = np.random.default_rng(number).choice(np.arange(COUNT, NEAR), COUNT, replace=False)
    return Condition(MaskSinks(positions=tuple(sorted(drawn.tolist()))))


OTHERS = {f"{COUNT} tokens drawn at random ({number + 1})": other_tokens(number) for number in range(DRAWS)}


def first_of(part: np.ndarray) -> np.ndarray:
    """bool[B,S]: the first tokens of these; none where as many others are not left."""
    return part & (np.cumsum(part, axis=1) <= COUNT) & (part.sum(axis=1) >= 2 * COUNT)[:, None]


def others_of(part: np.ndarray, old: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """bool[B,S]: as many of the rest, at random."""
    among = part & ~old
    rank = np.argsort(np.argsort(np.where(among, draw.random(among.shape), 2.0), axis=1), axis=1)
    return among & (rank < old.sum(axis=1, keepdims=True))


def nats(subject: Subject, canvas: Canvas, tokens: np.ndarray, asked: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """f64[B]: the loss per token of what is asked, with keys [B,S] hidden everywhere."""
    config = subject.model.config
    drop = np.broadcast_to(hidden[None, :, None], (config.layers, len(hidden), config.heads, hidden.shape[1]))

    def of_tokens(logits: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return at(log_softmax(of_their_own(config, logits), axis=-1), tokens[rows])

    log_prob = pass_over(subject, canvas.tokens, canvas.there, drop=drop, read=of_tokens).values
    return ratio(np.where(asked, -log_prob, 0.0).sum(axis=1), asked.sum(axis=1))


@lru_cache(maxsize=2)
def nats_lost(subject: Subject, gallery: Gallery, which: str) -> np.ndarray:
    """f64[2,B]: how much less likely what the model then wrote becomes, per token, with the oldest tokens hidden, and with
    as many other ones; mean over the steps that have so many."""
    draw, lost = np.random.default_rng(0), []
    for canvas in canvases(subject, gallery):
        asked = gallery.committed_at >= (canvas.step if subject.is_diffusion else 0)
        written = canvas.there & (gallery.committed_at >= 0) & (~asked if subject.is_diffusion else True)
        part = written if which == "answer" else canvas.there & (gallery.committed_at < 0)
        old = first_of(part)
        others = [others_of(part, old, draw) for _ in range(DRAWS)]
        loss = partial(nats, subject, canvas, gallery.tokens, asked)
        more = np.stack([loss(old), np.mean([loss(other) for other in others], axis=0)]) - loss(np.zeros_like(old))
        lost.append(np.where(old.any(axis=1), more, np.nan))
    there = ~np.isnan(lost)
    return ratio(np.where(there, lost, 0.0).sum(axis=0), there.sum(axis=0))


def of_oldest(which: str, subject: Subject, gallery: Gallery) -> np.ndarray:
    return nats_lost(subject, gallery, which)[0]


def of_others(which: str, subject: Subject, gallery: Gallery) -> np.ndarray:
    return nats_lost(subject, gallery, which)[1]


def prediction(which: str) -> Prediction:
    return Prediction(
        name=f"past-{which}",
        statistic=f"nats per token lost with {OLDEST[which]} hidden",
        of=partial(of_oldest, which),
        expected="less",
        control=nulls.Control("as many others of it", partial(of_others, which)),
    )


@experiment(
    name="past",
    title="Discarding the past",
    question="Can a diffusion model do without the oldest tokens, rather than without as many others?",
    paper="Diffusion models can discard past context, because their sinks often lie in the future (§5.3, not tested).",
    predictions=tuple(map(prediction, OLDEST)),
    score=lambda subject, study: (PLAIN, hide(COUNT, "first"), *OTHERS.values()),
)
def discarding_the_past(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(OLDEST), sharey=True)
    lines, tests = [], []
    for place, one in enumerate(measured):
        for axis, (which, words) in zip(axes[0], OLDEST.items(), strict=True):
            for number, values in enumerate(nats_lost(one.subject, one.gallery, which)):
                mean, colour, kind = mean_of(values, one.gallery), plots.COLOURS[number], ("oldest", "others")[number]
                x = place + 0.3 * (number - 0.5)
                axis.bar(x, mean.value, 0.28, yerr=mean.reach, color=colour, label=kind, error_kw={"lw": 0.8})
                name = {"model": one.subject.name, "hidden": words if kind == "oldest" else f"others than {words}"}
                lines.append({**name, "nats per token lost": mean.value, **mean.columns})
            axis.set_xticks(range(len(measured)), [each.subject.name for each in measured])
            axis.set(title=words, xlabel="model")
        if one.subject.is_diffusion:
            statistic = f"problems lost with the first {COUNT} tokens hidden"
            tests.append(loss_test(one, one.scores, statistic, hide(COUNT, "first"), expected="less", controls=OTHERS))
    axes[0, 0].set_ylabel(f"nats per token lost with {COUNT} hidden")
    plots.shared_legend(figure)
    answers = Table.of("While it writes", [line for one in measured for line in rows(one)], NOTE)
    return Outcome(
        figure=figure,
        tables=[Table.of("In single passes", lines, NOTE), answers],
        tests=tests,
        values=[line for one in measured for line in by_problem(one)],
    )
