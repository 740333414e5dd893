"""Mixtures of experts: who is chosen, products that are the same however they are made, and experts spread over devices.

That whole models with experts equal plain float64 code is among the tests of all families (test_forward.py).
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively, sequences

import jaxsink
from jaxsink import Experts, JaxsinkError, parallel
from jaxsink.nn.batch import Batch, Execution
from jaxsink.nn.expert_products import Routes, Weights, by_kernel, by_room, by_rows, mixed, ragged, room_for
from jaxsink.nn.experts import choose_experts
from jaxsink.nn.parameters import named_leaves

pytestmark = pytest.mark.usefixtures("quick_compilation")

WIDTH, MLP_WIDTH = 20, 12
# tokens, experts, experts per token, half of the tokens are alike; some choices are of experts that are elsewhere
CASES = [(300, 8, 3, False), (300, 8, 3, True), (5, 16, 2, False), (1, 16, 2, False), (260, 4, 2, True)]


def example(tokens: int, count: int, per_token: int, alike: bool) -> tuple[jax.Array, Routes, Weights]:
    rng = np.random.default_rng(tokens)
    shapes = ((count, MLP_WIDTH, WIDTH), (count, MLP_WIDTH, WIDTH), (count, WIDTH, MLP_WIDTH))
    weights = Weights(*(jnp.asarray(0.3 * rng.standard_normal(shape), jnp.float32) for shape in shapes))
    expert = np.stack([rng.permutation(count + 2)[:per_token] for _ in range(tokens)])
    if alike:
        expert[: tokens // 2] = np.arange(per_token)
    routes = Routes(jnp.asarray(np.minimum(expert, count)), jnp.asarray(rng.random(expert.shape), jnp.float32))
    return jnp.asarray(rng.standard_normal((tokens, WIDTH)), jnp.float32), routes, weights


def one_by_one(tokens: jax.Array, routes: Routes, weights: Weights) -> np.ndarray:
    x, share = np.float64(tokens), np.float64(routes.weight)
    gate, up, down = (np.float64(matrices) for matrices in weights[:3])
    total = np.zeros_like(x)
    for token, chosen in enumerate(np.asarray(routes.expert)):
        for rank, expert in enumerate(chosen):
            if expert < len(gate):
                hidden = gate[expert] @ x[token]
                made = down[expert] @ (hidden / (1 + np.exp(-hidden)) * (up[expert] @ x[token]))
                total[token] += share[token, rank] * made
    return total


@pytest.mark.parametrize("case", CASES)
def test_every_way_gives_the_same(case: tuple[int, int, int, bool]) -> None:
    tokens, routes, weights = example(*case)
    expected = one_by_one(tokens, routes, weights)
    ways: dict[str, Any] = {
        "as chosen": lambda *given: mixed(*given, "silu", 1),
        "with room": lambda x, r, w: r.combine(by_room(x, r.expert, w, "silu"), w.experts),
        "rows": lambda *given: by_rows(*given, "silu", 1, ragged),
        "some rows at a time": lambda *given: by_rows(*given, "silu", 8, ragged),
    }
    for name, way in ways.items():
        np.testing.assert_allclose(jax.jit(way)(tokens, routes, weights), expected, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("case", CASES[:3])
def test_narrow_numbers_are_rounded_and_otherwise_the_same(case: tuple[int, int, int, bool]) -> None:
    tokens, routes, weights = example(*case)
    narrow = tokens.astype("bfloat16"), routes, Weights(*(x.astype("bfloat16") for x in weights[:3]))
    expected = one_by_one(*narrow)
    ours = jax.jit(lambda *given: mixed(*given, "silu", 1))(*narrow)
    assert ours.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float64(ours), expected, atol=0.02 * np.abs(expected).max())


def test_the_cases_are_of_every_kind() -> None:
    """Experts with room for all their tokens, experts with too many, and none with room."""
    full = [np.bincount(np.asarray(example(*case)[1].expert).ravel())[: case[1]].max() for case in CASES]
    room = [room_for(case[0] * case[2], case[1]) for case in CASES]
    assert [room[0] >= full[0], 0 < room[1] < full[1], room[2] == room[3] == 0] == [True] * 3


def test_a_layer_of_a_stack() -> None:
    tokens, routes, weights = example(*CASES[0])
    stack = Weights(*(jnp.stack([x + 1, x, x - 1]) for x in weights[:3]), layer=jnp.int32(1))
    expected = one_by_one(tokens, routes, weights)
    np.testing.assert_allclose(mixed(tokens, routes, stack, "silu", 1), expected, atol=1e-5)


@pytest.mark.parametrize("layer", [None, 0, 2])
def test_the_kernel_for_tpus(layer: int | None) -> None:
    """As an interpreter runs it; experts without tokens are among them, and rows without an expert at the end."""
    rng = np.random.default_rng(0)
    x, weight = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((256, 32), (3, 4, 24, 32)))
    sizes = jnp.array([40, 0, 130, 7])
    number = None if layer is None else jnp.int32(layer)
    ours = by_kernel(x, weight[1] if layer is None else weight, sizes, number, interpret=True)
    expected = ragged(x, weight[1 if layer is None else layer], sizes)
    np.testing.assert_allclose(ours[:177], expected[:177], atol=1e-4)


@pytest.mark.parametrize("case", CASES[:3])
def test_gradients(case: tuple[int, int, int, bool]) -> None:
    tokens, routes, weights = example(*case)

    def loss(x: jax.Array, share: jax.Array, weights: Weights, way: Any) -> jax.Array:
        return jnp.square(way(x, routes._replace(weight=share), weights)).sum()

    ours, plain = (
        jax.jit(jax.grad(partial(loss, way=way), (0, 1, 2)))(tokens, routes.weight, weights)
        for way in (lambda *given: mixed(*given, "silu", 1), lambda *given: by_rows(*given, "silu", 1, ragged))
    )
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * float(jnp.abs(other).max()))


def choose(experts: Experts, scores: list[float], bias: list[float] | None = None) -> tuple[list[int], list[float]]:
    """Of one token whose scores are these."""
    share = jnp.array([scores])
    logits = jnp.log(share) if experts.scores == "softmax" else jnp.log(share / (1 - share))
    routes = choose_experts(experts, logits, None if bias is None else jnp.array(bias))
    return routes.expert[0].tolist(), [round(float(weight), 5) for weight in routes.weight[0]]


def test_who_is_chosen_and_what_they_count() -> None:
    scores = [0.1, 0.4, 0.3, 0.2]
    assert choose(Experts(4, 2), scores) == ([1, 2], [0.4, 0.3])
    assert choose(Experts(4, 2, renormalise=True), scores) == ([1, 2], [0.57143, 0.42857])
    assert choose(Experts(4, 1, renormalise=True), scores) == ([1], [1.0])
    assert choose(Experts(4, 1, scores="sigmoid", scale=2.5), scores) == ([1], [1.0])
    bias = [1.0, 0.0, 0.5, 0.0]
    assert choose(Experts(4, 2, bias="choice"), scores, bias) == ([0, 2], [0.1, 0.3])
    assert choose(Experts(4, 2, bias="weight"), scores, bias) == ([0, 2], [1.1, 0.8])
    assert choose(Experts(4, 2), [0.25] * 4) == ([0, 1], [0.25, 0.25])  # ties: the lowest numbers


def test_groups_are_ranked_by_their_two_best() -> None:
    """The best expert of all is in the group that loses, and a bias can turn that round."""
    experts = Experts(6, 2, scores="sigmoid", bias="choice", groups=2, groups_kept=1)
    scores = [0.9, 0.1, 0.1, 0.6, 0.5, 0.2]
    assert choose(experts, scores, [0.0] * 6) == ([3, 4], [0.6, 0.5])
    assert choose(experts, scores, [0.0, 0.3, 0.0, 0.0, 0.0, 0.0]) == ([0, 1], [0.9, 0.1])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"per_token": 7}, "7 of 6 experts"),
        ({"scores": "linear"}, "linear"),
        ({"bias": "loss"}, "loss"),
        ({"groups": 4}, "4 groups"),
        ({"groups": 2, "groups_kept": 3}, "3 of 2 groups"),
        ({"groups": 3, "groups_kept": 1, "per_token": 3}, "3 of 6 experts"),
        ({"groups": 6, "groups_kept": 6}, "6 groups"),
        ({"scale": 0.0}, "scale"),
        ({"shared_width": 0}, "shared"),
    ],
)
def test_experts_that_cannot_be(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(JaxsinkError, match=words):
        FAMILIES["llada2"].replace(experts=Experts(**{"count": 6, "per_token": 2} | fields))


def test_what_chooses_stays_float32() -> None:
    model = lively(FAMILIES["llada2"])
    kinds = {name: leaf.dtype.name for name, leaf in named_leaves(model.astype("bfloat16"))[0]}
    assert kinds.pop("layers.1.mlp.bias") == "float32" and set(kinds.values()) == {"bfloat16"}
    assert kinds.keys() | {"layers.1.mlp.bias"} == {name for name, _ in named_leaves(model)[0]}
    made = {name: leaf.dtype.name for name, leaf in named_leaves(jaxsink.abstract(model.config, "bfloat16"))[0]}
    assert made == kinds | {"layers.1.mlp.bias": "float32"}


def test_a_stack_that_is_read_where_it_lies_is_the_same_model() -> None:
    config = FAMILIES["llada2"]
    model, (tokens, mask) = lively(config), sequences(config)
    batch = Batch.make(config, jnp.asarray(tokens), jnp.asarray(mask))

    def run(model: jaxsink.Model, batch: Batch, execution: Execution) -> jax.Array | None:
        return model(batch, execution=execution).logits

    expected = run(model, batch, Execution())
    compiled = jax.jit(run, static_argnums=2)
    np.testing.assert_allclose(compiled(model, batch, Execution(whole_stacks=True)), expected, atol=1e-5)  # pyright: ignore
    mesh = parallel.make_mesh(2, 4)
    spread = compiled(parallel.shard(model, mesh), batch, Execution("naive", mesh, whole_stacks=True))
    np.testing.assert_allclose(np.asarray(spread)[mask], np.asarray(expected)[mask], atol=2e-5)


@pytest.mark.parametrize(("count", "shape"), [(8, (1, 8)), (6, (2, 4)), (5, (2, 4))])
def test_devices_have_their_own_experts_and_gather_none(count: int, shape: tuple[int, int]) -> None:
    config = FAMILIES["llada2"].replace(experts=Experts(count, 2, bias="choice", shared_width=24))
    model, (tokens, mask) = lively(config), sequences(config)
    mesh = parallel.make_mesh(*shape)
    spread = parallel.shard(model, mesh)
    parts = np.gcd(count, shape[1])
    for part in (spread, spread.unrolled()):
        for name, leaf in named_leaves(parallel.shard(part, mesh))[0]:
            if re.search(r"layers\.[12]\.mlp\.(gate|up|down)\.weight", name):
                axis = leaf.ndim - 3
                assert leaf.sharding.shard_shape(leaf.shape)[axis] == count // parts, name
    batch = Batch.make(config, jnp.asarray(tokens), jnp.asarray(mask))
    program = jax.jit(lambda model, batch: model(batch, execution=Execution("naive", mesh)).logits)
    compiled = program.lower(spread, batch).compile()
    expected = np.asarray(jaxsink.forward(model, tokens, mask).logits)
    np.testing.assert_allclose(np.asarray(compiled(spread, batch))[mask], expected[mask], atol=2e-5)
    text = compiled.as_text()
    wide = f"{config.mlp_width},{config.width}", f"{config.width},{config.mlp_width}"
    gathered = [line for line in text.splitlines() if " all-gather(" in line]
    assert not [line for line in gathered if any(sizes in line.split(" all-gather(")[0] for sizes in wide)]
