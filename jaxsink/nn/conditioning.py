"""What a model is told about the noise level, and how its layers use it (adaLN).

BD3LM, MDLM and GIDD are diffusion transformers: a small network turns the noise level of a sequence into a vector, and every
layer makes of it a shift and a scale for what enters its two halves, and a gate for what these add. A model whose
`ModelConfig.time_conditioning` is "constant" was trained without the level: the vector is that of level 0, always.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float, Float32

from jaxsink.nn.batch import MASKED, Batch
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.linear import Linear, Maker

WAVES = 128  # cosines and sines of the level, each
LONGEST = 10000.0
LEAST_KEPT = 1e-3  # of "total" noise: the share of tokens that is left at level 1


def as_time(config: ModelConfig, level: Float32[Array, " B"]) -> Float32[Array, " B"]:
    """What the model is told at a noise level, the share of tokens that are noise."""
    return -jnp.log(1 - level + LEAST_KEPT * level) if config.time_conditioning == "total" else level


def share_of_masks(batch: Batch) -> Float32[Array, " B"]:
    """Of the real tokens of each sequence: its noise level, as far as one can see it."""
    masks = (batch.mask & (batch.kind == MASKED)).sum(axis=1)
    return masks.astype(jnp.float32) / jnp.maximum(batch.mask.sum(axis=1), 1)


class TimeEmbedding(nnx.Module):
    """Cosines and sines of the level through two matrices: the vector that all layers read."""

    def __init__(self, make: Maker, config: ModelConfig):
        assert config.time_width is not None
        self.config = config
        self.first = Linear(make, (), config.time_width, 2 * WAVES, bias=True)
        self.second = Linear(make, (), config.time_width, config.time_width, bias=True)

    def __call__(self, batch: Batch) -> Float[Array, "#B C"]:
        if self.config.time_conditioning == "constant":
            time = jnp.zeros(1, jnp.float32)
        else:
            time = as_time(self.config, share_of_masks(batch)) if batch.time is None else batch.time
        frequency = jnp.exp(-math.log(LONGEST) * jnp.arange(WAVES, dtype=jnp.float32) / WAVES)
        angle = time.astype(jnp.float32)[:, None] * frequency
        waves = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1)
        return jax.nn.silu(self.second(jax.nn.silu(self.first(waves.astype(self.first.weight.dtype)))))


class Adapted(NamedTuple):
    """Shift, scale and gate of one half of a layer; nothing happens where they are None."""

    shift: Float[Array, "#B 1 E"] | None = None
    scale: Float[Array, "#B 1 E"] | None = None
    gate: Float[Array, "#B 1 E"] | None = None

    def enter(self, x: Float[Array, "B Q E"]) -> Float[Array, "B Q E"]:
        """What goes in, after its norm."""
        return x if self.shift is None or self.scale is None else x * (1 + self.scale) + self.shift

    def leave(self, added: Float[Array, "B Q E"]) -> Float[Array, "B Q E"]:
        """What comes out, before it is added to the residual stream."""
        return added if self.gate is None else self.gate * added


class Modulation(nnx.Module):
    """The shifts, scales and gates of a layer, or the last shift and scale before the head, from the conditioning vector."""

    def __init__(self, make: Maker, lead: tuple[int, ...], config: ModelConfig, parts: int):
        assert config.time_width is not None
        self.parts = parts
        self.linear = Linear(make, lead, parts * config.width, config.time_width, bias=True)

    def __call__(self, condition: Float[Array, "#B C"]) -> tuple[Float[Array, "#B 1 E"], ...]:
        return tuple(jnp.split(self.linear(condition)[:, None], self.parts, axis=-1))
