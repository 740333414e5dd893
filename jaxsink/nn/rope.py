"""Rotary positions: angles per position, stretched for long contexts, and the rotation itself.

Models that read far beyond the length they were trained on may let queries grow with their position (`query_scale`), so that
attention does not spread thinner and thinner. With `ModelConfig.rotary_dim` only the first numbers of each head turn; the
others carry no position.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Float32, Int

from jaxsink.nn.config import ModelConfig, RopeScaling


class RopeTable(NamedTuple):
    """Cosine and sine of every query's angles, with an axis for the heads."""

    cos: Float32[Array, "B Q 1 pairs"]
    sin: Float32[Array, "B Q 1 pairs"]
    scale: Float32[Array, "B Q 1 1"] | None = None  # of queries; None = 1

    @classmethod
    def make(cls, config: ModelConfig, positions: Int[Array, "B Q"]) -> RopeTable:
        frequency, factor = rope_frequencies(config)
        angle = positions.astype(jnp.float32)[..., None, None] * frequency
        return cls(jnp.cos(angle) * factor, jnp.sin(angle) * factor, query_scale(config, positions))

    def rotate_query(self, x: Float[Array, "B Q H D"]) -> Float[Array, "B Q H D"]:
        """The same, and grown with the position."""
        rotated = self.rotate(x)
        return rotated if self.scale is None else rotated * self.scale.astype(x.dtype)

    def rotate(self, x: Float[Array, "B Q heads D"]) -> Float[Array, "B Q heads D"]:
        """Half rotation in float32: pairs are (i, i + pairs). What stands after the numbers that turn stays as it is."""
        turning = 2 * self.cos.shape[-1]
        if turning < x.shape[-1]:
            return jnp.concatenate([self.rotate(x[..., :turning]), x[..., turning:]], axis=-1)
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        rotated = [first * self.cos - second * self.sin, second * self.cos + first * self.sin]
        return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


def query_scale(config: ModelConfig, positions: Int[Array, "B Q"]) -> Float32[Array, "B Q 1 1"] | None:
    """1 + beta ln(1 + position // length), by token position; None for models without it."""
    if config.query_scale_beta is None or config.query_scale_length is None:
        return None
    times = (jnp.maximum(positions, 0) // config.query_scale_length).astype(jnp.float32)
    return (1 + config.query_scale_beta * jnp.log1p(times))[..., None, None]


def rope_frequencies(config: ModelConfig) -> tuple[Float32[np.ndarray, " pairs"], float]:
    """(angle per position, factor on cos and sin), computed on the host as PyTorch does."""
    turning = config.rotary_dim or config.head_dim
    exponent = np.arange(0, turning, 2, dtype=np.float32) / np.float32(turning)
    frequency = (1.0 / np.power(np.float32(config.rope_theta), exponent)).astype(np.float32)
    scaling = config.rope_scaling
    if scaling is None:
        return frequency, 1.0
    if scaling.kind == "linear":
        return (frequency / np.float32(scaling.factor)).astype(np.float32), 1.0
    if scaling.kind == "llama3":
        return _llama3(frequency, scaling), 1.0
    return _yarn(frequency, scaling, config.rope_theta, turning)


def _llama3(frequency: Float32[np.ndarray, " pairs"], scaling: RopeScaling) -> Float32[np.ndarray, " pairs"]:
    """Slow waves are stretched by the factor, fast ones kept, those between blended."""
    wavelength = 2 * math.pi / frequency
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = (scaling.original_length / wavelength - low) / (high - low)
    blended = (1 - blend) * frequency / scaling.factor + blend * frequency
    stretched = np.where(wavelength > scaling.original_length / low, frequency / scaling.factor, frequency)
    between = (wavelength >= scaling.original_length / high) & (wavelength <= scaling.original_length / low)
    return np.where(between, blended, stretched).astype(np.float32)


def _yarn(
    frequency: Float32[np.ndarray, " pairs"], scaling: RopeScaling, theta: float, turning: int
) -> tuple[Float32[np.ndarray, " pairs"], float]:
    """Dimensions that turn often within the original length are kept, those that hardly turn are stretched."""

    def dimension(turns: float) -> float:
        return turning * math.log(scaling.original_length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(dimension(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension(scaling.beta_slow)), turning - 1)
    ramp = np.clip((np.arange(len(frequency), dtype=np.float32) - low) / max(high - low, 1e-3), 0, 1)
    mixed = frequency / scaling.factor * ramp + frequency * (1 - ramp)
    factor = scaling.attention_factor
    return mixed.astype(np.float32), 0.1 * math.log(scaling.factor) + 1.0 if factor is None else factor
