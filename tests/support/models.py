"""Models with random weights, and sequences to run them on."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import jaxsink
from jaxsink.checkpoints.load import named_leaves


def lively(config: jaxsink.ModelConfig, seed: int = 0, dtype: str = "float32", size: float = 0.2) -> jaxsink.Model:
    """Random weights large enough for attention to be far from uniform, biases and norms included."""
    rng = np.random.default_rng(seed)
    leaves, treedef = named_leaves(jaxsink.abstract(config))

    def value(name: str, shape: tuple[int, ...]) -> jax.Array:
        around = 1.0 if name.endswith("norm.weight") else 0.0
        return jnp.asarray(around + size * rng.standard_normal(shape), dtype)

    return jax.tree.unflatten(treedef, [value(name, leaf.shape) for name, leaf in leaves])


def sequences(config: jaxsink.ModelConfig, batch: int = 3, length: int = 13) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, and a mask with a left-padded, a right-padded and a whole row."""
    tokens = np.random.default_rng(0).integers(0, config.vocab, (batch, length))
    mask = np.ones((batch, length), bool)
    mask[0, :3] = False
    mask[1, 9:] = False
    return tokens, mask
