"""LayerContext: what a layer works with besides its weights and its input. A tap contains it.

**What a query sees.** The real keys that the family's pattern allows (all, causal, sliding window, blocks), and that a
sampler's `limit` (keys before a position) and a caller's own `visible` allow. What is dropped comes on top (nn/softmax.py),
for all queries or for some.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Float32, Int, Shaped

from jaxsink.nn.batch import Batch, Execution, Keys, token_positions
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.recorder import Recorder
from jaxsink.nn.rope import RopeTable

if TYPE_CHECKING:
    from jaxsink.nn.edited import StepEdit
    from jaxsink.nn.pass_end import TunedLens

STATIC = {"static": True}  # fields that are part of the program, not of its arguments
OnQueries = Callable[[Array, int], Array]  # (array, its query axis) -> array


class Queries(NamedTuple):
    """The tokens that run: all of them, or with a cache a part of the sequence."""

    counted: Bool[Array, "B Q"]  # True = real token of a sequence that counts
    position: Int[Array, "*B Q"]  # in the padded sequence; with an axis B if sequences start at positions of their own
    kind: Int[Array, "B Q"]  # MASKED, UNMASKED or PROMPT
    token_position: Int[Array, "B Q"]  # counted from the first real token
    hidden_from: Bool[Array, "B Q"] | None = None  # those that lose what is dropped; None = all
    limit: Int[Array, "B Q"] | None = None  # the first position that they do not see any more; None = no such limit

    def map(self, change: OnQueries) -> Queries:
        return Queries(
            counted=change(self.counted, 1),
            position=change(self.position, self.position.ndim - 1),
            kind=change(self.kind, 1),
            token_position=change(self.token_position, 1),
            hidden_from=None if self.hidden_from is None else change(self.hidden_from, 1),
            limit=None if self.limit is None else change(self.limit, 1),
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Visibility:
    """Which keys a query may see, before anything is dropped; made for the queries at hand, never S x S at once."""

    real: Bool[Array, "B S"]
    token_position: Int[Array, "B S"]  # of the keys
    custom: Bool[Array, "B Q S"] | None = None
    use_window: Bool[Array, ""] | None = None  # does this layer use the window; None = yes
    causal: bool = field(default=False, metadata=STATIC)
    block: int | None = field(default=None, metadata=STATIC)
    window: int | None = field(default=None, metadata=STATIC)

    def seen(self, queries: Queries) -> Bool[Array, "B 1 _ S"]:
        seen = self.real[:, None, None, :]
        distance = queries.position[..., None] - jnp.arange(self.real.shape[1])
        if distance.ndim == 3:
            distance = distance[:, None]
        if self.causal:
            seen = seen & (distance >= 0)
        if self.window is not None:
            near = distance < self.window
            seen = seen & (near if self.use_window is None else near | ~self.use_window)
        if self.block is not None:
            of_key, of_query = self.token_position // self.block, queries.token_position // self.block
            seen = seen & (of_key[:, None, None, :] <= of_query[:, None, :, None])
        if queries.limit is not None:
            seen = seen & (jnp.arange(self.real.shape[1]) < queries.limit[:, None, :, None])
        if self.custom is not None:
            seen = seen & self.custom[:, None]
        return seen

    def first_keys(self, length: int) -> Visibility:
        """The first `length` keys only."""
        custom = None if self.custom is None else self.custom[..., :length]
        return replace(self, real=self.real[:, :length], token_position=self.token_position[:, :length], custom=custom)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerContext:
    """What all layers of a pass share; and, once `at` has said which layer it is for, what belongs to that layer."""

    keys: Keys
    queries: Queries
    visibility: Visibility
    rope: RopeTable | None = None  # of the queries; None = positions are learned
    sink_rope: RopeTable | None = None  # of the extra sink, one position before the first token
    layer: Int[Array, ""] | None = None
    drop: Bool[Array, "B H S"] | Float32[Array, "B H S"] | None = None  # keys to hide, or factors on attention
    outputs: Int[Array, "B W"] | None = None  # the queries that go on after attention; None = all
    condition: Float[Array, "#B C"] | None = None  # the vector of the noise level, see nn/conditioning.py
    window: Int[Array, "B W"] | None = None  # the queries whose logits are read; None = all
    ahead: Int[Array, " B"] | None = None  # from a query to the position it speaks of; None = as the model predicts
    targets: Int[Array, "B S"] | None = None  # the tokens that a lens ranks
    tuned: TunedLens | None = None  # what a tuned lens adds
    edits: tuple[StepEdit, ...] = ()  # what is changed at the taps, see nn/edited.py
    recorders: tuple[Recorder, ...] = field(default=(), metadata=STATIC)
    execution: Execution = field(default_factory=Execution, metadata=STATIC)

    @classmethod
    def make(
        cls, config: ModelConfig, batch: Batch, recorders: tuple[Recorder, ...] = (), execution: Execution | None = None
    ) -> LayerContext:
        """For a pass over the batch."""
        token_position, of_queries = batch.token_position, batch.of_queries
        if token_position is None:
            token_position = token_positions(config, batch.mask)
        queries = Queries(
            of_queries(batch.counted if batch.runs is None else batch.counted & batch.runs),
            batch.position,
            of_queries(batch.kind),
            of_queries(token_position),
            None if batch.hidden_from is None else of_queries(batch.hidden_from),
            None if batch.limit is None else of_queries(batch.limit),
        )
        visibility = Visibility(
            real=batch.mask,
            token_position=token_position,
            custom=batch.visible,
            causal=config.attention == "causal",
            block=config.block_length,
            window=config.window,
        )
        rope = sink_rope = None
        if config.positions == "rope":
            rope = RopeTable.make(config, queries.token_position)
            if config.extra_sink:
                sink_rope = RopeTable.make(config, jnp.full((1, 1), -1))
        return cls(
            batch.keys,
            queries,
            visibility,
            rope,
            sink_rope,
            window=batch.outputs,
            ahead=batch.ahead,
            targets=batch.targets,
            tuned=batch.tuned,
            edits=batch.edits,
            recorders=recorders,
            execution=execution or Execution(),
        )

    def at(
        self,
        layer: Int[Array, ""],
        drop: Bool[Array, "B H S"] | Float32[Array, "B H S"] | None,
        use_window: Bool[Array, ""] | None,
        recorders: tuple[Recorder, ...],
        outputs: Int[Array, "B W"] | None = None,
    ) -> LayerContext:
        """For one layer of the pass."""
        visibility = replace(self.visibility, use_window=use_window)
        return replace(self, layer=layer, drop=drop, visibility=visibility, recorders=recorders, outputs=outputs)

    def map_queries(self, change: OnQueries) -> LayerContext:
        """The same for other queries: a block of them, or more."""
        custom = self.visibility.custom
        visibility = self.visibility if custom is None else replace(self.visibility, custom=change(custom, 1))
        return replace(self, queries=self.queries.map(change), visibility=visibility)

    def first_keys(self, length: int) -> LayerContext:
        """As recorders see it, if only the first `length` positions belong to the sequence."""
        return replace(self, keys=self.keys.first_keys(length), visibility=self.visibility.first_keys(length))

    def wanted(self, x: Float[Array, "B Q *F"]) -> Float[Array, "B W *F"]:
        """The queries that go on after attention."""
        return select(x, self.outputs)


def select(x: Shaped[Array, "B Q *F"], index: Int[Array, "B W"] | None) -> Shaped[Array, "B W *F"]:
    """The queries `index` of each sequence; all without one."""
    return x if index is None else jnp.take_along_axis(x, index.reshape(*index.shape, *[1] * (x.ndim - 2)), axis=1)
