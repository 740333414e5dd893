"""Meshes: where parameters live, and that it makes no difference."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively, sequences

import jaxsink
from jaxsink import JaxsinkError, parallel, preset
from jaxsink.parallel.axes import axes, constrain, pytree_dataclass
from jaxsink.recording import recorders as record
from jaxsink.recording.rerouted import takeover, without_top
from jaxsink.sampling.execution import _on_mesh

NEW = ("nemotron", "llada2", "a2d", "fast_dllm", "sdar_moe", "llada_moe_dense", "bd3lm", "mdlm")
pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 8), (2, 4), (8, 1)])
@pytest.mark.parametrize("family", ["llada", "dream", "llama3.1", "llada_moe", "gidd", *NEW])
def test_sharded_weights_give_the_same_numbers(family: str, shape: tuple[int, int]) -> None:
    config = FAMILIES[family]
    model, mesh = lively(config), parallel.make_mesh(*shape)
    sharded = parallel.shard(model, mesh)
    tokens, mask = sequences(config)
    alone = jaxsink.forward(model, tokens, mask, record=record.received())
    spread = jaxsink.forward(sharded, tokens, mask, record=record.received())
    np.testing.assert_allclose(spread.logits, alone.logits, atol=1e-4)
    np.testing.assert_allclose(spread.record, alone.record, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 8), (2, 4), (8, 1)])
def test_hidden_keys_and_what_compares_sequences_are_the_same_on_a_mesh(shape: tuple[int, int]) -> None:
    """Six heads lie on no axis of eight devices; two sequences, the halves of a pair, may lie on two."""
    config = FAMILIES["llada"]
    model, (tokens, mask) = lively(config), sequences(config, batch=2)
    sharded = parallel.shard(model, parallel.make_mesh(*shape))
    drop = np.random.default_rng(3).random((config.layers, 2, config.heads, 13)) < 0.2
    wanted = {"received": record.received(), "without": without_top(), "turn": takeover()}
    alone, spread = (jaxsink.forward(one, tokens, mask, drop=drop, record=wanted) for one in (model, sharded))
    np.testing.assert_allclose(spread.logits, alone.logits, atol=1e-4)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), spread.record, alone.record)


def test_large_matrices_are_split_and_heads_never_cut() -> None:
    mesh = parallel.make_mesh(1, 8)

    def spec(model: str, name: str, rank: int) -> tuple:
        return tuple(parallel.sharding_of(name, rank, preset(model), mesh).spec)

    assert spec("llada-8b-base", "layers.attention.q.weight", 3) == (None, "model", None)
    assert spec("llada-8b-base", "layers.attention.o.weight", 3) == (None, None, "model")
    assert spec("llada-8b-base", "layers.mlp.down.weight", 3) == (None, None, "model")
    assert spec("llada-8b-base", "embedding", 2) == ("model", None)
    assert spec("llada-8b-base", "layers.attention_norm.weight", 2) == (None, None)
    assert spec("dream-7b-base", "layers.attention.q.weight", 3) == (None, "model", None)  # in 4 parts, see test_spread
    assert spec("gpt2", "embedding", 2) == (None, None)  # 50257 rows and 8 devices have no divisor in common
    assert spec("dream-7b-base", "layers.mlp.gate.weight", 3) == (None, "model", None)
    assert spec("llada-moe-7b-a1b", "layers.mlp.up.weight", 4) == (None, "model", None, None)  # by expert


def test_what_all_sequences_share_is_not_cut() -> None:
    @pytree_dataclass
    class Shared:
        counts: jax.Array = axes(batch=None)
        tokens: jax.Array = axes()

    mesh = parallel.make_mesh(4, 2)
    placed = jax.jit(lambda x: constrain(x, mesh))(Shared(np.zeros(8), np.zeros((8, 3))))
    assert placed.counts.sharding.is_fully_replicated
    assert placed.tokens.sharding.shard_shape((8, 3)) == (2, 3)
    shapes = _on_mesh(jax.eval_shape(lambda: placed), mesh)
    assert shapes.counts.sharding.is_fully_replicated and not shapes.tokens.sharding.is_fully_replicated


def test_meshes_that_do_not_fit_are_named() -> None:
    with pytest.raises(JaxsinkError, match="3 x 2"):
        parallel.make_mesh(3, 2)
    strange = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    with pytest.raises(JaxsinkError, match="'model'"):
        parallel.sharding_of("embedding", 2, preset("gpt2"), strange)
