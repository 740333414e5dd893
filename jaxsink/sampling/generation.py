"""`Generation`: the tokens that a model wrote, when it wrote them, and what was recorded on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsink.errors import JaxsinkError

if TYPE_CHECKING:
    from jaxsink.config import ModelConfig
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
    tokenizer: Tokenizer | None = None  # of the model, where it is known
    end_ids: tuple[int, ...] = ()  # tokens that end a text

    @property
    def response(self) -> Any:
        """i32[B,gen]: the generated part."""
        return self.tokens[:, self.prompt_length :]

    @property
    def texts(self) -> list[str]:
        """What the model wrote for each prompt, up to the first end token; filled masks of a prompt count as written."""
        if self.tokenizer is None:
            raise JaxsinkError("the tokenizer of this model is not known; decode `response` with your own.")
        return [self.tokenizer.decode(ids) for ids in self.written()]

    @property
    def text(self) -> str:
        """What the model wrote, where there was one prompt."""
        if len(self.tokens) != 1:
            raise JaxsinkError(f"there are {len(self.tokens)} texts, one per prompt; see `texts`.")
        return self.texts[0]

    def written(self) -> list[list[int]]:
        """Token ids of `texts`: from the first position that was filled to the first end token."""
        rows = []
        for tokens, committed, mask in zip(*map(np.asarray, (self.tokens, self.committed_at, self.mask)), strict=True):
            filled = np.flatnonzero(committed >= 0)
            start = min(self.prompt_length, *filled[:1])
            response = tokens[self.prompt_length :][mask[self.prompt_length :]].tolist()
            end = next((n for n, token in enumerate(response) if token in self.end_ids), len(response))
            rows.append(tokens[start : self.prompt_length].tolist() + response[:end])
        return rows

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


def end_ids(config: ModelConfig) -> tuple[int, ...]:
    """The tokens that end a text."""
    return tuple(dict.fromkeys((*config.eos_ids, *(() if config.eot_id is None else (config.eot_id,)))))
