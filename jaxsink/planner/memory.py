"""The memory of a run without compiling it: the weights exactly, the rest by a formula that rather says too much.

The formula has the large parts only, in bytes per token of the sequences on a device: what a layer holds at its widest
point (the residual stream twice, and the MLP's gate, up and product, or queries, keys, values and output), what the
intervention keeps of every layer and head, keys and values where there is a cache, the record of the steps before it is
streamed, and the logits of the window. docs/tpu-performance.md compares it with the compiler, which also saves memory where
it is short, by computing things again.
"""

from __future__ import annotations

import math
from typing import Any

import jax

from jaxsink.nn.config import ModelConfig
from jaxsink.nn.expert_products import ROWS
from jaxsink.nn.new_model import abstract
from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.transformer import Model
from jaxsink.parallel.mesh import sharding_of
from jaxsink.planner.job import DTYPE_BYTES, Job

USABLE = 0.97  # of a device's memory; the rest is the program, and what the formula does not have
SCORES = 40  # bytes per key of every head: scores of the last step, random draws, their order, what is hidden
Weights = list[tuple[str, tuple[int, ...], int]]  # (name, shape on one device, bytes of a number)


def place_weights(job: Job, mesh: Any) -> Model:
    """The model as shapes, laid out as `load(path, mesh=mesh)` lays it out."""
    model = abstract(job.config, job.dtype)
    if job.unrolled:
        model = jax.eval_shape(lambda m: m.unrolled(), model)
    leaves, treedef = named_leaves(model)
    placed = [
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding_of(name, len(leaf.shape), job.config, mesh))
        for name, leaf in leaves
    ]
    return jax.tree.unflatten(treedef, placed)


def weights_on(job: Job, mesh: Any) -> Weights:
    leaves, _ = named_leaves(place_weights(job, mesh))
    return [(name, x.sharding.shard_shape(x.shape), x.dtype.itemsize) for name, x in leaves]


def total_bytes(weights: Weights) -> float:
    return sum(math.prod(shape) * size for _, shape, size in weights)


def estimated_bytes(job: Job, mesh: tuple[int, int], weights: float) -> float:
    """Bytes on each device of a (data, model) mesh, where it holds so many bytes of weights."""
    return weights + -(-job.batch // mesh[0]) * bytes_per_row(job, mesh[1])


def mlp_numbers(config: ModelConfig, parts: int) -> float:
    """What the mlp of a layer holds of a token: gate, up and product; with experts, what goes in and comes out of those on
    the device as well, and what every expert gave (nn/expert_products.py)."""
    if config.experts is None:
        return 3 * config.mlp_width / math.gcd(config.mlp_width, parts)
    share = min(1.0, ROWS / math.gcd(config.experts.count, parts))
    return config.experts.per_token * (config.width + share * (3 * config.mlp_width + 2 * config.width))


def bytes_per_row(job: Job, parts: int) -> float:
    """Of one sequence, on one of the `parts` devices that share the weights."""
    config, size = job.config, DTYPE_BYTES[job.dtype]
    heads, kv_heads = config.heads / math.gcd(config.heads, parts), config.kv_heads / math.gcd(config.kv_heads, parts)
    mlp = max(mlp_numbers(segment, parts) for segment in config.segments)
    widest = 2 * config.width + max(mlp, 2 * (heads + kv_heads) * config.head_dim)
    window = job.sampler.window(config)
    layer_tokens = job.prompt if job.is_autoregressive else job.length  # at most, in one pass
    working = max(layer_tokens * widest * size, 8 * window * config.vocab / math.gcd(config.vocab, parts))
    cached = job.is_autoregressive or job.sampler.cache is not None or job.keeps_context
    cache = 2 * config.layers * kv_heads * config.head_dim * size * job.length if cached else 0
    steps = job.steps if job.stream is None else min(job.stream, job.steps)
    recorded = 0 if job.record is None else 2 * steps * config.layers * job.length
    masking = 0 if job.intervene is None else SCORES * config.layers * heads * job.length
    return job.passes * working + cache + recorded + masking
