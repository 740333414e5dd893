"""Recorded generations of one subject, with what experiments ask of them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from jaxsink.runs.arrays import Arrays
from jaxsink.sampling.generation import Generation
from jaxsink.sinks import Threshold, Tracks, canvases, track, visibility_normalised


@dataclass(frozen=True, eq=False)
class Gallery:
    """Recorded generations of one subject, and what is computed of them.

    All prompts have one length (padded on the left). A gallery is equal to itself alone, so that what is computed of it
    can be cached.

    Examples:
        >>> one = jaxsink.study.subject("mini-llama").writing(tokens=8)
        >>> kept = jaxsink.study.Study([one], Path("short"), problems=2, generations=2).gallery(one)
        >>> kept.generation
        Generation(2 sequences of 40 tokens, 32 of them prompt, 8 recorded steps, record=float32[8, 4, 2, 4, 40])
        >>> kept.fair.shape == kept.scores.shape, kept.tracks.kind.shape == kept.fair_tracks.kind.shape == (4, 2, 4)
        (True, True)
        >>> kept.counted.shape, kept.token_position.shape
        ((8, 2), (2, 40))
        >>> kept.present.shape == kept.sink_token_position.shape == (8, 4, 2, 4)
        True
        >>> kept.mean_over_steps(kept.present).shape, kept.mean_where(kept.scores[..., 0], kept.present).shape
        ((2, 4, 4), (2,))
    """

    scores: np.ndarray  # f32[T,L,B,H,S], attention received: column sums
    shuffled: np.ndarray  # f32[T,L,B,H,S], the same with every query's attention moved round by chance
    tokens: np.ndarray  # i32[B,S]
    canvas: np.ndarray  # i32[T,B,S], what the model saw; -1 where an autoregressive model had not written yet
    committed_at: np.ndarray  # i32[B,S]
    mask: np.ndarray  # bool[B,S]
    real: np.ndarray  # bool[T,B,S], the tokens that exist at each step
    taken: np.ndarray  # i32[B], steps that each sequence took
    clusters: np.ndarray  # str[B], the distinct problem that each asks
    prompt_length: int
    mask_id: int | None
    eps: float
    block_length: int | None = None  # of block-causal models
    masked: np.ndarray | None = None  # f32[T,L,B,H,S], from masked queries; None for autoregressive models
    random_split: np.ndarray | None = None  # f32[T,L,B,H,S], from as many queries drawn at random

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
    def fair(self) -> np.ndarray:
        """f32[T,L,B,H,S]: scores per query that can see the key, times the number of tokens."""
        causal = self.mask_id is None
        return np.asarray(visibility_normalised(self.scores, self.real, causal=causal, block_length=self.block_length))

    @cached_property
    def tracks(self) -> Tracks:
        """By column sums, as the paper has them."""
        return self._tracked(self.scores)

    @cached_property
    def fair_tracks(self) -> Tracks:
        """By scores that do not favour early keys."""
        sees_all = self.mask_id is not None and self.block_length is None
        return self.tracks if sees_all else self._tracked(self.fair)

    def _tracked(self, scores: np.ndarray) -> Tracks:
        tracks = track(scores, Threshold(self.eps), self.real, self.taken)
        return Tracks(*(np.asarray(part) for part in tracks))  # type: ignore[arg-type]

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

    def mean_where(self, values: np.ndarray, where: np.ndarray) -> np.ndarray:
        """[T,L,B,H] -> f64[B]: the mean where it is asked for, of each generation; NaN where that is nowhere."""
        where = where & self.counted[:, None, :, None]
        total, count = np.where(where, values, 0.0).sum(axis=(0, 1, 3)), where.sum(axis=(0, 1, 3))
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def from_arrays(arrays: Arrays, mask_id: int | None, eps: float, block_length: int | None = None) -> Gallery:
    wanted = {part.name for part in fields(Gallery)} - {"prompt_length", "mask_id", "eps", "block_length", "canvas"}
    steps = np.arange(len(arrays["scores"]))
    return Gallery(
        **{name: value for name, value in arrays.items() if name in wanted},
        canvas=np.asarray(canvases(arrays["tokens"], arrays["committed_at"], steps, mask_id, arrays.get("commits"))),
        prompt_length=int(arrays["prompt_length"]),
        mask_id=mask_id,
        eps=eps,
        block_length=block_length,
    )
