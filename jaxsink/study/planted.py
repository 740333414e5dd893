"""A model whose sinks are planted by hand, so that the answer of every statistic is known beforehand.

Embeddings are one-hot plus a constant; nothing is added to the residual stream (o and down are zero), so every layer
sees the embeddings. All queries are equal, and the key of head (l, h) is `strength[l, h, token]` in the slowest rotary
pair (with a huge theta it does not turn). So every row of head (l, h) is softmax(strength[l, h, tokens]).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from jaxsink.nn.config import ModelConfig
from jaxsink.nn.new_model import abstract
from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.transformer import Model
from jaxsink.zoo.builtin import BUILTIN

HEAD_DIM = 8
LAYERS, HEADS = 4, 4
WEAKEST, PER_LAYER = 2.5, 0.5  # attention logit of a planted sink in the first layer, and what each layer adds
EARLY = 2  # layers that have a second sink


def planted_model(strength: Float[np.ndarray, "L H V"], config: ModelConfig) -> Model:
    """strength: the attention logit that each token gets from every query of a head. config: of a llada model, whose
    special tokens it takes; the sizes follow from the strength."""
    layers, heads, vocab = strength.shape
    width = vocab + 1
    config = config.replace(
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=HEAD_DIM,
        width=width,
        mlp_width=4,
        vocab=vocab,
        rope_theta=1e16,
        norm_eps=1e-12,
    )
    normed = np.sqrt(width / 2)  # what the norm makes of the two ones of an embedding
    q, k = np.zeros((2, layers, heads, HEAD_DIM, width), np.float32)
    q[..., -1, -1] = 1 / normed
    k[..., -1, :vocab] = strength * np.sqrt(HEAD_DIM) / normed
    values = {
        "embedding": np.concatenate([np.eye(vocab), np.ones((vocab, 1))], axis=1),
        "layers.attention.q.weight": q.reshape(layers, -1, width),
        "layers.attention.k.weight": k.reshape(layers, -1, width),
    }

    def value(name: str, shape: tuple[int, ...]) -> Array:
        if name.endswith("norm.weight"):
            return jnp.ones(shape)
        return jnp.asarray(values.get(name, np.zeros(shape)), jnp.float32)

    leaves, treedef = named_leaves(abstract(config))
    return jax.tree.unflatten(treedef, [value(name, leaf.shape) for name, leaf in leaves])


def static_sinks(vocab: int, first_id: int, second_id: int) -> Model:
    """Sinks on two tokens, whoever looks: one in every layer, stronger with depth, the other in the early layers only.

    So attention gathers on few keys, deep layers have fewer and stronger sinks, masked and unmasked queries have the same
    ones, and none ever moves.
    """
    strength = np.zeros((LAYERS, HEADS, vocab), np.float32)
    strength[:, :, first_id] = WEAKEST + PER_LAYER * np.arange(LAYERS)[:, None]
    strength[:EARLY, :, second_id] = WEAKEST + PER_LAYER * np.arange(EARLY)[:, None]
    return planted_model(strength, BUILTIN["mini-llada"].config)
