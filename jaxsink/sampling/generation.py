"""`Generation`: the tokens that a model wrote, when it wrote them, and what was recorded on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxsink.tokenizer import Tokenizer


@dataclass(frozen=True)
class Generation:
    """What `generate` returns. Positions are those of the padded batch: `mask` tells real tokens."""

    tokens: Any  # i32[B,S], prompt and response
    committed_at: Any  # i32[B,S], step at which a position was filled, -1 for the prompt
    record: Any  # pytree with leading axes [T, L] (T: recorded steps); None without recorders
    mask: Any  # bool[B,S], True = real token
    steps: Any  # i32[B], steps each row took; a row that finished early has zero statistics from there on
    prompt_length: int  # P, where the response starts
    recorded_steps: Any  # i32[T]
    approximate: str | None = None  # "prefix" or "dual": passes ran on a part of the sequence only
    log_prob: Any = None  # f32[B,S] of the tokens that an autoregressive model wrote, 0 elsewhere
    autoregressive: bool = False

    @property
    def response(self) -> Any:
        """i32[B,gen]: the generated part."""
        return self.tokens[:, self.prompt_length :]

    def show(self, tokenizer: Tokenizer | None = None) -> None:
        """The player page (see `jaxsink.report`): in a notebook in place, else in the browser; its path is printed."""
        from jaxsink.reporting.own import show

        show(self, tokenizer)

    def canvas(self, step: int, mask_id: int) -> Any:
        """i32[B,S]: what the model saw at the given step."""
        committed = np.asarray(self.committed_at)
        return np.where(committed >= step, mask_id, np.asarray(self.tokens))

    def real_at(self) -> Any:
        """bool[T,B,S]: the tokens that exist at each recorded step; an autoregressive model's are written one by one."""
        mask = np.asarray(self.mask)
        there = np.ones((len(self.recorded_steps), *mask.shape), bool)
        if self.autoregressive:
            last = self.prompt_length - 1 + np.asarray(self.recorded_steps)
            there = np.arange(mask.shape[1]) <= last[:, None, None]
        return mask & there

    def recorded_of(self) -> Any:
        """i32[B]: how many of the recorded steps each row took, for `sinks.track`."""
        return (np.asarray(self.recorded_steps)[:, None] < np.asarray(self.steps)).sum(axis=0)
