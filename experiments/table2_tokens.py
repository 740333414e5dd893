"""Table 2: which tokens are sinks most often, beside how often they occur at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxsink.evals import paper
from jaxsink.sinks import frequency, fresh, top_tokens
from jaxsink.sinks.tokens import KINDS, Frequency
from jaxsink.study import Measured, Outcome, Study, Table, experiment
from jaxsink.study.finding import all_of


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


def line(one: Measured, name: str, value: str, share: float, base: float, lift: float) -> dict[str, Any]:
    rates = {"share of sinks": float(share), "base rate": float(base), "lift": float(lift)}
    return {"model": one.subject.name, name: value, **rates}


@experiment(
    name="table2",
    title="Tokens that sink",
    question="Are sinks on structure (line breaks, punctuation, masks) rather than on words?",
    paper=CLAIM,
    statistic="share of sinks on structural tokens",
    null="the base rate of structural tokens, and one half",
)
def tokens_that_sink(measured: Sequence[Measured], study: Study) -> Outcome:
    by_token, by_kind, words, held = [], [], [], []
    for one in measured:
        found = frequencies(one)
        rates, new = found.by_kind, found.freshly_committed
        assert rates is not None and new is not None
        for token in top_tokens(found, one.subject.tokenizer):
            by_token.append(line(one, "token", token["token"], token["share"], token["base"], token["lift"]))
        for kind, share, base, lift in zip(KINDS, rates.share, rates.base, rates.lift, strict=True):
            by_kind += [line(one, "kind", kind, share, base, lift)] if base > 0 else []
        by_kind.append(line(one, "kind", "freshly committed", new.share, new.base, new.lift))
        chosen = [KINDS.index(kind) for kind in STRUCTURE]
        share, base = np.nansum(rates.share[chosen]), np.nansum(rates.base[chosen])
        words.append(f"{one.subject.name} {share:.0%} of sinks (base rate {base:.0%})")
        held += [bool(share > 0.5 and share > base)] if one.subject.is_diffusion else []
    return Outcome(
        found=f"On structural tokens: {', '.join(words)}.",
        verdict=all_of(*held) if held else "not tested",
        tables=[
            Table.of("The five most frequent sink tokens", by_token),
            Table.of("By kind of token", by_kind, "freshly committed overlaps the kinds"),
        ],
    )
