"""The same weights under another attention pattern: what changes, what stays, and Nemotron's views of one sequence."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from support.configs import FAMILIES
from support.golden import golden
from support.models import lively, sequences
from support.reference import transformer as reference

import jaxsink
from jaxsink import JaxsinkError, record
from jaxsink.nn import rope
from jaxsink.nn.batch import Batch

pytestmark = pytest.mark.usefixtures("quick_compilation")

MODES = [("causal", None), ("bidirectional", None), ("block_causal", 5)]


@pytest.mark.parametrize(("attention", "block"), MODES)
@pytest.mark.parametrize("family", ["nemotron", "dream", "sdar", "llama3.1", "mixed"])
def test_every_mode_against_float64_numpy(family: str, attention: str, block: int | None) -> None:
    config = FAMILIES[family]
    model = lively(config)
    tokens, mask = sequences(config)
    other = model.with_attention(attention, block)  # pyright: ignore[reportArgumentType]
    logits, maps = reference.run(config.replace(attention=attention, block_length=block), model.params, tokens, mask)
    made = jax.tree.structure(lively(config.replace(attention=attention, block_length=block)))
    assert jax.tree.structure(other) == made  # one program for a model that was loaded so, and one that was changed
    by_call = jaxsink.forward(model, tokens, mask, record=record.maps(), attention=attention, block_length=block)  # pyright: ignore[reportArgumentType]
    for out in (by_call, jaxsink.forward(other, tokens, mask, record=record.maps(), backend="blocked")):
        np.testing.assert_allclose(np.asarray(out.logits)[mask], logits[mask], atol=3e-5 * np.abs(logits).max())
        np.testing.assert_allclose(np.asarray(out.record), maps, atol=2e-5)


def test_weights_are_shared_and_the_rest_stays() -> None:
    model = jaxsink.load("mini-dream")
    causal = model.with_attention("causal")
    assert all(a is b for a, b in zip(jax.tree.leaves(model), jax.tree.leaves(causal), strict=True))
    assert causal.config == model.config.replace(attention="causal")
    assert (causal.config.mask_id, causal.config.shift_logits) == (model.config.mask_id, True)
    assert model.config.is_diffusion and not causal.config.is_diffusion
    assert isinstance(jaxsink.sampler_for(causal), jaxsink.ARSampler)
    assert causal.tokenizer.decode(causal.tokenizer.encode(" apples")) == " apples"
    assert model.with_attention(None) is model and model.with_attention("bidirectional") is model
    back = causal.with_attention("bidirectional")
    assert back.config == model.config and back.origin.sampler is None
    assert model.unrolled().with_attention("causal").is_unrolled


def test_a_diffusion_model_that_runs_causally_never_writes_its_mask() -> None:
    model = lively(FAMILIES["nemotron"], seed=3).with_attention("causal")
    mask = model.config.mask_id
    assert mask is not None
    leaves, treedef = jax.tree.flatten(model)
    model = jax.tree.unflatten(treedef, leaves)
    prompts = np.random.default_rng(7).integers(4, 60, (2, 6))
    free = np.asarray(jaxsink.generate(model, prompts, jaxsink.ARSampler(8)).response)
    best = model.config.replace(mask_id=int(free[0, 3]))  # another token plays the mask
    other = jax.tree.unflatten(jax.tree.structure(jaxsink.abstract(best)), jax.tree.leaves(model))
    assert not (np.asarray(jaxsink.generate(other, prompts, jaxsink.ARSampler(8)).response) == best.mask_id).any()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sideways",), "attention must be one of"),
        (("block_causal",), "block_length belongs to"),
        (("block_causal", -2), "block_length must be a positive whole number"),
        (("causal", 4), "block_length belongs to"),
        (("block_causal", 0), "block_length must be a positive whole number"),
        ((None, 4), "give attention too"),
    ],
)
def test_wrong_modes(arguments: tuple[object, ...], words: str) -> None:
    model = lively(FAMILIES["llada"])
    with pytest.raises(JaxsinkError, match=words):
        model.with_attention(*arguments)  # pyright: ignore[reportArgumentType]
    keywords = dict(zip(("attention", "block_length"), arguments, strict=False))
    with pytest.raises(JaxsinkError, match=words):
        jaxsink.forward(model, [[1, 2]], **keywords)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("family", ["llada2", "fast_dllm", "sdar", "bd3lm"])
def test_blocks_of_another_length_without_naming_the_pattern(family: str) -> None:
    """attention=None is the model's own, so a length alone is enough for a block-causal one."""
    config = FAMILIES[family]
    model = lively(config)
    tokens, mask = sequences(config)
    alone = jaxsink.forward(model, tokens, mask, block_length=7)
    named = jaxsink.forward(model, tokens, mask, attention="block_causal", block_length=7)
    np.testing.assert_array_equal(alone.logits, named.logits)
    assert model.with_attention(None, 7).config == config.replace(block_length=7)
    assert np.abs(np.asarray(alone.logits - jaxsink.forward(model, tokens, mask).logits)).max() > 1e-3


def test_a_config_that_names_a_block_gives_the_block_causal_mode_its_length() -> None:
    """Nemotron's `block_size`, of its training, which its own pattern does not use."""
    fixture = golden("nemotron_labs_diffusion_tiny")
    ids, model = fixture.case("fwd_bidirectional")["input_ids"], fixture.model
    out = jaxsink.forward(model, ids, attention="block_causal")
    np.testing.assert_array_equal(
        out.logits, jaxsink.forward(model, ids, attention="block_causal", block_length=8).logits
    )
    assert model.with_attention("block_causal", 4).config.block_length == 4
    assert jaxsink.preset("nemotron-labs-diffusion-8b").with_attention("block_causal").block_length == 32


@pytest.mark.parametrize(
    "changes",
    [
        {"query_scale_beta": 0.1},
        {"query_scale_length": 4},
        {"query_scale_beta": -1.0, "query_scale_length": 4},
        {"query_scale_beta": 0.1, "query_scale_length": 0},
    ],
)
def test_wrong_query_scales(changes: dict[str, float]) -> None:
    with pytest.raises(JaxsinkError, match=r"query_scale_(beta and query_scale_length go|beta must be|length must be)"):
        FAMILIES["llada"].replace(**changes)
    with pytest.raises(JaxsinkError, match="rotary positions"):
        FAMILIES["gpt2"].replace(query_scale_beta=0.1, query_scale_length=4)


@pytest.mark.parametrize("backend", ["naive", "blocked", "pallas"])
def test_a_block_on_a_causal_context(backend: str) -> None:
    """A step of Nemotron's generation: by a mask of pairs, and by limits, as its sampler sees it."""
    fixture = golden("nemotron_labs_diffusion_tiny")
    case, model = fixture.case("fwd_block_step"), fixture.model
    ids, length = case["input_ids"], case["input_ids"].shape[1]
    visible = np.tri(length, dtype=bool)
    visible[-8:] = True
    pairs = np.broadcast_to(visible, (2, length, length))
    out = jaxsink.forward(model, ids, visible=pairs, record=record.maps(), backend=backend)
    np.testing.assert_allclose(np.asarray(out.logits)[:, -8:], case["logits"], atol=1e-4)
    np.testing.assert_allclose(np.asarray(out.record)[..., -8:, :], case["attn_probs"], atol=1e-5)
    position = np.arange(length)
    limit = np.where(position >= length - 8, length, position + 1)
    batch = Batch.make(model.config, jax.numpy.asarray(ids), jax.numpy.ones(ids.shape, bool))
    batch = batch._replace(limit=jax.numpy.broadcast_to(limit, ids.shape))
    limited: Any = model(batch, execution=jaxsink.nn.batch.Execution(backend))
    np.testing.assert_allclose(limited.logits, out.logits, atol=1e-4)


def test_the_training_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """[noisy | clean]: rotary positions restart in the clean half. Ours count from the first token of each half, so that
    the clean half is what the causal model computes of the text alone; the fixture's query scale runs on through both."""
    fixture = golden("nemotron_labs_diffusion_tiny")
    case, model = fixture.case("fwd_block_diff"), fixture.model
    clean, block, half = case["input_ids"], 8, case["input_ids"].shape[1]
    noisy = np.where(case["masked_indices"], model.config.mask_id, clean)
    tokens = jax.numpy.asarray(np.concatenate([noisy, clean], axis=1))
    index = np.arange(2 * half)
    number, is_clean = index % half // block, index >= half
    own = (number[:, None] == number) & ~is_clean[:, None] & ~is_clean
    earlier = (number[:, None] > number) & ~is_clean[:, None] & is_clean
    causal = (index[:, None] >= index) & is_clean[:, None] & is_clean
    batch = Batch.make(model.config, tokens, jax.numpy.ones(tokens.shape, bool))._replace(
        visible=jax.numpy.broadcast_to(own | earlier | causal, (2, 2 * half, 2 * half)),
        token_position=jax.numpy.broadcast_to(index % half, tokens.shape),
    )
    ours = np.asarray(model(batch).logits)
    alone = np.asarray(jaxsink.forward(model, clean, attention="causal").logits)
    np.testing.assert_allclose(ours[:, half:], alone, atol=1e-4)
    assert np.abs(ours[:, half:] - case["causal_logits"]).max() > 1e-2

    scale = rope.query_scale
    monkeypatch.setattr(rope, "query_scale", lambda config, positions: scale(config, index[None] + 0 * positions))
    theirs = np.asarray(model(batch).logits)
    np.testing.assert_allclose(theirs[:, :half], case["logits"], atol=1e-4)
    np.testing.assert_allclose(theirs[:, half:], case["causal_logits"], atol=1e-4)
