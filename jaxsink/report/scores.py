"""Received scores in whatever a generation recorded: one array, the parts by kind of query, or several recorders by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from jaxsink.errors import JaxsinkError
from jaxsink.report.played import PlayedGeneration, to_half
from jaxsink.sampling.generation import Generation
from jaxsink.sampling.record_file import flatten

NAMES = ("received", "scores")  # what a whole record is called where there are several
KINDS = ("masked", "unmasked", "prompt")  # of received_by_query
OTHERS = ("key_norm", "value_norm")  # as large, but not attention
ADVICE = "record jaxsink.record.received() (--record-what received) for the page"


def whole_scores(generation: Generation) -> tuple[np.ndarray, np.ndarray | None]:
    """f32[T,L,B,H,S]: attention received from all queries, and from masked ones if they were told apart."""
    if generation.record is None:
        raise JaxsinkError(f"nothing was recorded, so there is no attention to show; {ADVICE}.")
    leaves = flatten(generation.record)
    steps, (batch, length) = len(generation.recorded_steps), np.shape(generation.tokens)
    fitting = {
        name: leaf
        for name, leaf in leaves.items()
        if leaf.ndim == 5
        and (leaf.shape[0], leaf.shape[2], leaf.shape[4]) == (steps, batch, length)
        and name.rpartition(".")[2] not in OTHERS
    }
    if not fitting:
        shapes = ", ".join(f"{name or 'an array'} {list(leaf.shape)}" for name, leaf in leaves.items())
        raise JaxsinkError(
            f"the record holds {shapes}, and no scores of every key [steps, layers, sequences, heads, positions]; {ADVICE}."
        )
    split = next((name.rpartition("masked")[0] for name in fitting if is_split(name, fitting)), None)
    masked = None if split is None else fitting[f"{split}masked"]
    single = {name: leaf for name, leaf in fitting.items() if split is None or name not in parts_of(split)}
    named = [name for name in single if name.rpartition(".")[2] in NAMES]
    if named or (split is None and len(single) == 1):
        return single[named[0] if named else next(iter(single))], masked
    if split is not None:
        return sum(fitting[name] for name in parts_of(split) if name in fitting), masked  # type: ignore[return-value]
    raise JaxsinkError(
        f'the record holds several arrays of scores ({", ".join(single)}); call the one to show "{NAMES[0]}".'
    )


def is_split(name: str, leaves: Mapping[str, np.ndarray]) -> bool:
    prefix, _, rest = name.rpartition("masked")
    return not rest and not prefix.endswith("un") and f"{prefix}unmasked" in leaves


def parts_of(split: str) -> list[str]:
    return [f"{split}{kind}" for kind in KINDS]


def unit_mean(generation: PlayedGeneration) -> PlayedGeneration:
    """Scores whose mean over tokens is 1.

    They are if all queries were recorded. An autoregressive one usually holds the newest token's attention alone, which
    adds up to 1: it is multiplied by the number of tokens, so that it reads like the rest.
    """
    scores, there = generation.parts["scores"].astype(np.float32), generation.exists()
    if generation.kind == "dlm" or scores.sum(-1).max() > 1.01:
        return generation
    factor = there.sum(-1)[:, None, None, None]
    return replace(
        generation, parts={name: to_half(part.astype(np.float32) * factor) for name, part in generation.parts.items()}
    )
