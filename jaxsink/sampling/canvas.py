"""What a diffusion sampler sees of a step, and what it says in return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
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
    limit: Int[Array, "B S"] | None  # each query sees keys before this position only; None = the model's pattern
    before: Bool[Array, "B S"]  # keys of the step before: those that an intervention chooses among


@dataclass(frozen=True)
class Appending:
    """How the canvas grows under samplers that append their blocks."""

    block: int
    seeds: bool = False  # the step that writes a block's first token runs before the block is there
    drafts: bool = False  # a block follows the tokens that are verified, wherever they end
    from_first: bool = False  # blocks are counted from each sequence's first real token, and not from the prompt's end
    edits: bool = False  # a full block may be gone through again before the next one is there

    def ends(
        self,
        committed_at: Int[np.ndarray, "B S"],
        first: Int[np.ndarray, " B"],
        prompt_length: int,
        steps: Int[np.ndarray, " T"],
    ) -> Int[np.ndarray, "T B"]:
        """The first position that is not there yet, step by step. first: position of each sequence's first real token."""
        length, step = committed_at.shape[1], steps[:, None, None]
        waits = committed_at >= step
        front = np.where(waits.any(axis=-1), waits.argmax(axis=-1), length)
        if self.drafts:
            return np.where(front == prompt_length, front, np.minimum(front + self.block - 1, length))
        if self.edits:  # a step that fills nothing is still in the block that was filled last
            front = front - ~(committed_at == step).any(axis=-1)
        origin = first if self.from_first else prompt_length
        begin = front - np.where(front < length, (front - origin) % self.block, 0)
        end = np.minimum(begin + self.block, length)
        return np.maximum(np.where(self.seeds & (front == begin), begin, end), prompt_length)


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


class Part(NamedTuple):
    """The tokens that a step runs where keys and values of the others are kept: as many as the window has."""

    begin: Int[Array, " B"]  # position of the first one, which may lie before the sequence
    is_final: Bool[Array, " B"] | None = None  # they will not run again; None = a block runs once more when it is full


class Looking(NamedTuple):
    """Where a step looks, and what it sees."""

    window: Window
    readers: Int[Array, "B W"]  # the queries that predict the window's positions
    sight: Sight | None = None
    part: Part | None = None  # None = all tokens run

    def ahead(self, length: int) -> Int[Array, " B"]:
        """From a query to the position that this step reads it for."""
        there = self.window.position < length
        return jnp.where(there, self.window.position - self.readers, 0).max(axis=1)


class Commit(NamedTuple):
    """What a step writes."""

    token: Int[Array, "B W"]
    where: Bool[Array, "B W"]
    stays: Bool[Array, " B"] | None = None  # sequences that stay in this block though it is full
