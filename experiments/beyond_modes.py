"""Beyond the paper: the same weights under three attention patterns. Do sinks move when nothing but the pattern changes, and
is hiding them harmful in one mode and not in the other?

The texts are those that the model wrote itself. One set of weights reads them causally, in both directions, and in blocks;
a model whose training knows more than one mode (Nemotron-Labs-Diffusion) is the ideal subject, and any other may be asked.

    jaxsink study modes --model ./nemotron-labs-diffusion-8b --prompts gsm8k --generations 200 --out modes

Each mode predicts the same tokens of the response, half of them, in the way in which it predicts them best: at their own
masked position, from the query before it, or (causal) as the next token of the text that stands there. Time: some fifteen
passes over each text, and as many for every untrained model that it is held against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from jaxsink_experiments.canvases import Mean, at, mean_of, one_key, pass_over, random_key, ratio
from jaxsink_experiments.masking import KNOWS
from matplotlib.axes import Axes

import jaxsink
from jaxsink.nn.config import AttentionKind
from jaxsink.sinks import Threshold, detect
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, experiment, nulls, plots
from jaxsink.study.predictions import everyone

BLOCK = 8  # of block-causal attention, where the model has no block of its own
MODES: tuple[AttentionKind, ...] = ("causal", "bidirectional", "block_causal")
NEXT, OWN, LEFT = "next token", "own position", "query before"
HIDDEN = ("the top key", "the first token", "a random key")
RECEIVED = jaxsink.record.received()


class Look(NamedTuple):
    """What one mode makes of all texts."""

    fair: np.ndarray  # f64[L,B,H,S]: attention received, where uniform attention gives every key 1
    sinks: np.ndarray  # bool[L,B,H,S] by Eq. 3
    top: np.ndarray  # i64[L,B,H]: the strongest key
    has_sink: np.ndarray  # bool[L,B,H]: and it is a sink


class Losses(NamedTuple):
    """What one mode predicts, text by text."""

    reading: str  # the way in which it predicts best
    plain: np.ndarray  # f64[B]: nats per token
    hidden: dict[str, np.ndarray]  # f64[B] each, with these keys hidden from every query

    def added(self, hidden: str) -> np.ndarray:
        return self.hidden[hidden] - self.plain


def block_of(subject: Subject) -> int:
    config = subject.model.config
    return config.block_length or config.usual_block or BLOCK


def in_mode(subject: Subject, mode: AttentionKind) -> Subject:
    block = block_of(subject) if mode == "block_causal" else None
    return replace(subject, model=subject.model.with_attention(mode, block))


def opposite(subject: Subject) -> AttentionKind:
    """Causal for a model that looks both ways, and the other way round."""
    return "bidirectional" if subject.model.config.attention == "causal" else "causal"


def own(subject: Subject) -> AttentionKind:
    return subject.model.config.attention


def uniform(mode: AttentionKind, there: np.ndarray, block: int) -> np.ndarray:
    """f64[B,S]: what keys receive if every query spreads its attention evenly over those that it sees."""
    number = np.cumsum(there, axis=1) - 1
    query, key = number[:, :, None], number[:, None, :]
    sees = {"causal": key <= query, "bidirectional": key >= 0, "block_causal": key // block <= query // block}[mode]
    sees = sees & there[:, :, None] & there[:, None, :]
    return (sees / np.maximum(sees.sum(axis=-1, keepdims=True), 1)).sum(axis=1)


def look_at(subject: Subject, tokens: np.ndarray, there: np.ndarray, mode: AttentionKind, eps: float) -> Look:
    received = pass_over(in_mode(subject, mode), tokens, there, record=RECEIVED).record
    even = uniform(mode, there, block_of(subject))[None, :, None]
    fair = np.where(there[None, :, None], received / np.where(even > 0, even, 1.0), 0.0)
    sinks = np.asarray(detect(fair, Threshold(eps), there))
    top = fair.argmax(axis=-1)
    return Look(fair, sinks, top, at(sinks, top))


@lru_cache(maxsize=8)
def look(subject: Subject, gallery: Gallery, mode: AttentionKind) -> Look:
    """On the texts as they stand in the end."""
    return look_at(subject, np.maximum(gallery.tokens, 0), gallery.mask, mode, gallery.eps)


@lru_cache(maxsize=2)
def look_changed(subject: Subject, gallery: Gallery) -> Look:
    """In the model's own mode, with one token of each text replaced by another of the same text."""
    draw, rows = np.random.default_rng(0), np.arange(len(gallery.tokens))
    tokens = np.maximum(gallery.tokens, 0)
    changed = tokens.copy()
    changed[rows, random_key(gallery.mask, draw)] = tokens[rows, random_key(gallery.mask, draw)]
    return look_at(subject, changed, gallery.mask, own(subject), gallery.eps)


def moved(before: Look, after: Look) -> np.ndarray:
    """f64[B]: of the heads whose strongest key is a sink, those in which it is another key now."""
    there = before.has_sink
    return ratio((there & (after.top != before.top)).sum(axis=(0, 2)), there.sum(axis=(0, 2)))


def moves_with(mode: Callable[[Subject], AttentionKind]) -> nulls.Statistic:
    """How many sinks move when this mode takes the place of the model's own."""

    def of(subject: Subject, gallery: Gallery) -> np.ndarray:
        return moved(look(subject, gallery, own(subject)), look(subject, gallery, mode(subject)))

    return of


def moves_by_chance(subject: Subject, gallery: Gallery) -> np.ndarray:
    return moved(look(subject, gallery, own(subject)), look_changed(subject, gallery))


def first_score(mode: AttentionKind) -> nulls.Statistic:
    """Attention on the first token, in shares of a key's fair one: mean over layers and heads."""

    def of(subject: Subject, gallery: Gallery) -> np.ndarray:
        first = np.argmax(gallery.mask, axis=1)
        fair = look(subject, gallery, mode).fair
        return at(fair, np.broadcast_to(first[None, :, None], fair.shape[:-1])).mean(axis=(0, 2))

    return of


def asked(gallery: Gallery, eos_ids: Sequence[int]) -> np.ndarray:
    """bool[B,S]: half of the response's tokens, up to its end; one at least."""
    written = gallery.mask & (gallery.committed_at >= 0)
    ended = written & np.isin(gallery.tokens, eos_ids)
    written &= (np.cumsum(ended, axis=1) - ended) == 0
    draw = np.where(written, np.random.default_rng(0).random(written.shape), 2.0)
    return written & ((draw < 0.5) | (draw == draw.min(axis=1, keepdims=True)))


def loss_of(
    subject: Subject, gallery: Gallery, wanted: np.ndarray, reading: str, drop: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(f64[B]: nats per wanted token; what keys receive). subject: in the mode that is asked."""
    config, tokens = subject.model.config, np.maximum(gallery.tokens, 0)
    mask = next(one for one in (config.mask_id, config.pad_id, *config.eos_ids, 0) if one is not None)
    canvas = tokens if reading == NEXT else np.where(wanted, mask, tokens)

    def read(logits: np.ndarray, rows: np.ndarray) -> np.ndarray:
        logits = logits.astype(np.float64)
        logits = logits if reading == OWN else np.concatenate([logits[:, :1], logits[:, :-1]], axis=1)
        best = logits.max(axis=-1)
        nats = best + np.log(np.exp(logits - best[..., None]).sum(axis=-1)) - at(logits, tokens[rows])
        return np.where(wanted[rows], nats, 0.0).sum(axis=1) / np.maximum(wanted[rows].sum(axis=1), 1)

    found = pass_over(subject, canvas, gallery.mask, record=RECEIVED, drop=drop, read=read)
    return found.values, found.record


@lru_cache(maxsize=8)
def losses(subject: Subject, gallery: Gallery, mode: AttentionKind) -> Losses:
    model, there = in_mode(subject, mode), gallery.mask
    wanted = asked(gallery, subject.model.config.eos_ids)
    ways = (NEXT, OWN, LEFT) if mode == "causal" else (OWN, LEFT)
    tried = {way: loss_of(model, gallery, wanted, way) for way in ways}
    reading = min(tried, key=lambda way: tried[way][0].mean())
    plain, received = tried[reading]
    even = uniform(mode, there, block_of(subject))[None, :, None]
    fair = np.where(there[None, :, None], received / np.where(even > 0, even, 1.0), -1.0)
    draw, length = np.random.default_rng(1), there.shape[1]
    top, every = fair.argmax(axis=-1), np.broadcast_to(there[None, :, None], fair.shape)
    keys = {
        "the top key": top,
        "the first token": np.broadcast_to(np.argmax(there, axis=1)[None, :, None], top.shape),
        "a random key": np.argmax(np.where(every & ~one_key(top, length), draw.random(fair.shape), -1.0), axis=-1),
    }
    hidden = {name: loss_of(model, gallery, wanted, reading, one_key(key, length))[0] for name, key in keys.items()}
    return Losses(reading, plain, hidden)


def knows(found: Losses, subject: Subject) -> bool:
    """A mode that predicts no better than chance has nothing to lose."""
    return bool(np.log(subject.model.config.vocab) - found.plain.mean() > KNOWS)


def lost(mode: Callable[[Subject], AttentionKind], hidden: str) -> nulls.Statistic:
    """Nats per token lost in this mode with these keys hidden from every query."""

    def of(subject: Subject, gallery: Gallery) -> np.ndarray:
        found = losses(subject, gallery, mode(subject))
        return found.added(hidden) if knows(found, subject) else np.full(len(gallery.tokens), np.nan)

    return of


def harm(mode: AttentionKind) -> nulls.Statistic:
    """What the top key costs more than a random one."""

    def of(subject: Subject, gallery: Gallery) -> np.ndarray:
        top, other = (lost(lambda _: mode, hidden)(subject, gallery) for hidden in ("the top key", "a random key"))
        return top - other

    return of


def harms(name: str, words: str, mode: Callable[[Subject], AttentionKind]) -> Prediction:
    return Prediction(
        name=name,
        statistic=f"nats per token lost with the strongest key of each head hidden, {words}",
        of=lost(mode, "the top key"),
        control=nulls.Control("a random key hidden", lost(mode, "a random key")),
        about=everyone,
    )


def lines(one: Measured) -> Iterator[dict[str, Any]]:
    """Every mode of one model."""
    subject, gallery = one.subject, one.gallery
    for mode in MODES:
        seen, found = look(subject, gallery, mode), losses(subject, gallery, mode)
        line: dict[str, Any] = {
            "model": subject.name,
            "attention": mode + (" (its own)" if mode == own(subject) else ""),
        }
        line |= {"heads with a sink": float(seen.has_sink.mean()), "sinks per head": float(seen.sinks.sum(-1).mean())}
        line["strongest key is the first token"] = float(
            (seen.top == np.argmax(gallery.mask, axis=1)[None, :, None]).mean()
        )
        line["score of the first token"] = mean_of(first_score(mode)(subject, gallery), gallery).value
        line["sinks that moved"] = mean_of(moves_with(lambda _, m=mode: m)(subject, gallery), gallery).value
        line |= {"predicts by": found.reading, "nats per token": float(found.plain.mean())}
        for hidden in HIDDEN:
            mean = mean_of(found.added(hidden), gallery)
            line |= {f"lost: {hidden}": mean.value, f"{hidden}: low": mean.low, f"{hidden}: high": mean.high}
        yield line


def draw(axis: Axes, one: Measured) -> None:
    """Nats lost in each mode."""
    for number, hidden in enumerate(HIDDEN):
        means: list[Mean] = [
            mean_of(losses(one.subject, one.gallery, mode).added(hidden), one.gallery) for mode in MODES
        ]
        place = np.arange(len(MODES)) + 0.25 * (number - 1)
        reach = [mean.reach for mean in means]
        axis.bar(place, [mean.value for mean in means], 0.24, yerr=reach, label=hidden, error_kw={"lw": 0.8})
    axis.axhline(0, color=plots.GUIDE, linewidth=0.6)
    axis.set_xticks(range(len(MODES)), [mode.replace("_", "-") for mode in MODES])
    axis.set(title=one.subject.name, xlabel="attention", ylabel="nats per token lost")


@experiment(
    name="modes",
    title="The same weights, three modes",
    question="Do sinks move when only the attention pattern changes, and is hiding them harmful in one mode and not in the "
    "other?",
    paper="Not asked. Our prediction: sinks belong to the pattern, so they move with it; under causal attention they sit on "
    "the first token, and hiding them costs more there.",
    predictions=(
        Prediction(
            name="modes-move",
            statistic="share of sinks that are on another key under the opposite pattern (causal or bidirectional)",
            of=moves_with(opposite),
            control=nulls.Control("its own pattern, one token changed", moves_by_chance),
            about=everyone,
        ),
        Prediction(
            name="modes-blocks",
            statistic="share of sinks that are on another key under block-causal attention",
            of=moves_with(lambda subject: "block_causal"),
            control=nulls.Control("its own pattern, one token changed", moves_by_chance),
            about=lambda subject: own(subject) != "block_causal",
        ),
        Prediction(
            name="modes-first",
            statistic="attention on the first token under causal attention, in shares of a key's fair one",
            of=first_score("causal"),
            control=nulls.Control("the same weights, bidirectional", first_score("bidirectional")),
            about=everyone,
        ),
        harms("modes-own", "in the model's own mode", own),
        harms("modes-opposite", "in the opposite mode", opposite),
        Prediction(
            name="modes-harm",
            statistic="nats per token that the strongest key costs more than a random one, causal",
            of=harm("causal"),
            control=nulls.Control("the same weights, bidirectional", harm("bidirectional")),
            about=everyone,
        ),
    ),
)
def modes(measured: Sequence[Measured], study: Study) -> Outcome:
    figure, axes = plots.canvas(1, len(measured), sharey=False)
    for axis, one in zip(axes[0], measured, strict=True):
        draw(axis, one)
    plots.shared_legend(figure)
    note = (
        "texts that the model wrote in its own mode; losses of half the response's tokens, keys hidden from every query"
    )
    return Outcome(figure=figure, tables=[Table.of("Modes", [line for one in measured for line in lines(one)], note)])
