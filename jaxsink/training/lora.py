"""Low-rank adapters: W + 2 B A is trained through B [out, rank] and A [rank, in], and the weights stay as they are.

The sum is formed in every step and the model runs as usual, so that everything else (recording, objectives, export) knows
nothing of adapters. It saves the memory of gradients and moments, not time.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.transformer import Model
from jaxsink.training.optimizer import is_matrix

SCALE = 2.0  # alpha / rank, as is usual

Adapters = dict[str, dict[str, Float[Array, "..."]]]
"""{name of the matrix: {"a": [rank, in], "b": [out, rank]}}"""


def make_adapters(model: Model, rank: int, seed: int) -> Adapters:
    """For every matrix of the layers of an unrolled model; B is zero, so that training begins at the model itself."""
    found: Adapters = {}
    matrices = [(name, leaf) for name, leaf in named_leaves(model)[0] if is_matrix(name) and leaf.ndim == 2]
    for number, (name, leaf) in enumerate(matrices):
        out, into = leaf.shape
        key = jax.random.fold_in(jax.random.key(seed), number)
        found[name] = {
            "a": jax.random.normal(key, (rank, into), jnp.float32) * into**-0.5,
            "b": jnp.zeros((out, rank), jnp.float32),
        }
    return found


def merged(model: Model, adapters: Adapters) -> Model:
    """The model with its adapters added to its weights."""
    leaves, treedef = named_leaves(model)
    added = [
        leaf + SCALE * (adapters[name]["b"] @ adapters[name]["a"]).astype(leaf.dtype) if name in adapters else leaf
        for name, leaf in leaves
    ]
    return jax.tree.unflatten(treedef, added)
