"""What one pass through the model runs on, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int, Shaped

from jaxsink.nn.config import ModelConfig
from jaxsink.nn.display import describe

if TYPE_CHECKING:
    from jaxsink.nn.edited import StepEdit
    from jaxsink.nn.pass_end import TunedLens

MASKED, UNMASKED, PROMPT = range(3)
KINDS = ("masked", "unmasked", "prompt")
"""Of queries and keys: masks, tokens that were committed, and the prompt."""

A = TypeVar("A", Array, np.ndarray)


class Keys(NamedTuple):
    """The whole sequence as recorders count it; all that the ready-made reductions need."""

    counted: Bool[Array, "B S"]  # True = real token of a sequence that counts
    tokens: Int[Array, "B S"]
    key_kind: Int[Array, "B S"]  # MASKED, UNMASKED or PROMPT

    @property
    def mask(self) -> Bool[Array, "B S"]:
        """`counted`, as reductions know it from taps."""
        return self.counted

    def first_keys(self, length: int) -> Keys:
        """The first `length` positions only."""
        return Keys(*(x[:, :length] for x in self))

    def __repr__(self) -> str:
        return describe(self, self._fields)


class Batch(NamedTuple):
    """Sequences of one padded length.

    With a cache only `queries` tokens from position `start` on run, on the keys and values of all others. Sequences may
    start at positions of their own, and some of their tokens may only fill the number up (`runs`).
    """

    tokens: Int[Array, "B S"]
    mask: Bool[Array, "B S"]  # True = real token
    kind: Int[Array, "B S"]  # MASKED, UNMASKED or PROMPT
    counted: Bool[Array, "B S"]  # True = recorders count it: a real token of an unfinished sequence
    visible: Bool[Array, "B Q S"] | None = None  # (query, key) pairs, on top of the family's own pattern
    limit: Int[Array, "B S"] | None = None  # each query sees keys before this position only, on top of the pattern
    hidden_from: Bool[Array, "B S"] | None = None  # the queries that lose what is dropped; None = all
    outputs: Int[Array, "B W"] | None = None  # the queries whose hidden states and logits are wanted; None = all
    token_position: Int[Array, "B S"] | None = (
        None  # where tokens stand for the model; None = counted from the first real one
    )
    time: Float[Array, " B"] | None = None  # what a model is told of the noise level; None = the share of masks
    start: Int[Array, ""] | Int[Array, " B"] | int = 0
    queries: int | None = None
    edits: tuple[StepEdit, ...] = ()  # what is changed at the taps in this pass, see nn/edited.py
    ahead: Int[Array, " B"] | None = None  # from a query to the position it speaks of; None = as the model predicts
    targets: Int[Array, "B S"] | None = None  # the tokens that a lens ranks
    tuned: TunedLens | None = None  # what a tuned lens adds
    runs: Bool[Array, "B S"] | None = None  # tokens that write keys and values, and that recorders count; None = all

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

    @property
    def keys(self) -> Keys:
        return Keys(self.counted, self.tokens, self.kind)

    def of_queries(self, x: Shaped[Array, "B S"]) -> Shaped[Array, "B Q"]:
        """The part of x that belongs to the tokens that run."""
        if self.queries is None:
            return x
        if jnp.ndim(self.start) == 0:
            return lax.dynamic_slice_in_dim(x, self.start, self.queries, axis=1)
        return jnp.take_along_axis(x, self.position, axis=1)

    @property
    def position(self) -> Int[Array, "*B Q"]:
        """Of the tokens that run, in the padded sequence."""
        length = self.tokens.shape[1] if self.queries is None else self.queries
        return jnp.asarray(self.start)[..., None] + jnp.arange(length)

    def __repr__(self) -> str:
        return describe(self, self._fields)


class Execution(NamedTuple):
    """Static: how a pass is computed. It never changes the result."""

    backend: str = "naive"  # of the attention, see nn/attention.py
    mesh: Mesh | None = None  # where the model lies
    whole_stacks: bool = (
        False  # experts are read where they are stacked, layer by layer, without copies; not for gradients
    )


def token_kinds(config: ModelConfig, tokens: Int[Array, "B S"], prompt: Bool[Array, "B S"] | None) -> Int[Array, "B S"]:
    """MASKED where the token is the mask, else PROMPT or UNMASKED."""
    kind = jnp.full(tokens.shape, UNMASKED)
    if prompt is not None:
        kind = jnp.where(prompt, PROMPT, kind)
    return kind if config.mask_id is None else jnp.where(tokens == config.mask_id, MASKED, kind)


def token_positions(config: ModelConfig, mask: Bool[Array, "B S"]) -> Int[Array, "B S"]:
    """0 at the first real token, so left padding never changes what a token sees of its distances."""
    if config.skip_gaps:
        return jnp.maximum(count_tokens(mask), 0)
    return jnp.maximum(jnp.arange(mask.shape[1]) - jnp.argmax(mask, axis=1, keepdims=True), 0)


def count_tokens(mask: Bool[A, "B S"]) -> Int[A, "B S"]:
    """The number of each real token, from 0 on; padding has that of the token before it, or -1."""
    return mask.cumsum(axis=1, dtype="int32") - 1
