"""The taps besides attention, against plain code; what nobody reads is not there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively, sequences
from support.reference.transformer import residuals

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.nn import attention, layer
from jaxsink.nn.batch import Batch, Execution
from jaxsink.nn.transformer import empty_cache
from jaxsink.recording import recorders as record
from jaxsink.recording import reductions as reduce

CONFIG = FAMILIES["llama3.1"]


def vectors(tap: record.VectorTap) -> jax.Array:
    return tap.vectors


WANTED = {
    "residual": record.residual(), "mlp": record.Recorder(vectors, tap="mlp"),
    "values": record.Recorder(vectors, tap="values"), "hidden": record.hidden(), "maps": record.maps(),
    "v": record.Recorder(lambda tap: tap.v), "residual_norm": record.residual_norm(), "mlp_norm": record.mlp_norm(),
    "head_norm": record.head_norm(), "massive": record.hidden_max(), "kinds": record.received_by_query(),
}  # fmt: skip


OTHERS = {
    "embedding": record.embedding(), "residual_before": record.residual_before(), "final_norm": record.final_norm(),
    "head_outputs": record.head_outputs(), "attention_output": record.attention_output(),
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> jaxsink.Model:
    return lively(CONFIG)


@pytest.fixture(scope="module")
def seen(model: jaxsink.Model):
    tokens, mask = sequences(CONFIG)
    return mask, jaxsink.forward(model, tokens, mask, record=WANTED)


def test_the_residual_stream_is_what_enters_the_next_layer(model: jaxsink.Model, seen) -> None:
    _, out = seen
    np.testing.assert_array_equal(out.record["residual"][:-1], out.record["hidden"][1:])
    np.testing.assert_allclose(model.norm(out.record["residual"][-1]), out.hidden, atol=1e-5)


@pytest.mark.parametrize("family", ["llama3.1", "llada", "gpt2", "gidd", "llada2"])
def test_the_residual_stream_is_that_of_a_pass_in_numpy(family: str) -> None:
    config = FAMILIES[family]
    tokens, mask = sequences(config)
    expected = residuals(config, lively(config).params, tokens, mask)
    found = np.asarray(jaxsink.forward(lively(config), tokens, mask, record=record.residual()).record)
    np.testing.assert_allclose(found[:, mask], expected[:, mask], atol=3e-5 * np.abs(expected).max())


def test_the_mlp_is_what_it_adds(model: jaxsink.Model, seen) -> None:
    _, out = seen
    for index, one in enumerate(model.unrolled().layers):  # pyright: ignore
        added = out.record["mlp"][index]
        between = out.record["residual"][index] - added
        np.testing.assert_allclose(one.mlp(one.mlp_norm(between)), added, atol=1e-4)
        written = one.attention.output(out.record["values"][index])
        np.testing.assert_allclose(out.record["hidden"][index] + written, between, atol=1e-4)


def test_values_are_what_each_head_hands_on(seen) -> None:
    mask, out = seen
    v = np.repeat(np.asarray(out.record["v"]), CONFIG.heads // CONFIG.kv_heads, axis=3)
    expected = np.einsum("lbhqs,lbshd->lbqhd", np.asarray(out.record["maps"]), v)
    np.testing.assert_allclose(np.asarray(out.record["values"])[:, mask], expected[:, mask], atol=1e-5)


def test_taps_of_the_pass_and_of_what_heads_add(model: jaxsink.Model, seen) -> None:
    mask, out = seen
    rest = jaxsink.forward(model, *sequences(CONFIG), record=OTHERS).record
    np.testing.assert_array_equal(rest["embedding"], out.record["hidden"][:1])
    np.testing.assert_array_equal(rest["residual_before"], out.record["hidden"])
    np.testing.assert_array_equal(rest["final_norm"][0], out.hidden)
    added = rest["attention_output"]
    np.testing.assert_allclose(rest["head_outputs"].sum(axis=3)[:, mask], added[:, mask], atol=1e-4)
    after = out.record["residual"] - out.record["hidden"] - out.record["mlp"]
    np.testing.assert_allclose(after[:, mask], added[:, mask], atol=1e-4)


@pytest.mark.parametrize("unrolled", [False, True])
def test_taps_show_all_queries_where_few_outputs_are_wanted(model: jaxsink.Model, unrolled: bool) -> None:
    tokens, mask = map(jnp.asarray, sequences(CONFIG))
    which = model.unrolled() if unrolled else model
    whole = which(Batch.make(CONFIG, tokens, mask), recorders=tuple(OTHERS.values())).record
    few = Batch.make(CONFIG, tokens, mask)._replace(outputs=jnp.array([[12], [3], [5]]))
    for ours, theirs in zip(which(few, recorders=tuple(OTHERS.values())).record, whole, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_norms(seen) -> None:
    mask, out = seen
    for name in ("residual", "mlp"):
        length = np.linalg.norm(np.asarray(out.record[name]), axis=-1) * mask
        np.testing.assert_allclose(out.record[f"{name}_norm"], length, rtol=1e-5)
    length = np.linalg.norm(np.asarray(out.record["values"]), axis=-1) * mask[..., None]
    np.testing.assert_allclose(out.record["head_norm"], length.transpose(0, 1, 3, 2), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["blocked", "pallas"])
def test_all_backends_show_the_same(model: jaxsink.Model, seen, backend: str) -> None:
    tokens, mask = sequences(CONFIG)
    wanted = {name: one for name, one in WANTED.items() if backend == "blocked" or name not in ("maps", "v")}
    out = jaxsink.forward(model, tokens, mask, record=wanted, backend=backend).record
    for name in wanted:
        if name == "values":
            continue  # of padded queries, about which backends differ
        for ours, theirs in zip(jax.tree.leaves(out[name]), jax.tree.leaves(seen[1].record[name]), strict=True):
            ours, theirs = np.asarray(ours), np.asarray(theirs)
            if name in ("residual", "mlp", "hidden"):
                ours, theirs = ours[:, mask], theirs[:, mask]
            if ours.dtype == np.float32:
                np.testing.assert_allclose(ours, theirs, atol=2e-4)


def test_chosen_layers_and_reductions(model: jaxsink.Model, seen) -> None:
    tokens, mask = sequences(CONFIG)
    wanted = record.residual_norm().then(lambda value, tap: value.sum(axis=1)).at([2, 0])
    for which in (model, model.unrolled()):
        out = jaxsink.forward(which, tokens, mask, record=wanted).record
        np.testing.assert_allclose(out, seen[1].record["residual_norm"][jnp.array([2, 0])].sum(axis=2), rtol=1e-5)


@pytest.mark.parametrize("unrolled", [False, True])
def test_a_tap_that_nobody_reads_costs_nothing(model: jaxsink.Model, monkeypatch, unrolled: bool) -> None:
    """The program is that of a network without these taps."""
    tokens, mask = map(jnp.asarray, sequences(CONFIG))
    which = model.unrolled() if unrolled else model

    def program(*recorders: record.Recorder) -> str:
        batch = Batch.make(CONFIG, tokens, mask)._replace(outputs=jnp.zeros((3, 1), jnp.int32))
        return str(jax.make_jaxpr(lambda m: m(batch, recorders=recorders)[:3])(which))

    with_taps = program(), program(record.received())
    assert program(record.residual_norm()) != with_taps[0]
    for module in (attention, layer):
        monkeypatch.setattr(module, "read_vectors", lambda context, name, vectors: {})
    assert (program(), program(record.received())) == with_taps


def test_wanted_outputs_do_not_hide_queries_from_recorders(model: jaxsink.Model, seen) -> None:
    tokens, mask = map(jnp.asarray, sequences(CONFIG))
    batch = Batch.make(CONFIG, tokens, mask)._replace(outputs=jnp.array([[12], [3], [5]]))
    for which in (model, model.unrolled()):
        out = which(batch, recorders=(record.residual(), record.received()))
        np.testing.assert_allclose(out.record[0][:, mask], seen[1].record["residual"][:, mask], atol=1e-4)
        np.testing.assert_allclose(out.logits[:, 0], seen[1].logits[jnp.arange(3), jnp.array([12, 3, 5])], atol=1e-4)


def test_reductions_need_the_keys_of_a_batch_only() -> None:
    tokens, mask = map(jnp.asarray, sequences(CONFIG))
    keys = Batch.make(CONFIG, tokens, mask).keys
    value = jnp.asarray(np.random.default_rng(0).random((3, 6, 13)), jnp.float32)
    top = record.received().then(reduce.top(2)).finish(value, keys)
    real = np.where(np.asarray(mask)[:, None], value, -1)
    np.testing.assert_array_equal(top["position"][..., 0], real.argmax(axis=-1))
    by_kind = record.received().then(reduce.sum_by_kind()).finish(value, keys)
    np.testing.assert_allclose(sum(by_kind.values()), value.sum(axis=-1), rtol=1e-5)


def test_short_texts(model: jaxsink.Model) -> None:
    texts = []

    def show(tap: record.Tap) -> jax.Array:
        texts.append(repr(tap))
        return tap.mask

    tokens, mask = map(jnp.asarray, sequences(CONFIG))
    batch = Batch.make(CONFIG, tokens, mask)
    out = model(batch, cache=empty_cache(model, 3, 13), recorders=(record.Recorder(show),), execution=Execution())
    texts += [repr(one) for one in (batch, out, out.cache, model, str(model))]
    assert all(len(text) < 700 and "Array(" not in text for text in texts)
    assert texts[0].startswith("Tap(layer=int32[], q=float32[3,13,6,10], k=float32[3,13,2,10]")
    assert "mask=bool[3,13]" in repr(batch) and "logits=float32[3,13,89]" in repr(out)
    count = sum(leaf.size for leaf in jax.tree.leaves(model))
    assert repr(model) == f"Transformer(llama, 3 stacked layers of 48, {count:,} numbers, float32)"


def test_the_taps_are_known_by_name() -> None:
    with pytest.raises(
        JaxsinkError, match=r"tap must be one of attention, values, mlp, residual, embedding, .*not 'stream'"
    ):
        record.Recorder(vectors, tap="stream")  # pyright: ignore
    with pytest.raises(JaxsinkError, match="the tap 'final_norm' belongs to no layer"):
        record.final_norm().at([0])
    with pytest.raises(JaxsinkError, match=r"record.residual_norm makes a recorder; give record.residual_norm\(\)"):
        jaxsink.forward(lively(CONFIG), sequences(CONFIG)[0], record=record.residual_norm)
