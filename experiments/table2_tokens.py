"""Table 2: which tokens are sinks most often, beside how often they occur at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxsink.evals import paper
from jaxsink.sinks import frequency, fresh, top_tokens
from jaxsink.sinks.tokens import KINDS, Frequency
from jaxsink.study import Gallery, Measured, Outcome, Prediction, Study, Subject, Table, experiment, nulls


def most_frequent(model: str, count: int) -> str:
    """The first lines of the paper's Table 2."""
    return ", ".join(
        f"{token if token.isalpha() else repr(token)} {share:.2f}".replace(" 0.", " .")
        for token, share in paper.TABLE2[model][:count]
    )


CLAIM = (
    f"LLaDA: {most_frequent('llada-8b-instruct', 3)}; Dream: {most_frequent('dream-7b-instruct', 2)}; "
    f"MMaDA: {most_frequent('mmada-8b-mixcot', 2)}."
)
STRUCTURE = ("mask", "bos", "eos", "newline", "space", "punctuation", "special", "template")


def frequencies(one: Measured) -> Frequency:
    """How often each token and each kind of token is a sink, and occurs."""
    gallery = one.gallery
    return frequency(
        gallery.tracks.sinks,
        gallery.canvas,
        gallery.mask,
        one.subject.model.config.vocab,
        one.subject.kinds,
        fresh(gallery.committed_at, np.arange(len(gallery.scores))),
        gallery.taken,
    )


def on_structure(subject: Subject, gallery: Gallery) -> np.ndarray:
    """Share of sinks on structural tokens."""
    kinds = subject.kinds[np.maximum(gallery.canvas, 0)]
    structural = np.isin(kinds, [KINDS.index(kind) for kind in STRUCTURE]) & (gallery.canvas >= 0)
    sinks = (gallery.tracks.sinks & gallery.counted[:, None, :, None, None]).sum(axis=(1, 3))  # [T,B,S]
    total = sinks.sum(axis=(0, 2))
    return np.where(total > 0, (sinks * structural).sum(axis=(0, 2)) / np.maximum(total, 1), np.nan)


def line(one: Measured, name: str, value: str, share: float, base: float, lift: float) -> dict[str, Any]:
    rates = {"share of sinks": float(share), "base rate": float(base), "lift": float(lift)}
    return {"model": one.subject.name, name: value, **rates}


@experiment(
    name="table2",
    title="Tokens that sink",
    question="Are sinks on structure (line breaks, punctuation, masks) more often than structure occurs?",
    paper=CLAIM,
    predictions=(
        Prediction(
            name="structure",
            statistic="share of sinks on structural tokens",
            of=on_structure,
            shuffle=nulls.TOKENS,
        ),
    ),
)
def tokens_that_sink(measured: Sequence[Measured], study: Study) -> Outcome:
    by_token, by_kind = [], []
    for one in measured:
        found = frequencies(one)
        rates, new = found.by_kind, found.freshly_committed
        assert rates is not None and new is not None
        for token in top_tokens(found, one.subject.tokenizer):
            by_token.append(line(one, "token", token["token"], token["share"], token["base"], token["lift"]))
        for kind, share, base, lift in zip(KINDS, rates.share, rates.base, rates.lift, strict=True):
            by_kind += [line(one, "kind", kind, share, base, lift)] if base > 0 else []
        by_kind.append(line(one, "kind", "freshly committed", new.share, new.base, new.lift))
    return Outcome(
        tables=[
            Table.of("The five most frequent sink tokens", by_token),
            Table.of("By kind of token", by_kind, "freshly committed overlaps the kinds"),
        ]
    )
