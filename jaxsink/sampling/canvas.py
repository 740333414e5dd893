"""What a diffusion sampler sees of a step, and what it says in return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jax import Array
from jaxtyping import Bool, Int


class Canvas(NamedTuple):
    """What a sampler sees of the run before a step."""

    tokens: Int[Array, "B S"]
    masked: Bool[Array, "B S"]  # still to be filled
    first: Int[Array, " B"]  # position of each sequence's first real token
    step: Int[Array, ""]
    prompt_length: int
    block: Int[Array, " B"] | None = None  # where each sequence was in the step before; -1 before the first
    stays: Bool[Array, " B"] | None = None  # it is not done with that block, even if nothing is masked there


class Block(NamedTuple):
    """The decoding block that each sequence is in."""

    number: Int[Array, " B"]
    begin: Int[Array, " B"]  # position of its first token …
    end: Int[Array, " B"]  # … and of the first token after it


class Sight(NamedTuple):
    """What exists of the canvas in a step, and how far each query sees; for samplers that append their blocks."""

    mask: Bool[Array, "B S"]  # True = real token that exists already
    limit: Int[Array, "B S"]  # each query sees keys before this position only
    before: Bool[Array, "B S"]  # keys of the step before: those that an intervention chooses among


@dataclass(frozen=True)
class Appending:
    """How the canvas grows under samplers that append their blocks."""

    block: int
    seeds: bool = False  # the step that writes a block's first token runs before the block is there
    drafts: bool = False  # a block follows the tokens that are verified, wherever they end

    def ends(
        self, committed_at: Int[np.ndarray, "B S"], prompt_length: int, steps: Int[np.ndarray, " T"]
    ) -> Int[np.ndarray, "T B"]:
        """The first position that is not there yet, step by step."""
        length = committed_at.shape[1]
        waits = (committed_at >= steps[:, None, None]) & (np.arange(length) >= prompt_length)
        front = np.where(waits.any(axis=-1), waits.argmax(axis=-1), length)
        if self.drafts:
            return np.where(front == prompt_length, front, np.minimum(front + self.block - 1, length))
        begin = front - np.where(front < length, (front - prompt_length) % self.block, 0)
        end = np.minimum(begin + self.block, length)
        return np.where(self.seeds & (front == begin), begin, end)


class Window(NamedTuple):
    """The part of the canvas that a step may change."""

    position: Int[Array, "B W"]
    eligible: Bool[Array, "B W"]  # masked, and inside the block
    block_step: Int[Array, " B"]  # steps taken in this block
    block_masks: Int[Array, " B"]  # masks when the block began
    step: Int[Array, ""]
    offset: Int[Array, "B W"]  # position counted from the start of the response
    # of samplers that edit what they wrote:
    token: Int[Array, "B W"] | None = None  # what stands there
    written: Bool[Array, "B W"] | None = None  # by this run, inside the block
    full_steps: Int[Array, " B"] | None = None  # steps of this block that began without masks, this one included

    @property
    def read(self) -> Bool[Array, "B W"]:
        """Positions whose logits matter: masks, and what may be written again."""
        return self.eligible if self.written is None else self.eligible | self.written


class Looking(NamedTuple):
    """Where a step looks, and what it sees."""

    window: Window
    readers: Int[Array, "B W"]  # the queries that predict the window's positions
    sight: Sight | None = None


class Commit(NamedTuple):
    """What a step writes."""

    token: Int[Array, "B W"]
    where: Bool[Array, "B W"]
    stays: Bool[Array, " B"] | None = None  # sequences that stay in this block though it is full
