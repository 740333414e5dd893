"""Visibility, dropped keys and backends."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively, sequences
from support.reference import transformer as reference

import jaxsink
from jaxsink.nn import attention
from jaxsink.nn.batch import Execution, Keys
from jaxsink.nn.context import LayerContext, Queries, Visibility
from jaxsink.recording import recorders as record

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("backend", ["naive", "blocked"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llada", "dream", "sdar", "llama3.1"])
def test_dropped_columns_receive_exactly_nothing(family: str, dtype: str, backend: str) -> None:
    config = FAMILIES[family]
    model = lively(config, dtype=dtype)
    tokens, mask = sequences(config)
    drop = np.zeros((config.layers, 3, config.heads, 13), bool)
    drop[1, :, 2, 6], drop[2, :, 4, 8] = True, True
    wanted = {"received": record.received(), "maps": record.maps()}
    plain = jaxsink.forward(model, tokens, mask, record=wanted, backend=backend)
    out = jaxsink.forward(model, tokens, mask, drop=drop, record=wanted, backend=backend)

    assert (np.asarray(out.record["received"])[drop] == 0).all()
    before = np.asarray(plain.record["received"])[drop].reshape(2, 3)
    assert (before[:, [0, 2]] > 0).all()  # row 1 ends before key 8; the others really lost something
    rows = np.asarray(out.record["maps"]).sum(-1)
    np.testing.assert_allclose(rows, np.broadcast_to(mask[None, :, None, :], rows.shape), atol=2e-6)
    difference = np.abs(np.asarray(out.logits) - np.asarray(plain.logits))
    assert difference[mask].max() > 1e-2
    same = np.asarray(out.record["maps"][0]) == np.asarray(plain.record["maps"][0])
    assert same.all()  # nothing was dropped in layer 0


@pytest.mark.parametrize("backend", ["naive", "blocked", "pallas"])
@pytest.mark.parametrize("family", ["llada", "dream", "llama3.1"])
def test_a_drop_that_acts_on_some_queries_against_float64_numpy(family: str, backend: str, monkeypatch) -> None:
    """The others see everything; neither the batch, the padding nor the block of queries matters."""
    monkeypatch.setattr("jaxsink.nn.backends.BLOCK", 5)
    config = FAMILIES[family]
    model = lively(config)
    tokens, mask = sequences(config)
    rng = np.random.default_rng(5)
    drop, some = rng.random((config.layers, 3, config.heads, 13)) < 0.4, rng.random((3, 13)) < 0.5
    wanted = {"maps": record.maps(), "own": record.where_hidden(record.received())}
    out = jaxsink.forward(model, tokens, mask, drop=drop, hidden_from=some, record=wanted, backend=backend)
    for row in range(3):
        real = np.flatnonzero(mask[row])
        own = drop[:, row : row + 1][..., real][..., None, :] & some[row, real][:, None]
        logits, maps = reference.run(config, model.params, tokens[row : row + 1, real], mask[row : row + 1, real], own)
        here = np.asarray(out.logits)[row, real]
        np.testing.assert_allclose(here, logits[0], atol=3e-5 * np.abs(logits).max())
        found = np.asarray(out.record["maps"])[:, row][..., real, :][..., real]
        np.testing.assert_allclose(found, maps[:, 0], atol=2e-5)
        received = np.asarray(out.record["own"])[:, row][..., real]
        np.testing.assert_allclose(received, maps[:, 0][:, :, some[row, real]].sum(axis=2), atol=1e-4)


@pytest.mark.parametrize("backend", ["naive", "blocked"])
def test_factors_that_act_on_some_queries_are_visibility_in_between(backend: str) -> None:
    """Factor 0 for some queries hides as `visible` does; factors for all of them are factors as they were."""
    config = FAMILIES["llada"]
    model = lively(config)
    tokens, mask = sequences(config)
    some, hidden = np.arange(13) % 3 == 0, np.arange(13) == 4
    shape = (config.layers, 3, config.heads, 13)
    factors = np.broadcast_to(np.where(hidden, 0.0, 1.0), shape)
    queries = np.broadcast_to(some, (3, 13))
    found = jaxsink.forward(model, tokens, mask, scale=factors, hidden_from=queries, backend=backend).logits
    visible = np.broadcast_to(~(some[:, None] & hidden), (3, 13, 13))
    expected = jaxsink.forward(model, tokens, mask, visible=visible, backend=backend).logits
    np.testing.assert_allclose(np.asarray(found)[mask], np.asarray(expected)[mask], atol=1e-5)
    halved = np.full(shape, 0.5) * np.where(hidden, 1.0, 2.0)
    every = jaxsink.forward(model, tokens, mask, scale=halved, backend=backend).logits
    named = jaxsink.forward(model, tokens, mask, scale=halved, hidden_from=np.ones((3, 13), bool), backend=backend)
    np.testing.assert_allclose(np.asarray(named.logits)[mask], np.asarray(every)[mask], atol=1e-5)
    nobody = jaxsink.forward(model, tokens, mask, scale=halved, hidden_from=np.zeros((3, 13), bool), backend=backend)
    plain = jaxsink.forward(model, tokens, mask, backend=backend).logits
    np.testing.assert_allclose(np.asarray(nobody.logits)[mask], np.asarray(plain)[mask], atol=1e-5)


def test_queries_without_a_drop_are_an_error() -> None:
    with pytest.raises(jaxsink.JaxsinkError, match="give drop or scale"):
        jaxsink.forward(lively(FAMILIES["llada"]), [[1, 2]], hidden_from=[[True, False]])


@pytest.mark.parametrize("family", FAMILIES)
def test_drop_against_float64_numpy(family: str) -> None:
    config = FAMILIES[family]
    model = lively(config)
    tokens, mask = sequences(config)
    drop = np.random.default_rng(5).random((config.layers, 3, config.heads, 13)) < 0.4
    logits, maps = reference.run(config, model.params, tokens, mask, drop)
    for backend in ("naive", "blocked"):
        out = jaxsink.forward(model, tokens, mask, drop=drop, record=record.maps(), backend=backend)
        np.testing.assert_allclose(np.asarray(out.logits)[mask], logits[mask], atol=3e-5 * np.abs(logits).max())
        np.testing.assert_allclose(np.asarray(out.record), maps, atol=2e-5)


def test_the_first_token_of_a_causal_model_keeps_itself() -> None:
    config = FAMILIES["llama3.1"]
    drop = np.zeros((config.layers, 1, config.heads, 6), bool)
    drop[..., 0] = True
    out = jaxsink.forward(lively(config), np.arange(6)[None], drop=drop, record=record.maps())
    assert (out.record[..., 0, 0] == 1).all()
    assert (out.record[..., 1:, 0] == 0).all()


@pytest.mark.parametrize("family", ["llada", "llama3.1"])
def test_visible_comes_on_top_of_the_family_pattern(family: str) -> None:
    config = FAMILIES[family]
    model = lively(config)
    tokens, mask = sequences(config)
    visible = np.random.default_rng(6).random((3, 13, 13)) < 0.6
    visible |= np.eye(13, dtype=bool)
    causal = np.tril(np.ones((13, 13), bool)) if config.attention == "causal" else np.ones((13, 13), bool)
    for backend in ("naive", "blocked"):
        maps = np.asarray(jaxsink.forward(model, tokens, mask, visible, record=record.maps(), backend=backend).record)
        hidden = ~(visible & causal & mask[:, None, :])
        assert (np.where(hidden[None, :, None], maps, 0) == 0).all()
        seen = np.broadcast_to((~hidden & mask[:, :, None])[None, :, None], maps.shape)
        assert (maps[seen] > 0).all()


@pytest.mark.parametrize("backend", ["naive", "blocked"])
def test_a_query_without_any_visible_key_attends_uniformly_over_real_keys(backend: str) -> None:
    config = FAMILIES["llada"]
    tokens, mask = sequences(config)
    visible = np.ones((3, 13, 13), bool)
    visible[0, 5] = False
    visible[2, 7] = False
    maps = jaxsink.forward(lively(config), tokens, mask, visible, record=record.maps(), backend=backend).record
    np.testing.assert_allclose(
        maps[:, 0, :, 5], np.broadcast_to(mask[0] / mask[0].sum(), maps[:, 0, :, 5].shape), rtol=1e-6
    )
    np.testing.assert_allclose(maps[:, 2, :, 7], 1 / 13, rtol=1e-6)


def test_a_row_of_nothing_but_padding_stays_finite() -> None:
    config = FAMILIES["llama3.1"]
    tokens, mask = sequences(config)
    mask[1] = False
    out = jaxsink.forward(lively(config), tokens, mask, record=record.received())
    assert np.isfinite(out.logits).all()
    assert (out.record[:, 1] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(("family", "length"), [("dream", 1), ("mistral", 127), ("sdar", 129), ("dream", 300)])
def test_backends_agree_across_block_edges(family: str, length: int) -> None:
    config = FAMILIES[family].replace(max_positions=512)
    model = lively(config)
    rng = np.random.default_rng(length)
    tokens = rng.integers(0, config.vocab, (2, length))
    mask = np.ones((2, length), bool)
    mask[0, : length // 3] = False
    drop = rng.random((config.layers, 2, config.heads, length)) < 0.1
    wanted = {
        "received": record.received(),
        "kinds": record.received_by_query(),
        "last": record.last_row(),
        "maps": record.maps(layers=[1]),
        "entropy": record.row_entropy(),
        "key": record.key_norm(),
        "hidden": record.hidden_max(),
        "own": largest_row,
    }
    naive = jaxsink.forward(model, tokens, mask, drop=drop, record=wanted, backend="naive")
    blocked = jaxsink.forward(model, tokens, mask, drop=drop, record=wanted, backend="blocked")

    def close(path: object, a: jnp.ndarray, b: jnp.ndarray) -> None:
        scale = max(1.0, float(jnp.abs(a).max()))
        np.testing.assert_allclose(a, b, atol=1e-5 * scale, err_msg=str(path))  # three layers of rounding

    jax.tree_util.tree_map_with_path(close, naive, blocked)


@pytest.mark.parametrize("family", ["llada", "llama3.1", "mistral", "sdar"])
def test_backends_agree_within_a_layer(family: str) -> None:
    """The same q, k and v: outputs, probabilities and column sums within 1e-6."""
    config = FAMILIES[family]
    rng = np.random.default_rng(9)
    length = 200
    q, k, v = (
        jnp.asarray(rng.standard_normal((2, length, heads, config.head_dim)), jnp.float32)
        for heads in (config.heads, config.kv_heads, config.kv_heads)
    )
    mask = jnp.ones((2, length), bool).at[0, :9].set(False)
    position = jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)
    see = Visibility(
        mask,
        position,
        causal=config.attention == "causal",
        block=config.block_length,
        window=config.window,
    )
    drop = jnp.asarray(rng.random((2, config.heads, length)) < 0.1)
    kind = jnp.zeros((2, length), int)
    keys, queries = Keys(mask, kind, kind), Queries(mask, jnp.arange(length), kind, position)
    context = LayerContext(
        keys, queries, see, layer=jnp.array(0), drop=drop, recorders=(record.received(), record.maps())
    )

    def attend(backend: str) -> tuple[jnp.ndarray, jnp.ndarray, jnp.ndarray]:
        here = dataclasses.replace(context, execution=Execution(backend))
        out, values = attention.attend(record.Tap(here, q, k, v, q[:, :, 0]))
        return out, values[0], values[1]

    (ours, received, maps), (theirs, received_blocked, maps_blocked) = attend("naive"), attend("blocked")
    np.testing.assert_allclose(maps, maps_blocked, atol=1e-6)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    np.testing.assert_allclose(received / length, received_blocked / length, atol=1e-6)


def largest_row(tap: record.Tap) -> jnp.ndarray:
    """A user's function that needs the whole map: which query pays each key most."""
    return tap.probs.max(axis=2) * tap.mask[:, None, :]


def test_blocked_never_holds_a_whole_map() -> None:
    """The compiled program has no array of S x S entries, with statistics on; the naive one has."""
    config = FAMILIES["llada"].replace(max_positions=2048)
    model = jaxsink.init(config)
    tokens = np.zeros((1, 1024), int)

    def largest(backend: str) -> int:
        run = jax.jit(lambda m, t: jaxsink.forward(m, t, record=record.received(), backend=backend).record)
        text = run.lower(model, tokens).as_text()
        shapes = re.findall(r"tensor<([\dx]+)x[a-z]", text)
        return max(int(np.prod([int(n) for n in shape.split("x")])) for shape in shapes if shape[0].isdigit())

    assert largest("naive") >= config.heads * 1024 * 1024
    assert largest("blocked") <= config.heads * attention.BLOCK * 1024


def test_backend_choice() -> None:
    assert attention.choose_backend(None, 512, 512) == "naive"
    assert attention.choose_backend(None, 4096, 4096) == "blocked"
    assert attention.choose_backend("naive", 4096, 4096) == "naive"
