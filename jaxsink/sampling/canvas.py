"""What a diffusion sampler sees of a step, and what it says in return."""

from __future__ import annotations

from typing import NamedTuple

from jax import Array
from jaxtyping import Bool, Int


class Canvas(NamedTuple):
    """What a sampler sees of the run before a step."""

    tokens: Int[Array, "B S"]
    masked: Bool[Array, "B S"]  # still to be filled
    first: Int[Array, " B"]  # position of each sequence's first real token
    step: Int[Array, ""]
    prompt_length: int


class Block(NamedTuple):
    """The decoding block that each sequence is in."""

    number: Int[Array, " B"]
    begin: Int[Array, " B"]  # position of its first token …
    end: Int[Array, " B"]  # … and of the first token after it


class Window(NamedTuple):
    """The part of the canvas that a step may change."""

    position: Int[Array, "B W"]
    eligible: Bool[Array, "B W"]  # masked, and inside the block
    block_step: Int[Array, " B"]  # steps taken in this block
    block_masks: Int[Array, " B"]  # masks when the block began
    step: Int[Array, ""]
    offset: Int[Array, "B W"]  # position counted from the start of the response


class Commit(NamedTuple):
    """What a step writes."""

    token: Int[Array, "B W"]
    where: Bool[Array, "B W"]
