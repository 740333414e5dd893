"""An autoregressive model that is made to write given answers, beside the same model with nothing hidden."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxsink.evals.likelihood.divergence import divergence
from jaxsink.nn.batch import Batch
from jaxsink.parallel.axes import axes, constrain, pytree_dataclass
from jaxsink.sampling.autoregressive import ARCarry, ARSampler
from jaxsink.sampling.run import Decoding


@pytree_dataclass
class ForcedCarry(ARCarry):
    """The carry of the autoregressive sampler, and what the unmasked model makes of the same tokens."""

    unmasked: Float[Array, "B R E"] | None = axes()  # its hidden states, each before a token of the response
    divergence: Float[Array, "B S"] | None = axes()  # of the tokens that were written, 0 elsewhere


@dataclass(frozen=True)
class ForcedSampler(ARSampler):
    """For `generate(force=…)`: `Generation.divergence` is KL(unmasked ‖ masked) before each of the forced tokens.

    A sequence ends after the last token that it is made to write; end tokens among them count like any other.

    Given its tokens, the unmasked model needs no steps: one pass over prompt and answer gives all its predictions, and
    each step compares them with those that it makes under the intervention. diverges=False leaves that out.
    """

    stop_at_eos: bool = False
    diverges: bool = True

    def init(self, run: Decoding, tokens: Int[Array, "B S"]) -> ForcedCarry:
        carry = super().init(run, tokens)
        batch, length = tokens.shape
        shape = (batch, length - run.spec.prompt_length, run.config.width)
        kept: dict[str, Any] = {field.name: getattr(carry, field.name) for field in dataclasses.fields(carry)}
        if not self.diverges:
            return constrain(ForcedCarry(**kept, unmasked=None, divergence=None), run.spec.mesh)
        unmasked, nothing = jnp.zeros(shape, run.model.dtype), jnp.zeros(tokens.shape, jnp.float32)
        return constrain(ForcedCarry(**kept, unmasked=unmasked, divergence=nothing), run.spec.mesh)

    def prefill(self, run: Decoding, carry: ARCarry) -> ARCarry:
        """The prompt into the cache; and the unmasked pass over everything that is to be written."""
        if not self.diverges:
            return super().prefill(run, carry)
        count, length = carry.tokens.shape
        before = jnp.broadcast_to(
            jnp.arange(run.spec.prompt_length, length) - 1, (count, length - run.spec.prompt_length)
        )
        tokens = jnp.maximum(carry.tokens, 0)  # what is free to be written stands at the end, where nothing sees it
        batch = Batch.make(run.config, tokens, run.inputs.mask, prompt=run.inputs.prompt)._replace(outputs=before)
        out = run.model(batch, execution=run.spec.execution, head=False)
        return super().prefill(run, carry).replace(unmasked=out.hidden)

    def _write(self, run: Decoding, carry: ARCarry, logits: Float[Array, "B V"]) -> ARCarry:
        assert isinstance(carry, ForcedCarry)
        position = run.spec.prompt_length + carry.step
        kept = carry.divergence
        if carry.unmasked is not None and kept is not None:
            apart = divergence(run.model.logits(carry.unmasked[:, carry.step]), logits)
            kept = kept.at[:, position].set(jnp.where(carry.done, 0.0, apart))
        after = super()._write(run, carry, logits)
        return after.replace(divergence=kept, done=carry.done | (carry.tokens[:, position + 1] < 0))

    def divergence(self, carry: ARCarry) -> Float[Array, "B S"] | None:
        assert isinstance(carry, ForcedCarry)
        return carry.divergence
