"""The bytes that a run of `generate` needs, by what fills them; from shapes, so nothing is allocated."""

from __future__ import annotations

from jax import Array
from jaxtyping import Int

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
from jaxsink.sampling.execution import Program
from jaxsink.sampling.interventions import acts_on_all_rows
from jaxsink.sampling.run import RunInputs


def bytes_needed(program: Program, tokens: Int[Array, "B S"], inputs: RunInputs, chunk: int) -> dict[str, int]:
    """At least; of all devices together. chunk: the steps whose records the device holds at once."""
    model, sampler, spec = program.model, program.sampler, program.spec
    config, (batch, length) = model.config, tokens.shape
    carry, records = program.shapes(tokens, inputs, chunk)
    queries = 1 if sampler.is_autoregressive and not acts_on_all_rows(spec.intervene) else length
    window = length if spec.infill else sampler.window(config)
    is_naive = spec.execution.backend == "naive"
    return {
        WEIGHTS: tree_bytes(model),
        ACTIVATIONS: activation_bytes(config, batch, queries, model.dtype),
        RECORDS: tree_bytes(records),
        LOGITS: 4 * batch * window * config.vocab,
        MAPS: 4 * batch * config.heads * queries * length if is_naive else 0,
        CACHE: tree_bytes(carry.caches()),
        INTERVENTION: tree_bytes((carry.needed_record, carry.drop, carry.targets)),
    }
