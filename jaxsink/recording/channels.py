"""Massive activations by channel: which features of the residual stream are large, and for how many tokens.

A channel is one feature of the stream. A *massive activation* is one number, of one token (`record.hidden_max`); a
*super-outlier* is a channel that is larger than all others for nearly every token.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32

from jaxsink.nn.recorder import Recorder, ready_made
from jaxsink.nn.taps import VectorTap


@ready_made
def channels() -> Recorder:
    """{"mean", "max", "first"}: f32[B,E] each, of the residual stream after the layer, by channel.

    Over the real tokens that ran: the mean of |x|, the largest |x|, and the share of tokens of which this channel is the
    largest. `reduce.top_channels(k)` keeps the k largest of them, where all E are too many.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.channels())
        >>> {name: part.shape for name, part in seen.record.items()}  # layers, sequences, channels
        {'first': (4, 1, 128), 'max': (4, 1, 128), 'mean': (4, 1, 128)}
    """
    return Recorder(_channels, "once", tap="residual")


def _channels(tap: VectorTap) -> dict[str, Float32[Array, "B E"]]:
    counted = tap.query_mask[..., None]
    size = jnp.where(counted, jnp.abs(tap.vectors.astype(jnp.float32)), 0.0)
    count = jnp.maximum(counted.sum(axis=1), 1)
    largest = jax.nn.one_hot(size.argmax(axis=-1), size.shape[-1], dtype=jnp.float32)
    return {
        "mean": size.sum(axis=1) / count,
        "max": size.max(axis=1),
        "first": jnp.where(counted, largest, 0.0).sum(axis=1) / count,
    }
