"""The core against the PyTorch models' own outputs, and every family against a slow float64 reference."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES, VARIANTS
from support.golden import MODELS, golden, noisy_and_clean
from support.models import lively, sequences
from support.reference import transformer as reference

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.recording import recorders as record

pytestmark = pytest.mark.usefixtures("quick_compilation")

CASES = [
    (name, case)
    for name in MODELS
    for case in sorted({key.split(".")[0] for key in golden(name).arrays if key.startswith("fwd")})
    if case not in ("fwd_attention_mask_quirk", "fwd_block_step", "fwd_block_diff")  # the last two: test_modes.py
]


@pytest.mark.parametrize("backend", ["naive", "blocked"])
@pytest.mark.parametrize(("name", "case"), CASES)
def test_golden_forward(name: str, case: str, backend: str) -> None:
    expected, model = golden(name).case(case), golden(name).model
    mask = expected.get("attention_mask", expected.get("attention_mask_2d"))
    real = np.ones(expected["input_ids"].shape, bool) if mask is None else mask.astype(bool)
    visible = expected["attention_bias"][:, 0] if "attention_bias" in expected else None
    if "block_mask" in expected:
        visible = expected["block_mask"][:, 0]
        real = visible.any(axis=-1)
    wanted = {"maps": record.maps(), "hidden": record.hidden(), "after": record.residual()}
    more = {"time": expected["timesteps"]} if "timesteps" in expected else {}
    more["attention"] = "causal" if case == "fwd_causal" else None
    if case == "fwd_train":
        one = noisy_and_clean(real.shape[1] // 2, model.config.block_length)
        more["positions"], visible = (np.stack([x] * len(real)) for x in one)
    block = golden(name).meta.get("cases", {}).get(case, {}).get("block_length")
    if block and model.config.attention == "block_causal":
        model = model.with_config(model.config.replace(block_length=block))
    out = jaxsink.forward(model, expected["input_ids"], real, visible, record=wanted, backend=backend, **more)

    logits = expected.get("logits", expected.get("logits_with_position_ids"))
    some = real[:, : logits.shape[1]]  # the original cuts off the clean half
    np.testing.assert_allclose(np.asarray(out.logits)[:, : some.shape[1]][some], logits[some], atol=1e-4, rtol=0)
    if "attn_probs" in expected:
        maps = np.moveaxis(np.asarray(out.record["maps"]), 2, -1)[:, real]
        np.testing.assert_allclose(maps, np.moveaxis(expected["attn_probs"], 2, -1)[:, real], atol=1e-5, rtol=0)
    if "hidden_states" in expected:
        is_final = "timesteps" not in expected  # the others have no final norm in theirs
        last = np.asarray(out.hidden)[None] if is_final else out.record["after"][-1:]
        ours = np.concatenate([out.record["hidden"], last])[:, :, : some.shape[1]]
        np.testing.assert_allclose(ours[:, some], expected["hidden_states"][:, some], atol=1e-4, rtol=0)


def test_mmada_stays_bidirectional_under_a_padding_mask() -> None:
    """The original turns causal when a mask with zeros is passed; ours gives what it gives without the padding."""
    fixture = golden("mmada_tiny")
    case, model = fixture.case("fwd_attention_mask_quirk"), fixture.model
    mask = case["attention_mask"].astype(bool)
    ours = np.asarray(jaxsink.forward(model, case["input_ids"], mask).logits)
    assert not mask.all()
    assert np.abs(ours - case["logits"])[mask].max() > 0.1
    for row in range(len(mask)):
        alone = jaxsink.forward(model, case["input_ids"][row : row + 1, mask[row]]).logits[0]
        np.testing.assert_allclose(ours[row, mask[row]], alone, atol=1e-5)


@pytest.mark.parametrize("name", ["llada_tiny", "dream_tiny"])
def test_bfloat16_stays_near_the_pytorch_bfloat16_model(name: str) -> None:
    case = golden(name).case("fwd")
    out = jaxsink.forward(golden(name).model.astype("bfloat16"), case["input_ids"])
    assert out.logits.dtype == jnp.float32
    ours = np.abs(np.asarray(out.logits) - case["logits"])
    theirs = np.abs(case["logits_bf16"] - case["logits"])
    assert ours.mean() < 1.2 * theirs.mean()


@pytest.mark.parametrize("family", [*FAMILIES, *VARIANTS])
def test_every_family_against_float64_numpy(family: str) -> None:
    config = (FAMILIES | VARIANTS)[family]
    model = lively(config)
    tokens, mask = sequences(config)
    logits, attention = reference.run(config, model.params, tokens, mask)
    for backend in ("naive", "blocked"):
        out = jaxsink.forward(model, tokens, mask, record=record.maps(), backend=backend)
        scale = np.abs(logits).max()
        np.testing.assert_allclose(np.asarray(out.logits)[mask], logits[mask], atol=3e-5 * scale)
        np.testing.assert_allclose(np.asarray(out.record), attention, atol=2e-5)


@pytest.mark.parametrize(
    "family",
    [
        *("llada", "dream", "llama3.1", "sdar", "gpt2", "llada_moe", "mistral", "nemotron", "a2d", "fast_dllm"),
        *("bd3lm", "mdlm", "gidd", "llada2", "llada_moe_dense", "sdar_moe"),
    ],
)
def test_padding_and_batching_change_nothing(family: str) -> None:
    """A real token's logits and statistics are the same alone, padded left, padded right, and among other rows."""
    config = FAMILIES[family]
    model = lively(config)
    tokens = np.random.default_rng(1).integers(0, config.vocab, (1, 11))
    wanted = {
        "received": record.received(),
        "last": record.last_row(),
        "entropy": record.row_entropy(),
        "key": record.key_norm(),
        "value": record.value_norm(),
        "maps": record.maps(),
    }
    alone = jaxsink.forward(model, tokens, record=wanted)
    others = np.random.default_rng(2).integers(0, config.vocab, (4, 16))
    for start in (0, 2, 5):
        batch, mask = others.copy(), np.ones((4, 16), bool)
        batch[2, start : start + 11] = tokens[0]
        mask[2] = False
        mask[2, start : start + 11] = True
        mask[0, 12:] = False
        out = jaxsink.forward(model, batch, mask, record=wanted)
        real = slice(start, start + 11)
        scale = float(jnp.abs(alone.logits).max())
        np.testing.assert_allclose(out.logits[2, real], alone.logits[0], atol=1e-5 * max(1.0, scale))
        for key in ("received", "last", "entropy", "key", "value"):
            np.testing.assert_allclose(out.record[key][:, 2, :, real], alone.record[key][:, 0], atol=1e-5, rtol=1e-5)
            padded = np.delete(np.asarray(out.record[key][:, 2]), np.arange(start, start + 11), axis=-1)
            assert (padded == 0).all(), key
        np.testing.assert_allclose(out.record["maps"][:, 2, :, real, real], alone.record["maps"][:, 0], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llada", "qwen2_window", "llada_moe", "gpt2", "gidd", "llada2"])
def test_unrolled_is_the_same_model(family: str) -> None:
    config = FAMILIES[family]
    model = lively(config)
    tokens, mask = sequences(config)
    drop = np.random.default_rng(3).random((config.layers, 3, config.heads, 13)) < 0.2
    wanted = {"received": record.received(), "maps": record.maps(layers=[2, 0], heads=[1, 3])}
    scanned = jaxsink.forward(model, tokens, mask, drop=drop, record=wanted)
    unrolled = jaxsink.forward(model.unrolled(), tokens, mask, drop=drop, record=wanted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), scanned, unrolled)
    back = model.unrolled().stacked()
    assert jax.tree.structure(back) == jax.tree.structure(model)
    assert all((a == b).all() for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(model), strict=True))


def test_model_is_a_pytree_and_its_config_hashable(llada) -> None:
    model = llada.model
    assert hash(model.config) == hash(jaxsink.ModelConfig.from_dict(model.config.to_dict()))
    tokens = llada.case("fwd")["input_ids"]
    inside_jit = jax.jit(lambda m, t: jaxsink.forward(m, t).logits)(model, tokens)
    np.testing.assert_allclose(inside_jit, jaxsink.forward(model, tokens).logits, atol=1e-5)
    sizes = [x.size for x in jax.tree.leaves(model)]
    assert sorted(sizes) == sorted(x.size for x in jax.tree.leaves(model.params))
    gradient = jax.grad(lambda m: jaxsink.forward(m, tokens).logits.mean())(model)
    assert jax.tree.structure(gradient) == jax.tree.structure(model)
    assert all(np.isfinite(g).all() and (g != 0).any() for g in jax.tree.leaves(gradient))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": np.zeros((2, 3, 4), int)}, "batch, sequence"),
        ({"tokens": np.zeros((2, 0), int)}, "at least one"),
        ({"tokens": np.zeros((2, 5))}, "whole numbers"),
        ({"tokens": np.full((2, 5), 512)}, "512"),
        ({"tokens": np.full((2, 5), -1)}, "-1"),
        ({"mask": np.ones((2, 4), bool)}, "mask"),
        ({"visible": np.ones((2, 5), bool)}, "visible"),
        ({"drop": np.zeros((3, 2, 4), bool)}, "drop"),
        ({"record": record.maps(layers=[3])}, "layer 3"),
        ({"record": record.maps(heads=[4])}, "head 4"),
        ({"record": 5}, "recorder"),
        ({"backend": "flash"}, "flash"),
        ({"time": np.zeros(2)}, "leave time out"),
        ({"positions": np.zeros(5, int)}, "positions must have the shape"),
        ({"positions": np.full((2, 5), 0.5)}, "positions must be whole numbers"),
        ({"positions": np.full((2, 5), -1)}, "positions count from 0"),
    ],
)
def test_bad_input_is_named(llada, change: dict, words: str) -> None:
    arguments = {"tokens": np.zeros((2, 5), int)} | change
    with pytest.raises(JaxsinkError, match=words):
        jaxsink.forward(llada.model, **arguments)


def test_too_long_for_learned_positions() -> None:
    config = FAMILIES["gpt2"]
    with pytest.raises(JaxsinkError, match="65 tokens"):
        jaxsink.forward(jaxsink.init(config), np.zeros((1, 65), int))


def test_rope_frequencies_of_llama_31(llama) -> None:
    from jaxsink.nn.rope import rope_frequencies

    frequency, factor = rope_frequencies(jaxsink.preset("llama-3.1-8b"))
    np.testing.assert_allclose(frequency, llama.arrays["rope.inv_freq_llama31_8b"], rtol=2e-6)
    assert factor == 1.0
