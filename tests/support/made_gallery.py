"""Galleries made by hand, so that the answer of every statistic is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxsink.study import Gallery

MASK, WORD = 9, 1
SINK, LITTLE = 9.0, 0.5


def places(*sequences: list[list[int]], length: int = 8) -> np.ndarray:
    """f32[T,1,B,H,S]: for each sequence its heads, for each head where its sink is step by step; -1: nowhere."""
    where = np.moveaxis(np.array(sequences), -1, 0)[:, None]  # [T,1,B,H]
    return np.where(np.arange(length) == where[..., None], SINK, LITTLE).astype(np.float32)


def made_gallery(scores: np.ndarray, **changes: Any) -> Gallery:
    """Of scores [T,L,B,H,S]: no padding, every sequence takes all steps, and each asks something else."""
    steps, _, batch, _, length = scores.shape
    values: dict[str, Any] = {
        "scores": scores,
        "shuffled": np.ones_like(scores),
        "tokens": np.full((batch, length), WORD),
        "canvas": np.full((steps, batch, length), WORD),
        "committed_at": np.full((batch, length), -1),
        "mask": np.ones((batch, length), bool),
        "real": np.ones((steps, batch, length), bool),
        "taken": np.full(batch, steps),
        "clusters": np.array([f"problem {number}" for number in range(batch)]),
        "prompt_length": 0,
        "mask_id": MASK,
        "eps": 3.0,
    }
    return Gallery(**(values | changes))
