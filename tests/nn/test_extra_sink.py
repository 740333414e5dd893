"""Factors on attention, and the extra token that everybody sees: against plain models that spell both out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively, sequences

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.nn.parameters import named_leaves
from jaxsink.recording import recorders as record
from jaxsink.sinks import MaskSinks

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("backend", ["naive", "blocked"])
@pytest.mark.parametrize("family", ["llada", "dream", "llama3.1", "sdar", "qwen2_window"])
def test_factors_multiply_and_rows_renormalise(family: str, backend: str) -> None:
    config = FAMILIES[family]
    model, (tokens, mask) = lively(config), sequences(config)
    rng = np.random.default_rng(1)
    scale = rng.uniform(0.2, 3.0, (config.layers, *tokens.shape[:1], config.heads, tokens.shape[1])).astype(np.float32)
    scale[:, 0] = 1.0
    plain = jaxsink.forward(model, tokens, mask, record=record.maps(layers=[0]), backend=backend)
    out = jaxsink.forward(model, tokens, mask, record=record.maps(layers=[0]), scale=scale, backend=backend)
    weighted = np.asarray(plain.record)[0] * scale[0][:, :, None, :]
    total = weighted.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(out.record[0], weighted / np.where(total > 0, total, 1), atol=1e-5)
    np.testing.assert_allclose(out.logits[0], plain.logits[0], atol=1e-5)  # factors of 1 do nothing
    assert np.abs(np.asarray(out.logits[2] - plain.logits[2])).max() > 1e-3


def test_a_factor_of_zero_hides() -> None:
    config = FAMILIES["llada"]
    model, (tokens, mask) = lively(config), sequences(config)
    drop = np.random.default_rng(2).random((config.layers, 3, config.heads, tokens.shape[1])) < 0.3
    drop[0, 2, 1] = True  # every key of a head: that row ignores it, in both spellings
    wanted = record.maps()
    hidden = jaxsink.forward(model, tokens, mask, drop=drop, record=wanted)
    zeroed = jaxsink.forward(model, tokens, mask, scale=np.where(drop, 0.0, 1.0), record=wanted)
    np.testing.assert_allclose(zeroed.record, hidden.record, atol=1e-5)
    np.testing.assert_allclose(zeroed.logits, hidden.logits, atol=1e-5)
    both = jaxsink.forward(model, tokens, mask, drop=drop, scale=np.full(drop.shape, 2.0), record=wanted)
    np.testing.assert_allclose(both.record, hidden.record, atol=1e-5)  # the same factor everywhere changes nothing


def test_an_intervention_may_return_factors() -> None:
    model = lively(FAMILIES["llama3.1"])
    prompt = [[5, 6, 7, 8], [9, 10]]
    common = {"sampler": jaxsink.ARSampler(5), "record": record.last_row()}
    hidden = jaxsink.generate(model, prompt, intervene=MaskSinks(1), **common)
    faint = jaxsink.generate(model, prompt, intervene=MaskSinks(1, factor=1e-9), **common)
    np.testing.assert_array_equal(hidden.tokens, faint.tokens)
    np.testing.assert_allclose(hidden.record, faint.record, atol=1e-5)
    loud = jaxsink.generate(model, prompt, intervene=MaskSinks(1, factor=1e9), **common)
    np.testing.assert_allclose(np.asarray(loud.record)[1:].max(axis=-1), 1, atol=1e-4)


def prepended(model: jaxsink.Model, tokens: np.ndarray, mask: np.ndarray):
    """The same model without the option: the extra token as an ordinary one before each row's first, that sees itself."""
    config = model.config
    leaves, _ = named_leaves(model)
    values = dict(leaves)
    table = jnp.concatenate([values.pop("embedding"), values.pop("extra_sink")[None]])
    plain_config = config.replace(extra_sink=False, vocab=config.vocab + 1)
    wanted, treedef = named_leaves(jaxsink.abstract(plain_config))
    values["embedding"] = table
    if "head.weight" in values:
        values["head.weight"] = jnp.pad(values["head.weight"], ((0, 1), (0, 0)))
    plain = jax.tree.unflatten(treedef, [values[name] for name, _ in wanted])
    batch, length = tokens.shape
    longer, real = np.zeros((batch, length + 1), int), np.zeros((batch, length + 1), bool)
    visible = np.ones((batch, length + 1, length + 1), bool)
    for row in range(batch):
        first = np.argmax(mask[row])
        longer[row, first + 1 :], real[row, first + 1 :] = tokens[row, first:], mask[row, first:]
        longer[row, first], real[row, first] = config.vocab, True
        visible[row, first] = np.arange(length + 1) == first
    return jaxsink.forward(plain, longer, real, visible, record=record.maps())


@pytest.mark.parametrize("backend", ["naive", "blocked"])
@pytest.mark.parametrize("family", ["llada", "dream", "llama3.1", "llada_moe", "qwen3"])
def test_the_extra_sink_is_a_token_before_the_first(family: str, backend: str) -> None:
    config = FAMILIES[family].replace(extra_sink=True)
    model, (tokens, mask) = lively(config), sequences(config)
    wanted = {"maps": record.maps(), "extra": record.extra_sink()}
    out = jaxsink.forward(model, tokens, mask, record=wanted, backend=backend)
    spelled = prepended(model, tokens, mask)
    for row in range(len(tokens)):
        first = int(np.argmax(mask[row]))
        real = np.flatnonzero(mask[row])
        maps = np.asarray(spelled.record)[:, row]
        np.testing.assert_allclose(
            np.asarray(out.record["maps"])[:, row][:, :, real][..., real],
            maps[:, :, real + 1][..., real + 1],
            atol=1e-5,
        )
        np.testing.assert_allclose(out.record["extra"][:, row], maps[:, :, real + 1, first].sum(axis=-1), atol=1e-4)
        np.testing.assert_allclose(
            np.asarray(out.logits)[row, real], np.asarray(spelled.logits)[row, real + 1, :-1], atol=1e-4
        )


def test_nothing_hides_the_extra_sink() -> None:
    config = FAMILIES["llada"].replace(extra_sink=True)
    model, (tokens, mask) = lively(config), sequences(config)
    drop = np.ones((config.layers, 3, config.heads, tokens.shape[1]), bool)
    out = jaxsink.forward(model, tokens, mask, drop=drop, record={"r": record.received(), "x": record.extra_sink()})
    assert (np.asarray(out.record["r"]) == 0).all()
    np.testing.assert_allclose(
        out.record["x"], np.broadcast_to(mask.sum(axis=1)[None, :, None], (config.layers, 3, config.heads))
    )


def test_generation_with_an_extra_sink_and_its_checkpoint(tmp_path) -> None:
    config = FAMILIES["llama3.1"].replace(extra_sink=True)
    model = lively(config)
    out = jaxsink.generate(model, [[5, 6, 7], [8]], jaxsink.ARSampler(6), record=record.extra_sink())
    for row, prompt in enumerate([[5, 6, 7], [8]]):  # the cached loop against whole passes
        ids = np.array([[*prompt, *np.asarray(out.response)[row]]])
        logits = jaxsink.forward(model, ids).logits[0]
        taken = int(out.steps[row])
        best = np.asarray(logits).argmax(axis=-1)[len(prompt) - 1 :][:taken]
        np.testing.assert_array_equal(np.asarray(out.response)[row, :taken], best)
    from jaxsink.checkpoints.load import save

    save(model, tmp_path / "model")
    again = jaxsink.load(tmp_path / "model")
    assert again.config.extra_sink
    np.testing.assert_array_equal(again.extra_sink[...], model.extra_sink[...])
    unrolled = jaxsink.generate(model.unrolled(), [[5, 6, 7], [8]], jaxsink.ARSampler(6))
    np.testing.assert_array_equal(unrolled.tokens, out.tokens)


def test_without_the_option_its_recorder_says_so() -> None:
    with pytest.raises(JaxsinkError, match="no extra sink"):
        jaxsink.forward(lively(FAMILIES["llada"]), [[1, 2]], record=record.extra_sink())
