"""What one pass through the model runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jaxsink.nn.config import ModelConfig

MASKED, UNMASKED, PROMPT = range(3)


class Batch(NamedTuple):
    """Sequences of one padded length.

    With a cache only `queries` tokens from position `start` on run, on the keys and values of all others.
    """

    tokens: Int[Array, "B S"]
    mask: Bool[Array, "B S"]  # True = real token
    kind: Int[Array, "B S"]  # MASKED, UNMASKED or PROMPT
    counted: Bool[Array, "B S"]  # True = recorders count it: a real token of an unfinished sequence
    visible: Bool[Array, "B Q S"] | None = None  # (query, key) pairs, on top of the family's own pattern
    outputs: Int[Array, "B W"] | None = None  # the queries whose hidden states and logits are wanted; None = all
    start: Int[Array, ""] | int = 0
    queries: int | None = None

    @classmethod
    def make(
        cls,
        config: ModelConfig,
        tokens: Int[Array, "B S"],
        mask: Bool[Array, "B S"],
        *,
        prompt: Bool[Array, "B S"] | None = None,
        done: Bool[Array, " B"] | None = None,
    ) -> Batch:
        """prompt: True = prompt token. done: sequences that recorders do not count any more."""
        counted = mask if done is None else mask & ~done[:, None]
        return cls(tokens, mask, token_kinds(config, tokens, prompt), counted)


class Execution(NamedTuple):
    """Static: how a pass is computed. It never changes the result."""

    backend: str = "naive"  # of the attention, see nn/attention.py
    mesh: Mesh | None = None  # where the model lies


def token_kinds(config: ModelConfig, tokens: Int[Array, "B S"], prompt: Bool[Array, "B S"] | None) -> Int[Array, "B S"]:
    """MASKED where the token is the mask, else PROMPT or UNMASKED."""
    kind = jnp.full(tokens.shape, UNMASKED)
    if prompt is not None:
        kind = jnp.where(prompt, PROMPT, kind)
    return kind if config.mask_id is None else jnp.where(tokens == config.mask_id, MASKED, kind)
