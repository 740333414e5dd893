"""Recorded generations of one subject, with what experiments ask of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from jaxsink.sampling.generation import Generation
from jaxsink.sinks import Threshold, Tracks, canvases, track


@dataclass(frozen=True)
class Gallery:
    """All prompts have one length (padded on the left)."""

    scores: np.ndarray  # f32[T,L,B,H,S], attention received
    masked: np.ndarray | None  # f32[T,L,B,H,S], from masked queries; None for autoregressive models
    tokens: np.ndarray  # i32[B,S]
    committed_at: np.ndarray  # i32[B,S]
    mask: np.ndarray  # bool[B,S]
    real: np.ndarray  # bool[T,B,S], the tokens that exist at each step
    taken: np.ndarray  # i32[B], steps that each sequence took
    prompt_length: int
    mask_id: int | None
    eps: float

    @cached_property
    def generation(self) -> Generation:
        """The same as a `Generation`, for the plots that every user has."""
        return Generation(
            self.tokens,
            self.committed_at,
            self.scores,
            self.mask,
            self.taken,
            self.prompt_length,
            recorded_steps=np.arange(len(self.scores)),
            autoregressive=self.mask_id is None,
        )

    @cached_property
    def tracks(self) -> Tracks:
        tracks = track(self.scores, Threshold(self.eps), self.real, self.taken)
        return Tracks(*(np.asarray(part) for part in tracks))  # type: ignore[arg-type]

    @cached_property
    def canvas(self) -> np.ndarray:
        """i32[T,B,S]: what the model saw; -1 where an autoregressive model had not written yet."""
        return np.asarray(canvases(self.tokens, self.committed_at, np.arange(len(self.scores)), self.mask_id))

    @cached_property
    def counted(self) -> np.ndarray:
        """bool[T,B]: steps that a sequence took."""
        return np.arange(len(self.scores))[:, None] < self.taken

    @cached_property
    def present(self) -> np.ndarray:
        """bool[T,L,B,H]: a head has a sink at a step that counts."""
        return np.asarray(self.tracks.position >= 0) & self.counted[:, None, :, None]

    @cached_property
    def token_position(self) -> np.ndarray:
        """i32[B,S]: positions counted from each sequence's first real token."""
        return np.cumsum(self.mask, axis=1) - 1

    @cached_property
    def sink_token_position(self) -> np.ndarray:
        """i32[T,L,B,H]: where the largest sink of a head is, counted from the first real token; 0 where there is none."""
        every_head = np.broadcast_to(self.token_position[None, None, :, None], self.tracks.sinks.shape)
        return np.take_along_axis(every_head, np.maximum(self.tracks.position, 0)[..., None], axis=-1)[..., 0]

    def mean_over_steps(self, values: np.ndarray) -> np.ndarray:
        """[T,L,B,H] -> [B,L,H]: over the steps that each sequence took."""
        total = np.where(self.counted[:, None, :, None], values, 0).sum(axis=0).transpose(1, 0, 2)
        return total / np.maximum(self.taken, 1)[:, None, None]


def from_arrays(arrays: dict[str, Any], mask_id: int | None, eps: float) -> Gallery:
    names = ("scores", "tokens", "committed_at", "mask", "real", "taken")
    return Gallery(
        **{name: arrays[name] for name in names},
        masked=arrays.get("masked"),
        prompt_length=int(arrays["prompt_length"]),
        mask_id=mask_id,
        eps=eps,
    )
