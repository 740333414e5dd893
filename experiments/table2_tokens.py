"""Table 2: which tokens are sinks most often, beside how often they occur at all."""

from __future__ import annotations

import numpy as np

from jaxsink.evals import paper
from jaxsink.sinks import frequency, fresh, top_tokens
from jaxsink.sinks.tokens import KINDS
from jaxsink.study import Finding, Study, Table
from jaxsink.study.finding import all_of

NAME, TITLE = "table2", "Tokens that sink"
QUESTION = "Are sinks on structure (line breaks, punctuation, masks) rather than on words?"


def most_frequent(model: str, count: int) -> str:
    """The first lines of the paper's Table 2."""
    return ", ".join(
        f"{token if token.isalpha() else repr(token)} {share:.2f}".replace(" 0.", " .")
        for token, share in paper.TABLE2[model][:count]
    )


PAPER = (
    f"LLaDA: {most_frequent('llada-8b-instruct', 3)}; Dream: {most_frequent('dream-7b-instruct', 2)}; "
    f"MMaDA: {most_frequent('mmada-8b-mixcot', 2)}."
)
STRUCTURE = ("mask", "bos", "eos", "newline", "space", "punctuation", "special", "template")


def run(study: Study) -> Finding:
    by_token, by_kind, words, held = [], [], [], []
    for subject in study.subjects:
        gallery = study.gallery(subject)
        steps = np.arange(len(gallery.scores))
        found = frequency(
            gallery.tracks.sinks,
            gallery.canvas,
            gallery.mask,
            subject.model.config.vocab,
            subject.kinds,
            fresh(gallery.committed_at, steps),
            gallery.taken,
        )
        for line in top_tokens(found, subject.tokenizer):
            by_token.append([subject.name, line["token"], line["share"], line["base"], line["lift"]])
        rates = found.by_kind
        assert rates is not None and found.freshly_committed is not None
        for kind, share, base, lift in zip(KINDS, rates.share, rates.base, rates.lift, strict=True):
            if base > 0:
                by_kind.append([subject.name, kind, float(share), float(base), float(lift)])
        new = found.freshly_committed
        by_kind.append([subject.name, "freshly committed", float(new.share), float(new.base), float(new.lift)])
        chosen = [KINDS.index(kind) for kind in STRUCTURE]
        share, base = np.nansum(rates.share[chosen]), np.nansum(rates.base[chosen])
        words.append(f"{subject.name} {share:.0%} of sinks (base rate {base:.0%})")
        held += [bool(share > 0.5 and share > base)] if subject.is_diffusion else []
    columns = ["model", "token", "share of sinks", "base rate", "lift"]
    return Finding(
        name=NAME,
        title=TITLE,
        question=QUESTION,
        paper=PAPER,
        found=f"On structural tokens: {', '.join(words)}.",
        verdict=all_of(*held) if held else "not tested",
        figures=[],
        tables=[
            Table("The five most frequent sink tokens", columns, by_token),
            Table("By kind of token", ["model", "kind", *columns[2:]], by_kind, "freshly committed overlaps the kinds"),
        ],
    )
