"""A model whose sinks are planted by hand, so that every statistic is known beforehand.

Embeddings are one-hot plus a constant; nothing is added to the residual stream (o and down are zero), so every layer
sees the embeddings. All queries are equal, and the key of head (l, h) is `strength[l, h, token]` in the slowest rotary
pair (with a huge theta it does not turn). So every row of head (l, h) is softmax(strength[l, h, tokens]).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import jaxsink
from jaxsink.nn.parameters import named_leaves
from support.configs import FAMILIES

VOCAB, MASK = 12, 11


def planted_model(strength: np.ndarray) -> jaxsink.Model:
    """strength f32[L,H,V]: the attention logit that each token gets from every query of a head."""
    layers, heads, vocab = strength.shape
    width, size = vocab + 1, 8
    config = FAMILIES["llada"].replace(
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=size,
        width=width,
        mlp_width=4,
        vocab=vocab,
        mask_id=MASK,
        eos_ids=(1,),
        rope_theta=1e16,
        norm_eps=1e-12,
    )
    normed = np.sqrt(width / 2)  # what the norm makes of the two ones of an embedding
    q, k = np.zeros((2, layers, heads, size, width), np.float32)
    q[..., -1, -1] = 1 / normed
    k[..., -1, :vocab] = strength * np.sqrt(size) / normed
    values = {
        "embedding": np.concatenate([np.eye(vocab), np.ones((vocab, 1))], axis=1),
        "layers.attention.q.weight": q.reshape(layers, -1, width),
        "layers.attention.k.weight": k.reshape(layers, -1, width),
    }

    def value(name: str, shape: tuple[int, ...]) -> jax.Array:
        if name.endswith("norm.weight"):
            return jnp.ones(shape)
        return jnp.asarray(values.get(name, np.zeros(shape)), jnp.float32)

    leaves, treedef = named_leaves(jaxsink.abstract(config))
    return jax.tree.unflatten(treedef, [value(name, leaf.shape) for name, leaf in leaves])


def expected_received(strength: np.ndarray, canvas: np.ndarray, hidden: np.ndarray | None = None) -> np.ndarray:
    """f64[T,L,B,H,S] of canvases [T,B,S]: S times each row's softmax, with hidden [T,L,B,H,S] keys left out."""
    logits = np.moveaxis(strength[:, :, canvas].astype(np.float64), (0, 1), (1, 3))  # [T,L,B,H,S]
    weight = np.exp(logits) if hidden is None else np.where(hidden, 0, np.exp(logits))
    return canvas.shape[-1] * weight / weight.sum(axis=-1, keepdims=True)
