"""How far a score stands above the others: the one home of Eq. 3 of the study, for rules, reductions and displays."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float


def margin(scores: Float[Array, "*axes S"], real: Bool[Array, "#*axes S"]) -> Float[Array, "*axes S"]:
    """Each score minus the mean of the others; a token that is alone has margin -inf."""
    count = real.sum(axis=-1, keepdims=True)
    total = jnp.where(real, scores, 0.0).sum(axis=-1, keepdims=True)
    others = (total - scores) / jnp.maximum(count - 1, 1)
    return jnp.where(count > 1, scores - others, -jnp.inf)
