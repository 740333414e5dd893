"""The mlp of a layer that is the same for all tokens; mixtures of experts are in nn/experts.py."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Float

from jaxsink.nn.config import ModelConfig
from jaxsink.nn.linear import Linear, Maker

CPU_TILE = 64  # an x86 CPU's products sum in the same order for all sizes that are multiples of this

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
}


class Mlp(nnx.Module):
    """Gated (down(act(gate x) * up x)) or plain (down(act(up x))).

    On a CPU, float32 activations go through as columns: products are faster with weights on the left, and between these
    nothing need be turned around (4 % of a step of 12 x 768 at S = 256). Only where that changes no bit, so that results
    do not depend on the size of a batch.
    """

    def __init__(self, make: Maker, lead: tuple[int, ...], config: ModelConfig):
        self.config = config
        wide, width, bias = config.mlp_width, config.width, config.mlp_bias
        self.gate = Linear(make, lead, wide, width, bias) if config.mlp == "gated" else None
        self.up = Linear(make, lead, wide, width, bias)
        self.down = Linear(make, lead, width, wide, bias)

    def __call__(self, x: Float[Array, "*lead E"]) -> Float[Array, "*lead E"]:
        tokens = math.prod(x.shape[:-1])

        def as_rows(x: Array) -> Array:
            return self._apply(Linear.__call__, x)

        def as_columns(x: Array) -> Array:
            return self._apply(Linear.on_columns, x.reshape(tokens, -1).T).T.reshape(x.shape)

        sizes = (tokens, self.config.width, self.config.mlp_width)
        if x.dtype == jnp.float32 and not any(size % CPU_TILE for size in sizes):
            return lax.platform_dependent(x, cpu=as_columns, default=as_rows)
        return as_rows(x)

    def _apply(self, linear: Callable[[Linear, Array], Array], x: Array) -> Array:
        activate = ACTIVATIONS[self.config.activation]
        up = linear(self.up, x)
        if self.gate is None:
            return linear(self.down, activate(up))
        return linear(self.down, activate(linear(self.gate, x)) * up)
