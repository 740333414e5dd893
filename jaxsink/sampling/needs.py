"""The bytes that a run of `generate` needs, by what fills them; from shapes, so nothing is allocated."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

from jaxsink.nn.memory import (
    ACTIVATIONS,
    CACHE,
    INTERVENTION,
    LOGITS,
    MAPS,
    RECORDS,
    WEIGHTS,
    activation_bytes,
    tree_bytes,
)
from jaxsink.sampling import autoregressive
from jaxsink.sampling.diffusion import Given, Settings


def bytes_needed(loop: Any, model: Any, tokens: Any, given: Given, settings: Settings, chunk: int) -> dict[str, int]:
    """At least; of all devices together. chunk: the steps whose records the device holds at once."""
    config = model.config
    batch, length = tokens.shape
    carry = jax.eval_shape(partial(loop.start, settings=settings), model, tokens, given)
    advance = partial(loop.advance.__wrapped__, settings=settings, chunk=chunk, begin=True)
    records = jax.eval_shape(advance, model, carry, given)[1]
    is_ar = loop is autoregressive
    queries = 1 if is_ar else length
    window = 1 if is_ar else length if settings.infill else settings.sampler.window(config)
    caches = (carry.cache, carry.clean) if is_ar else carry.cache
    return {
        WEIGHTS: tree_bytes(model),
        ACTIVATIONS: activation_bytes(config, batch, queries, model.dtype),
        RECORDS: tree_bytes(records),
        LOGITS: 4 * batch * window * config.vocab,
        MAPS: 4 * batch * config.heads * queries * length if settings.backend == "naive" else 0,
        CACHE: tree_bytes(caches),
        INTERVENTION: tree_bytes((carry.seen, carry.drop)),
    }
