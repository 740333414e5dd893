"""How far a model with hidden keys is from the unmasked one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def divergence(unmasked: Float[Array, "*axes V"], masked: Float[Array, "*axes V"]) -> Float[Array, "*axes"]:
    """KL(p_unmasked ‖ p_masked) of two sets of logits, in nats: what is lost by coding the one's tokens with the other."""
    first, second = jax.nn.log_softmax(unmasked), jax.nn.log_softmax(masked)
    return (jnp.exp(first) * (first - second)).sum(axis=-1)
