"""How much arithmetic a training step is, by the usual count: so that speeds of models and machines can be compared."""

from __future__ import annotations

from jaxsink.nn.config import ModelConfig
from jaxsink.nn.new_model import abstract
from jaxsink.nn.parameters import named_leaves


def flops_per_token(config: ModelConfig, length: int) -> float:
    """Of a step: 2 for each weight of a product forward, twice that backward; and the products of attention, whole maps.

    Norms and the embedding, which is looked up, count nothing; the head counts even if it is the embedding. Of experts only
    those count that a token goes through. Block diffusion runs two tokens for each of the text.
    """
    matrices = [(name, leaf.shape) for name, leaf in named_leaves(abstract(config))[0] if leaf.ndim > 1]
    weights = config.vocab * config.width
    for name, shape in matrices:
        if not name.startswith("layers.") or "norm" in name or len(shape) < 3:
            continue
        size = float(shape[0])
        for axis in shape[1:]:
            size *= axis
        if config.experts is not None and len(shape) == 4:  # [L, X, out, in]
            size *= config.experts.per_token / config.experts.count
        weights += size
    attention = 2 * config.layers * length * config.heads * config.head_dim
    copies = 2 if config.attention == "block_causal" else 1
    return copies * 6.0 * (weights + copies * attention)
