"""A generation whose sinks are planted by hand, for tests of plots and tables."""

from __future__ import annotations

from typing import Any

import numpy as np

import jaxsink
from jaxsink.sampling.leaves import Kept

T, L, B, H, S, PROMPT = 6, 2, 2, 3, 9, 4
MOVING = (1, 2)  # layer and head of the sink that walks
PATH = (2, 2, 3, 5, 5, 8)  # its positions in the padded sequence


class Letters(jaxsink.Tokenizer):
    """A tokenizer whose tokens are a, b, c …; one would be a broken formula for matplotlib, one no font has."""

    def __init__(self) -> None:
        pass

    def token(self, index: int) -> str:
        return {5: "$^$", 6: "\U0001f9ff"}.get(int(index), chr(97 + int(index)))


def made_generation(tokenizer: Any = None, **changes: Any) -> jaxsink.Generation:
    """Sequence 0 has one padded position and takes all steps; sequence 1 is whole and stops after four."""
    noise = np.random.default_rng(0)
    mask = np.ones((B, S), bool)
    mask[0, 0] = False
    steps = np.array([T, 4])
    scores = noise.uniform(0.5, 0.9, (T, L, B, H, S)).astype(np.float32)
    scores[:, 0, :, 1, 1] = 9.0  # a strong sink that stays
    for step, position in enumerate(PATH):
        scores[step, MOVING[0], :, MOVING[1], position] = 7.0
    scores = np.where(mask[None, None, :, None] & (np.arange(T)[:, None] < steps)[:, None, :, None, None], scores, 0)
    committed = np.full((B, S), -1)
    committed[:, PROMPT:] = ((0, 2, 1, 5, 4), (3, 2, 1, 0, 0))
    values: dict[str, Any] = {
        "tokens": np.arange(B * S).reshape(B, S) % 11,
        "committed_at": committed,
        "record": scores,
        "mask": mask,
        "steps": steps,
        "prompt_length": PROMPT,
        "recorded_steps": np.arange(T),
        "recorders": Kept("received"),
        "tokenizer": tokenizer,
    }
    return jaxsink.Generation(**(values | changes))
