"""Do layers agree on where the sinks are? What of one layer's sinks another layer has too."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Shaped

from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.sinks.rules import Rule, with_mask


class Agreement(NamedTuple):
    """Of each pair of layers; "*axes" are the record's axes before the layer, such as T.

    Attributes:
        overlap: [i, j]: the share of layer j's sinks that are sinks of layer i; NaN where layer j has none
        chance: [i, j]: what it would be on average if layer i had as many at random positions; NaN where layer j has none

    Examples:
        >>> found = jaxsink.sinks.agreement(out.record, jaxsink.sinks.TopK(3), out.mask)
        >>> found.between_layers().shape == out.record.shape[:1] + out.mask.shape[:1]  # steps, sequences
        True
    """

    overlap: Float[Array, "*axes L L B"]
    chance: Float[Array, "*axes L L B"]

    def between_layers(self) -> Float[Array, "*axes B"]:
        """The mean overlap over all pairs of different layers that have one; NaN where none has."""
        return _mean_of_pairs(self.overlap)


@checked()
def agreement(
    received: Float[ArrayLike, "*axes L B H S"], rule: Rule, mask: Shaped[ArrayLike, "..."] | None = None
) -> Agreement:
    """How far the layers' sinks are the same keys, whatever the head: a layer's score of a key is its mean over heads.

    If sinks found in one layer are to stand for another's, `overlap[i, j]` is what is found of layer j's in layer i.

    Args:
        received: as `record.received()` gives it
        rule: what counts as a sink of a layer; with `TopK(k)` all layers have equally many
        mask: as for `detect`

    Examples:
        >>> found = jaxsink.sinks.agreement(out.record, jaxsink.sinks.TopK(3), out.mask)
        >>> found.overlap.shape[1:3]  # layer by layer
        (4, 4)
        >>> bool((found.overlap[:, 2, 2] == 1).all())  # each layer agrees with itself
        True
    """
    scores, real = with_mask(received, mask)
    if scores.ndim < 4:
        raise JaxsinkError(f"agreement needs scores [..., L, B, H, S] with their layers, not of shape {scores.shape}.")
    return _agreement(scores, real, rule)


@partial(jax.jit, static_argnames="rule")
def _agreement(scores: Float[Array, "*axes L B H S"], real: Bool[Array, "..."], rule: Rule) -> Agreement:
    there = jnp.broadcast_to(real, scores.shape)[..., 0, :]
    sinks = rule.find(scores.mean(axis=-2), there)
    count = sinks.sum(axis=-1)  # [*axes, L, B]
    of = count[..., None, :, :]
    shared = jnp.einsum("...ibs,...jbs->...ijb", sinks.astype(jnp.float32), sinks.astype(jnp.float32))
    share = count / jnp.maximum(there.sum(axis=-1), 1)
    overlap = jnp.where(of > 0, shared / jnp.maximum(of, 1), jnp.nan)
    chance = jnp.where(of > 0, jnp.broadcast_to(share[..., :, None, :], overlap.shape), jnp.nan)
    return Agreement(overlap, chance)


@jax.jit
def _mean_of_pairs(overlap: Float[Array, "*axes L L B"]) -> Float[Array, "*axes B"]:
    others = ~jnp.eye(overlap.shape[-2], dtype=bool)[..., None] & ~jnp.isnan(overlap)
    count = others.sum(axis=(-3, -2))
    total = jnp.where(others, overlap, 0.0).sum(axis=(-3, -2))
    return jnp.where(count > 0, total / jnp.maximum(count, 1), jnp.nan)
