"""What an attention kernel is given of one layer on one device, and who sees what as numbers."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Float32, Int

from jaxsink.nn.context import Queries, Visibility
from jaxsink.nn.softmax import HIDDEN, Drop, hides
from jaxsink.nn.taps import Tap

LOG2_E = 1.4426950408889634
NOWHERE = -1  # the kind of queries that statistics do not count

Mixed = tuple[Float[Array, "B Q H D"], Float32[Array, "B H N S"] | None]  # outputs, and what keys receive by kind


class Arrays(NamedTuple):
    """What a kernel needs to know of a layer; where each lies on a mesh is said in `AXES`."""

    q: Float[Array, "B Q H D"]
    k: Float[Array, "B S K D"]
    v: Float[Array, "B S K D"]
    mask: Bool[Array, "B S"]
    kind: Int[Array, "B Q"]  # NOWHERE = not counted
    drop: Drop | None
    lower: Int[Array, "B Q"] | None  # first key that a query sees; None = 0
    upper: Int[Array, "B Q"] | None  # first key after those that it sees; None = S

    @property
    def bounded(self) -> bool:
        """False = every query sees every key."""
        return self.lower is not None or self.upper is not None

    @property
    def scale(self) -> float:
        """On the scores."""
        return self.q.shape[-1] ** -0.5

    def ends(self) -> tuple[Int[Array, "B Q"], Int[Array, "B Q"]]:
        """(lower, upper), also where nothing is said of them."""
        shape, keys = self.kind.shape, self.k.shape[1]
        lower = jnp.zeros(shape, jnp.int32) if self.lower is None else self.lower
        return lower, jnp.full(shape, keys, jnp.int32) if self.upper is None else self.upper


AXES: dict[str, tuple[str | None, ...]] = {
    "q": ("sequences", "queries", "heads", None),
    "k": ("sequences", None, "heads", None),
    "v": ("sequences", None, "heads", None),
    "mask": ("sequences", None),
    "kind": ("sequences", "queries"),
    "drop": ("sequences", "heads", None),
    "lower": ("sequences", "queries"),
    "upper": ("sequences", "queries"),
}


def arrays_of(tap: Tap) -> Arrays:
    context = tap.context
    queries, see = context.queries, context.visibility
    kind = jnp.where(queries.counted, queries.kind, NOWHERE)
    return Arrays(tap.q, tap.k, tap.v, see.real, kind, context.drop, *intervals(see, queries))


def intervals(see: Visibility, queries: Queries) -> tuple[Int[Array, "B Q"] | None, Int[Array, "B Q"] | None]:
    """(lower, upper): a query sees the real keys lower … upper - 1. Positions never fall from key to key."""
    batch, keys = see.real.shape
    lower = upper = None
    if see.causal:
        upper = jnp.broadcast_to(queries.position + 1, queries.token_position.shape)
    if see.block is not None:
        of_key, of_query = see.token_position // see.block, queries.token_position // see.block
        in_blocks = jax.vmap(partial(jnp.searchsorted, side="right"))(of_key, of_query)
        upper = in_blocks if upper is None else jnp.minimum(upper, in_blocks)
    if queries.limit is not None:
        upper = queries.limit if upper is None else jnp.minimum(upper, queries.limit)
    if see.window is not None:
        first = jnp.clip(queries.position - see.window + 1, 0, keys - 1)
        first = first if see.use_window is None else jnp.where(see.use_window, first, 0)
        lower = jnp.broadcast_to(first, (batch, first.shape[-1]))
    return lower, upper


def key_bias(x: Arrays) -> tuple[Float32[Array, "B _ S"], Float32[Array, "B 1 S"]]:
    """(with the drop, without): what is added to unscaled scores, the log of the factors on keys over `scale`, or HIDDEN.

    Where every query sees every key, a head loses either some keys or all; one that would lose all keeps all.
    """
    real = x.mask[:, None]
    bare = jnp.where(real, 0.0, HIDDEN)
    if x.drop is None:
        return bare, bare
    lost = hides(x.drop)
    if not x.bounded:
        lost = lost & (real & ~lost).any(axis=2, keepdims=True)
    factor = 1.0 if x.drop.dtype == bool else jnp.where(hides(x.drop), 1.0, x.drop)
    return jnp.where(real & ~lost, jnp.log(factor) / x.scale, HIDDEN), bare


def blind_queries(x: Arrays) -> Bool[Array, "B H Q"] | None:
    """True = the drop would leave the query no key, so it sees through the drop. None where `key_bias` has seen to it."""
    if x.drop is None or not x.bounded:
        return None
    lower, upper = x.ends()
    left = x.mask[:, None] & ~hides(x.drop)
    keys = left.shape[2]
    here = jnp.where(left, jnp.arange(keys), keys)
    if x.lower is None:
        following = here.min(axis=2, keepdims=True)
    else:
        following = jnp.take_along_axis(lax.cummin(here, axis=2, reverse=True), lower[:, None], axis=2)
    return following >= upper[:, None]
