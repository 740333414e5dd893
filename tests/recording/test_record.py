"""Recorders: each against the attention maps, by NumPy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively, sequences

import jaxsink
from jaxsink.recording import recorders as record

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def seen() -> tuple:
    config = FAMILIES["dream"]
    model = lively(config)
    tokens, mask = sequences(config)
    tokens[:, [4, 7, 8]] = config.mask_id
    prompt = np.zeros(mask.shape, bool)
    prompt[:, :5] = True
    wanted = {
        "maps": record.maps(),
        "received": record.received(),
        "kinds": record.received_by_query(),
        "last": record.last_row(),
        "entropy": record.row_entropy(),
        "key": record.key_norm(),
        "value": record.value_norm(),
        "hidden": record.hidden(),
        "massive": record.hidden_max(),
        "tap": whole_tap,
    }
    out = jaxsink.forward(model, tokens, mask, record=wanted, prompt=prompt)
    return config, tokens, mask, prompt, out.record


def whole_tap(tap: record.Tap) -> dict:
    return {"q": tap.q, "k": tap.k, "v": tap.v, "layer": tap.layer, "probs": tap.probs}


def test_received_is_the_column_sum(seen) -> None:
    _, _, mask, _, out = seen
    np.testing.assert_allclose(out["received"], np.asarray(out["maps"]).sum(3), atol=1e-6)
    np.testing.assert_allclose(
        out["received"].sum(-1), np.broadcast_to(mask.sum(1)[None, :, None], (3, 3, 6)), rtol=1e-5
    )


def test_received_splits_by_query_kind(seen) -> None:
    config, tokens, mask, prompt, out = seen
    masked = (tokens == config.mask_id) & mask
    kinds = {"masked": masked, "prompt": prompt & ~masked & mask, "unmasked": ~prompt & ~masked & mask}
    for name, rows in kinds.items():
        expected = (np.asarray(out["maps"]) * rows[None, :, None, :, None]).sum(3)
        assert rows.any()
        np.testing.assert_allclose(out["kinds"][name], expected, atol=1e-6)
    np.testing.assert_allclose(sum(out["kinds"].values()), out["received"], atol=2e-6)


def test_last_row_is_the_last_real_query(seen) -> None:
    _, _, mask, _, out = seen
    for row in range(3):
        last = np.flatnonzero(mask[row])[-1]
        np.testing.assert_array_equal(out["last"][:, row], out["maps"][:, row, :, last])


def test_row_entropy(seen) -> None:
    out = seen[-1]
    maps = np.asarray(out["maps"], np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = -np.nansum(maps * np.log(maps), axis=-1)
    np.testing.assert_allclose(out["entropy"], expected, atol=1e-5)


def test_norms(seen) -> None:
    _, _, mask, _, out = seen
    for name, vectors in (("key", "k"), ("value", "v")):
        length = np.linalg.norm(np.asarray(out["tap"][vectors], np.float64), axis=-1).transpose(0, 1, 3, 2)
        np.testing.assert_allclose(out[name], np.where(mask[None, :, None, :], length, 0), rtol=1e-5)


def test_the_tap_shows_what_the_softmax_used(seen) -> None:
    """Scores made from the tapped q and k give the tapped probabilities."""
    config, _, mask, _, out = seen
    q, k = np.asarray(out["tap"]["q"], np.float64), np.asarray(out["tap"]["k"], np.float64)
    k = k.repeat(config.heads // config.kv_heads, axis=3)
    score = np.einsum("lbqhd,lbshd->lbhqs", q, k) / np.sqrt(config.head_dim)
    score = np.where(mask[None, :, None, None, :], score, -np.inf)
    weight = np.exp(score - score.max(-1, keepdims=True))
    expected = np.where(mask[None, :, None, :, None], weight / weight.sum(-1, keepdims=True), 0)
    np.testing.assert_allclose(out["maps"], expected, atol=1e-5)
    assert out["tap"]["layer"].tolist() == [0, 1, 2]


def test_massive_activations(seen) -> None:
    _, _, mask, _, out = seen
    size = np.abs(np.asarray(out["hidden"]))
    np.testing.assert_allclose(out["massive"]["max"], np.where(mask, size.max(-1), 0), rtol=1e-6)
    np.testing.assert_allclose(out["massive"]["median"], np.where(mask, np.median(size, axis=-1), 0), rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(out["massive"]["dimension"])[:, mask], size.argmax(-1)[:, mask])


@pytest.mark.parametrize("unrolled", [False, True])
def test_chosen_layers_and_heads(unrolled: bool) -> None:
    config = FAMILIES["llada"]
    model = lively(config)
    tokens, mask = sequences(config)
    wanted = {"all": record.maps(), "some": record.maps(layers=[2, 0], heads=[5, 1]), "two": record.received().at([1])}
    out = jaxsink.forward(model.unrolled() if unrolled else model, tokens, mask, record=wanted).record
    np.testing.assert_array_equal(out["some"], out["all"][jnp.array([2, 0])][:, :, jnp.array([5, 1])])
    assert out["two"].shape == (1, 3, 6, 13)
    np.testing.assert_allclose(out["two"][0], out["all"][1].sum(2), atol=1e-6)


def test_shapes_of_single_nested_and_no_recorders(llada) -> None:
    tokens = llada.case("fwd")["input_ids"]
    assert jaxsink.forward(llada.model, tokens).record is None
    assert jaxsink.forward(llada.model, tokens, record=record.received()).record.shape == (3, 2, 4, 24)
    nested = jaxsink.forward(llada.model, tokens, record=[record.last_row(), (record.key_norm(),)]).record
    assert nested[0].shape == (3, 2, 4, 24)
    assert nested[1][0].shape == (3, 2, 4, 24)
    own = jaxsink.forward(llada.model, tokens, record=lambda tap: tap.probs[:, :, -1].argmax(-1)).record
    assert own.shape == (3, 2, 4)


def test_a_recorder_of_no_layer_is_refused() -> None:
    for make in (lambda: record.received().at([]), lambda: record.maps(layers=[])):
        with pytest.raises(jaxsink.JaxsinkError, match="at least one layer"):
            make()


def test_equal_recorders_compile_once(llada) -> None:
    from jaxsink.nn.forward import _forward

    tokens = llada.case("fwd")["input_ids"]
    jaxsink.forward(llada.model, tokens, record={"m": record.maps(heads=[1]), "r": record.received()})
    before = _forward.cache_size()
    jaxsink.forward(llada.model, tokens, record={"m": record.maps(heads=[1]), "r": record.received()})
    assert _forward.cache_size() == before


def test_names_of_the_first_version_still_work_and_warn() -> None:
    def of_queries(tap: record.Tap) -> dict[str, jnp.ndarray]:
        with pytest.warns(DeprecationWarning, match="is called query_"):
            old = {"mask": tap.rows, "position": tap.row_index, "same": tap.query_index, "kind": tap.row_kind}
        assert old["mask"] is tap.query_mask and old["kind"] is tap.query_kind
        assert old["position"] is old["same"] is tap.query_position
        with pytest.raises(AttributeError, match="no attribute 'row'"):
            _ = tap.row
        return {"mask": old["mask"]}

    model = lively(FAMILIES["llada"])
    assert jaxsink.forward(model, np.array([[1, 2, 3]]), record=of_queries).record["mask"].all()
