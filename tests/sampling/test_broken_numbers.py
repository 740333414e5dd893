"""Logits that are no numbers end a run with a sentence, in whatever sampler, on whatever devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array
from support.golden import Golden, golden

import jaxsink
from jaxsink import ARSampler, DreamSampler, JaxsinkError, LLaDASampler
from jaxsink.parallel import make_mesh, shard

pytestmark = pytest.mark.usefixtures("quick_compilation")
SAMPLERS = {
    "llada_tiny": LLaDASampler(8, 8, 4),
    "dream_tiny": DreamSampler(8, 8),
    "llama_tiny": ARSampler(8, stop_at_eos=False),
}
PROMPTS = [[5, 6, 7], [8, 9]]


def with_weights(model: jaxsink.Model, change: Callable[[Array], Array]) -> jaxsink.Model:
    """The model with another final norm, so that everything but the logits stays sound."""
    norm = model.norm.weight[...]

    def put(leaf: Array) -> Array:
        return change(leaf) if leaf is norm or (leaf.shape == norm.shape and bool((leaf == norm).all())) else leaf

    return jax.tree.map(put, model)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("wrong", [jnp.nan, jnp.inf])
@pytest.mark.parametrize("how", ["plain", "streamed", "pmap", "mesh"])
def test_generation_stops(name: str, wrong: float, how: str) -> None:
    case: Golden = golden(name)
    model = with_weights(case.model, lambda x: x.at[0].set(wrong))
    options: dict[str, Any] = {"streamed": {"stream": 2}, "pmap": {"devices": jax.devices()[:2]}}.get(how, {})
    model = shard(model, make_mesh(2, 4)) if how == "mesh" else model
    with pytest.raises(JaxsinkError, match=r"logits of sequence 0 became NaN or infinite in step 0"):
        jaxsink.generate(model, PROMPTS, SAMPLERS[name], **options)


def test_the_sequence_and_the_step_are_named() -> None:
    model = golden("llada_tiny").model

    def edit(step: Array, logits: Array, position: Array) -> Array:
        return logits.at[1].add(jnp.where(step == 3, jnp.nan, 0.0))

    with pytest.raises(JaxsinkError, match="sequence 1 became NaN or infinite in step 3"):
        jaxsink.generate(model, PROMPTS, SAMPLERS["llada_tiny"], edit_logits=edit)


def test_forbidden_tokens_are_no_damage() -> None:
    """-inf says "not this one"; only a position without any token left is broken."""
    model = golden("llada_tiny").model
    some = jaxsink.generate(
        model, PROMPTS, SAMPLERS["llada_tiny"], edit_logits=lambda step, logits, at: logits.at[..., 10:].set(-jnp.inf)
    )
    assert int(some.tokens[:, 3:].max()) < 10
    with pytest.raises(JaxsinkError, match="NaN or infinite"):
        jaxsink.generate(model, PROMPTS, SAMPLERS["llada_tiny"], edit_logits=lambda step, logits, at: logits - jnp.inf)


@pytest.mark.parametrize("name", ["llada_tiny", "dream_tiny"])
@pytest.mark.parametrize("how", ["plain", "streamed", "pmap", "mesh"])
@pytest.mark.parametrize(("when", "wrong"), [(-1, 10_000), (3, 10_000), (3, -1)])
def test_tokens_beyond_the_vocabulary(name: str, how: str, when: int, wrong: int) -> None:
    """What `edit_tokens` writes are the model's tokens, or the run ends there."""
    model = golden(name).model
    vocab, seen = model.config.vocab, []
    options: dict[str, Any] = {"streamed": {"stream": 1}, "pmap": {"devices": jax.devices()[:2]}}.get(how, {})
    if how == "streamed":
        options["listener"] = lambda step, tokens, committed_at: seen.append(tokens)
    model = shard(model, make_mesh(2, 4)) if how == "mesh" else model

    def edit(step: Array, tokens: Array) -> Array:
        return tokens.at[:, 0].set(jnp.where((step == when) & (tokens[:, 0] == 5), wrong, tokens[:, 0]))

    with pytest.raises(
        JaxsinkError, match=f"edit_tokens wrote token id {wrong} into sequence 0, outside .* of {vocab} rows"
    ):
        jaxsink.generate(model, PROMPTS, SAMPLERS[name], edit_tokens=edit, **options)
    assert all(tokens.min() >= 0 and tokens.max() < vocab for tokens in seen)
