"""The lens in the player: of every position, what each layer would write there, step by step.

A page holds `LIMIT` guesses of a generation. A lens that kept more shows its best token only, then fewer layers, then fewer
steps; the page says what is left out.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxsink.sampling.generation import Generation

SHOWN = 3  # tokens of each layer
LIMIT = 2_000_000  # guesses in a page
FEWEST_LAYERS = 12  # before steps are left out
NONE = 0xFFFF  # no guess
WORDS = 0xFFF0  # that a page tells apart

Words = Callable[[Sequence[int]], list[str]]


@dataclass(frozen=True, eq=False)
class PlayedLens:
    """Guesses as numbers of words, with their probabilities. P counts the queries of a step that were kept."""

    words: list[str]
    guess: np.ndarray  # uint16[T, L, P, k]
    share: np.ndarray  # uint8[T, L, P, k], 255 = certain
    place: np.ndarray  # int[T, P]: the token that a query speaks of, -1 = none
    final: list[int]  # the word that stands at each position in the end
    frames: np.ndarray  # int[T]: those of the page that have guesses …
    layers: np.ndarray  # int[L]: … and the layers
    of: tuple[int, int, int]  # how many frames, layers and guesses there were

    def every(self, count: int) -> PlayedLens:
        """In a page that shows every n-th frame."""
        if count == 1:
            return self
        kept = self.frames % count == 0
        parts = {name: getattr(self, name)[kept] for name in ("guess", "share", "place")}
        frames = -(-self.of[0] // count)
        return replace(self, **parts, frames=self.frames[kept] // count, of=(frames, *self.of[1:]))

    @property
    def note(self) -> str:
        """What of it the page shows, where that is not all."""
        frames, layers, _, best = self.guess.shape
        parts = [
            f"{shown} of {count} {name}"
            for shown, count, name in ((layers, self.of[1], "layers"), (frames, self.of[0], "steps"))
            if shown < count
        ]
        return ", ".join([*parts, *(["the best token only"] if best < self.of[2] else [])])

    def about(self) -> dict[str, Any]:
        is_same = (self.place == self.place[:1]).all()
        return {
            "words": self.words,
            "shape": list(self.guess.shape),
            "final": self.final,
            "place": (self.place[:1] if is_same else self.place).tolist(),
            "frames": self.frames.tolist(),
            "layers": self.layers.tolist(),
            "note": self.note,
        }

    def blob(self) -> str:
        data = self.guess.astype("<u2").tobytes() + self.share.tobytes()
        return base64.b64encode(data).decode("ascii")


def lens_record(record: object) -> Mapping[str, Any] | None:
    """What `record.lens()` kept, wherever in the record it is."""
    if not isinstance(record, Mapping):
        return None
    if {"token", "log_prob", "position"} <= set(record):
        return record
    return next((found for part in record.values() if (found := lens_record(part)) is not None), None)


def played_lens(
    generation: Generation, sequence: int, real: np.ndarray, frames: int, words: Words | None
) -> PlayedLens | None:
    """Of one sequence's real positions; None if no lens was recorded."""
    found = lens_record(generation.record)
    if found is None or words is None:
        return None
    place = places(np.asarray(found["position"])[:frames, -1, sequence], real)
    slots = np.flatnonzero((place >= 0).any(axis=0))
    if not len(slots):
        return None
    token, log_prob = (
        np.asarray(found[name])[:frames, :, sequence][:, :, slots, :SHOWN] for name in ("token", "log_prob")
    )
    of, best = (len(token), token.shape[1], token.shape[3]), token.shape[3]
    if token.size > LIMIT:
        best = 1
    shown, layers = fitting(*of[:2], len(slots))
    token, log_prob, place = token[shown][:, layers, :, :best], log_prob[shown][:, layers, :, :best], place[shown]
    place = place[:, slots]
    token = np.where(place[:, None, :, None] >= 0, token, -1)
    final = np.asarray(generation.tokens)[sequence, real]
    ids, number = numbered(token, final)
    guess = number(token)
    share = np.where(guess == NONE, 0, np.rint(255 * np.exp(np.minimum(log_prob, 0)))).astype(np.uint8)
    return PlayedLens(words(ids), guess, share, place, number(final).tolist(), shown, layers, of)


def places(position: np.ndarray, real: np.ndarray) -> np.ndarray:
    """int[T, Q]: which of the real tokens a query speaks of, -1 = none."""
    number = np.full(max(int(real.max(initial=0)), int(position.max(initial=0))) + 2, -1)
    number[real] = np.arange(len(real))
    return number[np.where(position >= 0, position, -1)]


def fitting(frames: int, layers: int, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """The frames and layers that are shown: evenly spread, among them the first frame and the last layer."""
    kept = min(layers, max(min(layers, FEWEST_LAYERS), LIMIT // max(1, frames * slots)))
    every = -(-frames * kept * slots // LIMIT)
    numbers = (
        np.arange(layers) if kept == layers else np.rint(np.linspace(layers / kept - 1, layers - 1, kept)).astype(int)
    )
    return np.arange(0, frames, max(1, every)), numbers


def numbered(token: np.ndarray, final: np.ndarray) -> tuple[list[int], Callable[[np.ndarray], np.ndarray]]:
    """(the tokens that are named, how their numbers are found); the rarest have none if they are too many."""
    ids, count = np.unique(token[token >= 0], return_counts=True)
    others = ~np.isin(ids, final)
    ids, count = ids[others], count[others]
    last = np.unique(final)
    common = ids[np.argsort(-count, kind="stable")[: max(0, WORDS - len(last))]]
    known = np.unique(np.concatenate([common, last]))

    def number(tokens: np.ndarray) -> np.ndarray:
        at = np.minimum(np.searchsorted(known, tokens), len(known) - 1)
        return np.where(known[at] == tokens, at, NONE).astype(np.uint16)

    return known.tolist(), number
