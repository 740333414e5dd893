"""Stacks whose layers differ: dense layers before experts, windows here and there, heads that turn in part.

That such a model equals plain float64 code, in which every layer is looked at by itself, is among the tests of all families
(test_forward.py, family "mixed").
"""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively, sequences

import jaxsink
from jaxsink import JaxsinkError, ModelConfig
from jaxsink.nn.batch import Batch
from jaxsink.nn.context import LayerContext
from jaxsink.nn.experts import MixtureOfExperts
from jaxsink.nn.layer import Stream
from jaxsink.nn.mlp import Mlp
from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.rope import RopeTable
from jaxsink.nn.transformer import empty_cache
from jaxsink.recording import recorders as record

MIXED = FAMILIES["mixed"]
DEEP = MIXED.replace(layers=5, dense_layers=2, window_layers=(False, True, True, False, True))


def test_parameters_are_named_by_segment() -> None:
    shapes = {name: leaf.shape for name, leaf in named_leaves(jaxsink.abstract(DEEP))[0]}
    assert shapes["layers.0.mlp.up.weight"] == (2, 40, 48) and "layers.0.mlp.router.weight" not in shapes
    assert shapes["layers.1.mlp.up.weight"] == (3, 5, 56, 48) and shapes["layers.1.mlp.router.weight"] == (3, 5, 48)
    assert shapes["layers.0.attention.q.weight"] == (2, 60, 48)
    plain = [name for name, _ in named_leaves(jaxsink.abstract(FAMILIES["llada_moe"]))[0]]
    assert "layers.attention.q.weight" in plain


@pytest.mark.slow
@pytest.mark.parametrize("config", [MIXED, DEEP])
def test_scanned_is_unrolled(config: ModelConfig) -> None:
    model = lively(config)
    tokens, mask = sequences(config)
    rng = np.random.default_rng(1)
    drop = rng.random((config.layers, 3, config.heads, tokens.shape[1])) < 0.2
    wanted = {"all": record.received(), "some": record.maps(layers=[2, 0], heads=[1]), "after": record.residual()}
    scanned, unrolled = (
        jaxsink.forward(which, tokens, mask, drop=drop, record=wanted) for which in (model, model.unrolled())
    )
    np.testing.assert_allclose(scanned.logits, unrolled.logits, atol=2e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), scanned.record, unrolled.record)
    assert scanned.record["all"].shape[0] == config.layers
    again = model.unrolled().stacked()
    assert jax.tree.structure(again) == jax.tree.structure(model)
    jax.tree.map(np.testing.assert_array_equal, again, model)


@pytest.mark.slow
def test_layers_one_by_one_are_the_stack() -> None:
    model = lively(DEEP)
    tokens, mask = sequences(DEEP)
    batch = Batch.make(DEEP, jnp.asarray(tokens), jnp.asarray(mask))
    context = LayerContext.make(DEEP, batch)
    assert DEEP.window_layers is not None
    stream = model.embed(batch, context)
    kinds = []
    for index, layer in enumerate(model.unrolled().layers):  # pyright: ignore
        kinds.append(type(layer.mlp))
        here = context.at(jnp.asarray(index), None, jnp.asarray(DEEP.window_layers[index]), ())
        stream = layer(Stream(stream.x), here).stream
    assert kinds == [Mlp, Mlp, MixtureOfExperts, MixtureOfExperts, MixtureOfExperts]
    out = model(batch)
    np.testing.assert_allclose(model.norm(stream.x), out.hidden, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("unrolled", [False, True])
def test_a_cache_goes_through_all_segments(unrolled: bool) -> None:
    model = lively(DEEP).unrolled() if unrolled else lively(DEEP)
    tokens = jnp.asarray(sequences(DEEP)[0])
    batch = Batch.make(DEEP, tokens, jnp.ones(tokens.shape, bool))
    begun = model(batch._replace(queries=9), cache=empty_cache(model, *tokens.shape), head=False)
    ended = model(batch._replace(start=9, queries=tokens.shape[1] - 9), cache=begun.cache)
    np.testing.assert_allclose(ended.logits, model(batch).logits[:, 9:], atol=2e-5)  # pyright: ignore


def test_half_of_a_head_turns() -> None:
    """Against a few lines of NumPy: the first six of ten numbers turn, in pairs (i, i + 3)."""
    rng = np.random.default_rng(0)
    x, position = rng.standard_normal((2, 7, 3, 10)), rng.integers(0, 50, (2, 7))
    frequency = MIXED.rope_theta ** (-np.arange(0, 6, 2) / 6)
    angle = position[..., None, None] * frequency
    first, second = x[..., :3], x[..., 3:6]
    turned = [first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)]
    expected = np.concatenate([*turned, x[..., 6:]], axis=-1)
    ours = RopeTable.make(MIXED, jnp.asarray(position)).rotate(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(ours, expected, atol=2e-5)
    np.testing.assert_array_equal(ours[..., 6:], x[..., 6:].astype(np.float32))


def test_the_configuration_of_old_files_says_no_more_than_before() -> None:
    for config in FAMILIES.values():
        values = json.loads(json.dumps(config.to_dict()))
        assert ModelConfig.from_dict(values) == config
        later = ("dense_layers", "dense_width", "rotary_dim")
        assert {name for name in later if name in values} == {name for name in later if getattr(config, name)}
    old = FAMILIES["llada_moe"]
    assert old.to_dict()["experts"] == {"count": 5, "per_token": 2, "renormalise": False}
    assert "experts=Experts(count=5, per_token=2, renormalise=False)," in repr(old)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dense_layers": 3}, "dense_layers 3 must leave"),
        ({"experts": None, "dense_width": None}, "dense_layers 1 must leave"),
        ({"dense_layers": 0}, "dense_width"),
        ({"rotary_dim": 5}, "rotary_dim must be even"),
        ({"rotary_dim": 12}, "rotary_dim must be even"),
    ],
)
def test_configurations_that_cannot_be(change: dict, words: str) -> None:
    with pytest.raises(JaxsinkError, match=words):
        MIXED.replace(**change)


@pytest.mark.parametrize(("config", "dtype"), [(DEEP, "float32"), (FAMILIES["llada2"], "bfloat16")])
def test_a_checkpoint_comes_back(config: ModelConfig, dtype: str, tmp_path: Path) -> None:
    model = lively(config).astype(dtype)
    jaxsink.save(model, tmp_path / "mixed")
    loaded = jaxsink.load(tmp_path / "mixed")
    assert loaded.config == config and jax.tree.structure(loaded) == jax.tree.structure(model)
    assert [x.dtype for x in jax.tree.leaves(loaded)] == [x.dtype for x in jax.tree.leaves(model)]
    jax.tree.map(np.testing.assert_array_equal, loaded, model)
