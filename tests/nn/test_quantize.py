"""int8 weights: whole numbers times scales are the weights to half a step, and the model is the one of those weights."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.configs import FAMILIES
from support.models import lively

import jaxsink
from jaxsink.checkpoints.load import save
from jaxsink.nn.new_model import abstract
from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.quantization import ROUNDED, is_rounded, quantized, rounded, scale_name, weights_dtype
from jaxsink.parallel import make_mesh
from jaxsink.training.evaluate import accuracy
from jaxsink.zoo.builtin import builtin

pytestmark = pytest.mark.usefixtures("quick_compilation")

DENSE = [name for name, config in FAMILIES.items() if config.experts is None]


def restored(model: jaxsink.Model) -> jaxsink.Model:
    """The model that an int8 model stands for, with its weights written out."""
    other = jax.tree.map(lambda x: x, model)
    for part, names in ROUNDED.items():
        for linear in (getattr(getattr(other.layers, part), name) for name in names):
            if linear is not None:
                linear.weight = nnx.Param(linear.weight[...].astype(jnp.float32) * linear.scale[...][..., None])
                linear.scale = None
    return other


def test_weights_come_back_to_half_a_step() -> None:
    weight = np.random.default_rng(0).normal(size=(3, 5, 64)).astype(np.float32)
    weight[1, 2] = 0
    whole, scale = rounded(jnp.asarray(weight))
    assert whole.dtype == jnp.int8 and scale.shape == (3, 5)
    assert np.abs(np.asarray(whole)).max(axis=-1)[weight.any(axis=-1)].min() == 127
    difference = np.abs(np.asarray(whole) * np.asarray(scale)[..., None] - weight)
    assert (difference <= np.asarray(scale)[..., None] * 0.5001).all()


@pytest.mark.parametrize("family", DENSE)
def test_the_model_is_that_of_the_restored_weights(family: str) -> None:
    model = lively(FAMILIES[family])
    small = quantized(model)
    tokens = np.random.default_rng(1).integers(4, 60, (2, 9))
    record = jaxsink.record.received()
    out = jaxsink.forward(small, tokens, record=record)
    wanted = jaxsink.forward(restored(small), tokens, record=record)
    np.testing.assert_allclose(out.logits, wanted.logits, atol=1e-4)
    np.testing.assert_allclose(out.record, wanted.record, atol=1e-5)
    assert np.abs(out.logits - jaxsink.forward(model, tokens).logits).max() > 1e-4  # it was rounded at all
    unrolled = jaxsink.forward(small.unrolled(), tokens)
    np.testing.assert_allclose(unrolled.logits, out.logits, atol=1e-4)
    assert {str(leaf.dtype) for name, leaf in named_leaves(small)[0] if is_rounded(name)} == {"int8"}


@pytest.mark.parametrize("mesh", [None, (2, 4)])
def test_a_checkpoint_is_rounded_while_it_is_read(tmp_path: Path, mesh: tuple[int, int] | None) -> None:
    model = lively(FAMILIES["llada"]).astype("bfloat16")
    save(model, tmp_path / "model")
    where = None if mesh is None else make_mesh(*mesh)
    loaded = jaxsink.load(tmp_path / "model", dtype="int8", mesh=where)
    for (name, got), (same, wanted) in zip(named_leaves(loaded)[0], named_leaves(quantized(model))[0], strict=True):
        assert name == same and got.dtype == wanted.dtype
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(wanted, np.float32), err_msg=name)
    assert (weights_dtype(loaded), weights_dtype(model)) == ("int8", "bfloat16")
    shapes = [(name, leaf.shape, leaf.dtype) for name, leaf in named_leaves(abstract(model.config, "int8"))[0]]
    assert shapes == [(name, leaf.shape, leaf.dtype) for name, leaf in named_leaves(loaded)[0]]
    if where is not None:
        names = dict(named_leaves(loaded)[0])
        for name in ("layers.attention.q.weight", "layers.mlp.up.weight"):
            scale = names[scale_name(name)]
            assert scale.sharding.spec[1] == names[name].sharding.spec[1] is not None


@pytest.mark.parametrize("dtype", ["int8", jnp.int8, np.dtype("int8")])
def test_every_name_of_int8_rounds(dtype: object) -> None:
    config = FAMILIES["llada"]
    model = lively(config)
    small, wanted = model.astype(dtype), quantized(model.astype("bfloat16"))
    jax.tree.map(np.testing.assert_array_equal, small.params, wanted.params)
    shapes = [(name, leaf.shape, leaf.dtype) for name, leaf in named_leaves(small)[0]]
    for made in (abstract(config, dtype), jaxsink.init(config, dtype=dtype)):
        assert [(name, leaf.shape, leaf.dtype) for name, leaf in named_leaves(made)[0]] == shapes
    assert np.abs(jaxsink.init(config, dtype=dtype).layers.mlp.up.weight[...]).max() == 127


def test_rounding_twice_is_rounding_once() -> None:
    once = quantized(lively(FAMILIES["llada"]))
    for again in (quantized(once), once.astype("int8")):
        jax.tree.map(np.testing.assert_array_equal, again.params, once.params)


@pytest.mark.parametrize("dtype", ["int32", "bool", "float33"])
def test_types_that_weights_cannot_have(dtype: str) -> None:
    config = FAMILIES["llada"]
    for make in (
        lively(config).astype,
        lambda name: abstract(config, name),
        lambda name: jaxsink.init(config, 0, name),
    ):
        with pytest.raises(jaxsink.JaxsinkError, match=rf"type {dtype}; choose|one of .*int8, not '{dtype}'"):
            make(dtype)


def test_heads_told_apart_keep_their_scales() -> None:
    """As the layers are on TPU (`Layer.by_head`)."""
    model = quantized(lively(FAMILIES["dream"]))  # which has biases there
    x = jnp.asarray(np.random.default_rng(2).normal(size=(2, 3, model.config.width)), jnp.float32)
    plain, apart = (jax.tree.map(lambda y: y[1], layers) for layers in (model.layers, model.layers.by_head()))
    for name in ("q", "k", "v"):
        wanted = getattr(plain.attention, name)(x)
        got = getattr(apart.attention, name)(x)
        assert got.shape[-1] == model.config.head_dim
        np.testing.assert_allclose(got.reshape(wanted.shape), wanted, atol=1e-5)


def test_what_int8_cannot_do_is_said(tmp_path: Path) -> None:
    with pytest.raises(jaxsink.JaxsinkError, match="save the model it was made of"):
        save(quantized(lively(FAMILIES["llada"])), tmp_path / "model")
    experts = next(config for config in FAMILIES.values() if config.experts is not None)
    with pytest.raises(jaxsink.JaxsinkError, match="mixtures of experts"):
        abstract(experts, "int8")
    with pytest.raises(jaxsink.JaxsinkError, match=r"int8, not 'int4'"):
        jaxsink.load("mini-llada", dtype="int4")


def test_a_built_in_model_solves_its_problems_in_int8() -> None:
    model = quantized(jaxsink.load("mini-llama", "float32"))
    assert accuracy(model, builtin("mini-llama").sampler, total=40, seed=7).share >= 0.95
