"""Generations for the player: every sequence of one, with its received scores and the texts of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxsink.report.lensed import Words, played_lens
from jaxsink.report.played import PlayedGeneration, to_half
from jaxsink.report.scores import unit_mean, whole_scores
from jaxsink.sampling.generation import Generation


def played_generations(
    generation: Generation,
    texts: Sequence[Sequence[str]],
    name: str,
    model: str,
    condition: str = "",
    words: Words | None = None,
) -> list[PlayedGeneration]:
    """One for each sequence, without its padding and without positions after an early end. words: the texts of token
    ids, for the lens if there is one."""
    scores, masked = whole_scores(generation)
    tokens, committed = np.asarray(generation.tokens), np.asarray(generation.committed_at)
    steps, taken = np.asarray(generation.recorded_steps), np.asarray(generation.recorded_of())
    played = []
    for sequence, filled in enumerate(generation.filled()):
        real, count = np.flatnonzero(filled), max(1, int(taken[sequence]))
        parts = {"scores": scores[:count, :, sequence][..., real]}
        if masked is not None:
            parts["masked"] = masked[:count, :, sequence][..., real]
        played.append(
            PlayedGeneration(
                name=name if len(tokens) == 1 else f"{name}-{sequence + 1}",
                problem=f"Sequence {sequence + 1}" if len(tokens) > 1 else "",
                model=model,
                condition=condition,
                kind="arm" if generation.autoregressive else "dlm",
                prompt_length=int((real < generation.prompt_length).sum()),
                steps=steps[:count],
                committed_at=committed[sequence, real],
                tokens=[texts[sequence][int(position)] for position in real],
                parts={key: to_half(value) for key, value in parts.items()},
                lens=played_lens(generation, sequence, real, count, words),
            )
        )
    return [unit_mean(one) for one in played]
