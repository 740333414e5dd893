"""Rollout against the product of whole maps, and what must not change it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively, sequences

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.nn.batch import Execution
from jaxsink.nn.inputs import check_inputs
from jaxsink.parallel import make_mesh, shard
from jaxsink.recording import recorders as record
from jaxsink.sinks import rollout
from jaxsink.sinks.rollout import _rollout

pytestmark = pytest.mark.usefixtures("quick_compilation")
# grouped queries; windows on some layers, segments and experts; learned positions; told the noise level
CASES = ("dream", "mixed", "gpt2", "bd3lm")


def slow(maps: np.ndarray, mask: np.ndarray, residual: float = 0.5) -> np.ndarray:
    """Of maps [L,B,H,S,S]: the product over layers, sequence by sequence."""
    found = np.zeros((*mask.shape, mask.shape[1]))
    for row in range(len(mask)):
        product = np.eye(mask.shape[1])
        for layer in range(len(maps)):
            mixing = residual * np.eye(mask.shape[1]) + (1 - residual) * maps[layer, row].mean(axis=0)
            product = mixing @ product
        found[row] = product * mask[row][:, None] * mask[row]
    return found


@pytest.mark.parametrize("family", CASES)
def test_against_the_product_of_whole_maps(family: str) -> None:
    config = FAMILIES[family]
    model, (tokens, mask) = lively(config), sequences(config)
    maps = np.asarray(jaxsink.forward(model, tokens, mask, record=record.maps()).record, np.float64)
    for which in (model, model.unrolled()):
        found = np.asarray(rollout(which, tokens, mask))
        np.testing.assert_allclose(found, slow(maps, mask), atol=2e-6)
        np.testing.assert_allclose(found.sum(axis=-1)[mask], 1, atol=1e-5)
    np.testing.assert_allclose(rollout(model, tokens, mask, residual=0.3), slow(maps, mask, 0.3), atol=2e-6)
    assert not np.allclose(slow(maps, mask), np.eye(13), atol=0.1)


def test_chosen_queries_hidden_keys_and_other_patterns() -> None:
    config = FAMILIES["dream"]
    model, (tokens, mask) = lively(config), sequences(config)
    every = np.asarray(rollout(model, tokens, mask))
    asked = np.array([[5, 12], [0, 3], [7, 7]])
    some = np.asarray(rollout(model, tokens, mask, queries=asked))
    np.testing.assert_array_equal(some, np.take_along_axis(every, asked[..., None], axis=1))
    drop = np.random.default_rng(0).random((config.layers, 3, config.heads, 13)) < 0.3
    maps = jaxsink.forward(model, tokens, mask, drop=drop, record=record.maps()).record
    np.testing.assert_allclose(rollout(model, tokens, mask, drop=drop), slow(np.asarray(maps), mask), atol=2e-6)
    causal = np.asarray(rollout(model, tokens, mask, attention="causal"))
    assert (causal == np.tril(causal)).all() and (every != np.tril(every)).any()


def test_neither_batch_nor_padding_nor_blocks_nor_devices_change_it() -> None:
    config = FAMILIES["dream"]
    model, (tokens, mask) = lively(config), sequences(config, length=140)
    plain = np.asarray(rollout(model, tokens, mask))
    inputs = check_inputs(config, tokens, mask)
    np.testing.assert_allclose(_rollout(model, inputs, None, 0.5, Execution("blocked")), plain, atol=1e-6)
    on_mesh = rollout(shard(model, make_mesh(2, 2, jax.devices()[:4])), tokens[:2], mask[:2])
    np.testing.assert_allclose(on_mesh, plain[:2], atol=1e-5)
    np.testing.assert_allclose(rollout(model, tokens[:1, 3:])[0], plain[0, 3:, 3:], atol=1e-6)


@pytest.mark.parametrize("backend", ["naive", "blocked"])
def test_the_maps_of_all_layers_never_exist(backend: str) -> None:
    """No array of the program has a layer axis beside two of the sequence; with query blocks, none has the heads' maps."""
    config = FAMILIES["llada"].replace(layers=5)
    tokens, mask = sequences(config, length=200)
    inputs = check_inputs(config, tokens, mask)
    program = jax.make_jaxpr(lambda m: _rollout(m, inputs, None, 0.5, Execution(backend)))(lively(config))
    shapes = {tuple(x.aval.shape) for x in values_of(program.jaxpr)}
    squares = {shape for shape in shapes if shape.count(200) >= 2}
    assert (3, 200, 200) in squares and not any(5 in shape for shape in squares)
    assert any(6 in shape for shape in squares) == (backend == "naive")


def values_of(jaxpr: Any) -> Iterator[Any]:
    """All that a program computes, in its loops as well."""
    for equation in jaxpr.eqns:
        yield from equation.outvars
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from values_of(inner)


def test_an_extra_sink_takes_its_share() -> None:
    config = FAMILIES["llada"].replace(extra_sink=True)
    model, (tokens, mask) = lively(config), sequences(config)
    found = np.asarray(rollout(model, tokens, mask)).sum(axis=-1)[mask]
    assert (found < 0.999).all() and (found > 0).all()


def test_wrong_calls_are_refused() -> None:
    config = FAMILIES["dream"]
    model, (tokens, mask) = lively(config), sequences(config)
    for queries, words in (([1, 2, 3], "whole numbers"), ([[13]] * 3, "from 0 to 12"), ([[1]], "shape")):
        with pytest.raises(JaxsinkError, match=words):
            rollout(model, tokens, mask, queries=queries)
    with pytest.raises(JaxsinkError, match="residual must be a finite number from 0 to 1"):
        rollout(model, tokens, mask, residual=1.5)
