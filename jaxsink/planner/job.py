"""What is planned: a model, a sampler, a batch and what is recorded; and the work that one step of it cannot avoid."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.context_cache import keeps_context
from jaxsink.sampling.interventions import Intervention, acts_on_all_rows, ranks_on_clean
from jaxsink.sampling.run import RunSpec

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 2}  # of activations, keys and values


@dataclass(frozen=True)
class Job:
    """A call of `generate`, without weights and prompts.

    record: a pytree of recorders, as for `generate`. unrolled: as `Model.unrolled()`. backend: None chooses by size.
    stream: steps of which a device holds records, as for `generate`. room: positions of the response; None = as many as
    the sampler needs for this prompt.
    """

    config: ModelConfig
    sampler: Sampler
    batch: int
    prompt: int
    record: Any = None
    every: int = 1
    intervene: Intervention | None = None
    dtype: str = "bfloat16"
    backend: str | None = None
    unrolled: bool = False
    stream: int | None = None
    room: int | None = None

    @property
    def is_autoregressive(self) -> bool:
        return self.sampler.is_autoregressive

    @property
    def response(self) -> int:
        """Positions of the response; SDAR completes its last block."""
        if self.room is not None:
            return self.room
        return self.sampler.response_mask(self.config, np.array([self.prompt]), padded=False).shape[1]

    @property
    def length(self) -> int:
        return self.prompt + self.response

    @property
    def steps(self) -> int:
        return self.sampler.total_steps(self.response)

    def spec(self, mesh: Mesh | None) -> RunSpec:
        """The static part of the run, as `generate` would make it on this mesh."""
        return RunSpec.make(
            self.config,
            self.record,
            self.intervene,
            every=self.every,
            prompt_length=self.prompt,
            length=self.length,
            total_steps=self.steps,
            backend=self.backend,
            mesh=mesh,
        )

    def replace(self, **changes: Any) -> Job:
        return replace(self, **changes)

    @property
    def queries(self) -> float:
        """Tokens of a sequence that run in a step, on average: all, one, or with a cache a block after one full pass."""
        if self.keeps_context:
            return self.sampler.window(self.config)
        return self.length if acts_on_all_rows(self.intervene) else self.sampler.queries_per_step(self.length)

    @property
    def keeps_context(self) -> bool:
        """Does a step run its block alone, on the keys and values of what is finished?"""
        return keeps_context(self.sampler, self.config, self.spec(None))

    @property
    def passes(self) -> int:
        """Times the layers run in a step."""
        return self.sampler.passes + int(self.intervene is not None and ranks_on_clean(self.intervene))

    @property
    def flops(self) -> float:
        """Of the matrix products of one step, all devices together."""
        config = self.config
        per_token = self.layers_flops(self.length)
        head = 2 * config.width * config.vocab * self.sampler.window(config)
        return self.batch * (self.passes * self.queries * per_token + head)

    @property
    def prefill_flops(self) -> float:
        """Of the pass over the prompt that fills an autoregressive model's cache before the first step."""
        if not self.is_autoregressive or acts_on_all_rows(self.intervene):
            return 0.0
        return self.batch * self.prompt * self.layers_flops(self.prompt)

    def layers_flops(self, keys: int) -> float:
        """Of one token in all layers, if it looks at so many keys."""
        return sum(segment.layers * self.layer_flops(segment, keys) for segment in self.config.segments)

    def layer_flops(self, config: ModelConfig, keys: int) -> float:
        """Of one token in one of these layers."""
        heads = config.heads * config.head_dim
        projections = config.width * (2 * heads + 2 * config.kv_heads * config.head_dim)
        wide = (3 if config.mlp == "gated" else 2) * config.width * config.mlp_width
        if config.experts is not None:
            wide *= config.experts.per_token
            wide += config.width * (config.experts.count + 3 * (config.experts.shared_width or 0))
        return 2 * (projections + wide) + 4 * heads * keys

    @property
    def cache_bytes(self) -> float:
        """Keys and values that a step reads, all devices together."""
        is_cached = self.is_autoregressive and not acts_on_all_rows(self.intervene)
        if not is_cached and self.sampler.cache is None and not self.keeps_context:
            return 0.0
        config = self.config
        per_token = 2 * config.layers * config.kv_heads * config.head_dim * DTYPE_BYTES[self.dtype]
        return self.batch * self.length * per_token
