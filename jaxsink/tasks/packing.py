"""Packed text: documents joined to one stream of tokens, from which training takes windows at random places."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from jaxsink.errors import JaxsinkError
from jaxsink.tasks.batches import Batch

VALIDATION = 0.1  # the part of a stream, at its end, that training never sees


@dataclass(frozen=True)
class Stream:
    """Token ids of all documents, one after another. first: the token that every window begins with, if any."""

    tokens: Int[np.ndarray, " N"]
    first: int | None = None

    def split(self, length: int, share: float = VALIDATION) -> tuple[Stream, Stream]:
        """(for training, for validation); both have room for a window."""
        cut = len(self.tokens) - round(share * len(self.tokens))
        parts = Stream(self.tokens[:cut], self.first), Stream(self.tokens[cut:], self.first)
        for part, what in zip(parts, ("train on", "validate with"), strict=True):
            if len(part.tokens) < length:
                raise JaxsinkError(
                    f"the data has {len(part.tokens)} tokens to {what}, fewer than a window of {length}; give more text or "
                    "a smaller --length."
                )
        return parts

    def at(self, places: Int[np.ndarray, " B"], length: int) -> Batch:
        """The windows that begin at these places of the stream."""
        taken = length - (self.first is not None)
        tokens = self.tokens[places[:, None] + np.arange(taken)].astype(np.int32)
        if self.first is not None:
            tokens = np.concatenate([np.full((len(places), 1), self.first, np.int32), tokens], axis=1)
        return Batch(tokens, np.ones(tokens.shape, bool))

    def draw(self, step: int, size: int, seed: int, length: int) -> Batch:
        """The windows of a step; they follow from seed and step alone."""
        random = np.random.default_rng([seed, step])
        return self.at(random.integers(0, len(self.tokens) - length + 1, size), length)

    def side_by_side(self, count: int, length: int) -> Batch:
        """As many windows that do not overlap, spread over the stream; fewer if it is too short."""
        fits = len(self.tokens) // length
        numbers = np.unique(np.linspace(0, fits - 1, min(count, fits)).round().astype(int))
        return self.at(numbers * length, length)

    def digest(self) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.tokens, np.int32).tobytes()).hexdigest()


def join(documents: Iterable[Sequence[int]], separator: int | None, first: int | None) -> Stream:
    """All documents, each followed by the separator."""
    end = [] if separator is None else [separator]
    parts = [np.array([*ids, *end], np.int32) for ids in documents]
    return Stream(np.concatenate(parts) if parts else np.zeros(0, np.int32), first)


def occurring(stream: Stream, vocab: int) -> Bool[np.ndarray, " V"]:
    """Which tokens of the vocabulary the stream has."""
    return np.bincount(stream.tokens, minlength=vocab)[:vocab] > 0
