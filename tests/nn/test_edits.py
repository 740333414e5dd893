"""Edits at the taps: by what they must leave alone, and by what they must equal."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively, sequences
from support.reference.transformer import run as reference

import jaxsink
from jaxsink import JaxsinkError, edit, record
from jaxsink.nn import attention, layer, pass_end, transformer
from jaxsink.nn.batch import Batch
from jaxsink.nn.forward import _forward

CONFIG = FAMILIES["llama3.1"]
RECORDS = {
    "embedding": record.embedding(), "residual_before": record.residual_before(),
    "value_vectors": record.value_vectors(), "values": record.head_values(), "head_outputs": record.head_outputs(),
    "attention_output": record.attention_output(), "mlp": record.mlp_output(), "residual": record.residual(),
    "final_norm": record.final_norm(),
}  # fmt: skip
TOKENS, MASK = sequences(CONFIG)


@pytest.fixture(scope="module")
def model() -> jaxsink.Model:
    return lively(CONFIG)


@pytest.fixture(scope="module")
def plain(model: jaxsink.Model) -> Any:
    return jaxsink.forward(model, TOKENS, MASK, record=RECORDS)


def run(model: jaxsink.Model, *edits: edit.Edit, **options: Any) -> Any:
    return jaxsink.forward(model, TOKENS, MASK, edits=edits, **options)


@pytest.mark.slow
@pytest.mark.parametrize("tap", RECORDS)
def test_patching_with_the_own_record_changes_no_bit(model: jaxsink.Model, plain, tap: Any) -> None:
    out = run(model, edit.patch(plain.record[tap], tap))
    np.testing.assert_array_equal(out.logits, plain.logits)


@pytest.mark.slow
@pytest.mark.parametrize("unrolled", [False, True])
def test_patching_a_whole_layer_gives_the_other_run_from_there_on(model: jaxsink.Model, plain, unrolled: bool) -> None:
    """Attention sees all positions of the layer, so nothing of the first run is left."""
    other = np.random.default_rng(5).integers(0, CONFIG.vocab, TOKENS.shape)
    which = model.unrolled() if unrolled else model
    one = jaxsink.forward(which, other, MASK, edits=edit.patch(plain.record["residual"], layers=[1]), record=RECORDS)
    expected = jaxsink.forward(which, TOKENS, MASK, record=RECORDS)
    assert not np.allclose(one.record["residual"][0], expected.record["residual"][0])
    source = jaxsink.forward(which, TOKENS, MASK, record=record.residual()).record
    one = jaxsink.forward(which, other, MASK, edits=edit.patch(source, layers=[1]), record=RECORDS)
    for number in (1, 2):
        np.testing.assert_array_equal(one.record["residual"][number], expected.record["residual"][number])
    np.testing.assert_array_equal(one.logits, expected.logits)


def without(model: jaxsink.Model, of: str) -> jaxsink.Model:
    """The model with weights deleted: what head 4, or the mlp, of layer 1 adds."""
    other = jax.tree.map(lambda x: x, model)
    if of != "mlp":
        size = CONFIG.head_dim
        other.layers.attention.o.weight.set_value(
            other.layers.attention.o.weight[...].at[1, :, 4 * size : 5 * size].set(0)
        )
    else:
        other.layers.mlp.down.weight.set_value(other.layers.mlp.down.weight[...].at[1].set(0))
    return other


@pytest.mark.parametrize(("tap", "heads", "near"), [("values", [4], 0), ("mlp", None, 0), ("head_outputs", [4], 1e-4)])
def test_zero_is_as_if_the_weights_were_gone(model: jaxsink.Model, plain, tap: Any, heads: Any, near: float) -> None:
    """To the bit; what a head adds is taken off the sum of all heads, and that rounds."""
    out, expected = run(model, edit.zero(tap, layers=[1], heads=heads)), without(model, tap)
    np.testing.assert_allclose(
        out.logits, np.asarray(jaxsink.forward(expected, TOKENS, MASK).logits), rtol=0, atol=near
    )
    assert np.abs(out.logits - plain.logits).max() > 0.1


@pytest.mark.slow
def test_adding_scaling_and_means_at_chosen_places(model: jaxsink.Model, plain) -> None:
    """Against the record of the tap itself, right where the edit is."""
    vector = np.random.default_rng(1).standard_normal(CONFIG.width).astype(np.float32)
    first = np.cumsum(MASK, axis=1) - 1
    here = MASK & np.isin(first, [2, 4])
    before = np.asarray(plain.record["residual"][1])
    added = run(model, edit.add(vector, layers=[1], at=[2, 4]), record=RECORDS).record["residual"][1]
    np.testing.assert_array_equal(added, np.where(here[..., None], before + vector, before))
    same = run(model, edit.add(vector, layers=[1], at=here), record=RECORDS).record["residual"][1]
    np.testing.assert_array_equal(added, same)
    before = np.asarray(plain.record["mlp"][0])
    halved = run(model, edit.scale(0.5, "mlp", layers=[0]), record=RECORDS).record["mlp"]
    np.testing.assert_array_equal(halved[0], 0.5 * before)
    values = np.asarray(plain.record["values"])
    ablated = run(model, edit.mean(plain.record["values"], "values", mask=MASK, heads=[2]), record=RECORDS).record[
        "values"
    ]
    np.testing.assert_allclose(
        ablated[0, :, :, 2], np.broadcast_to(values[0][MASK].mean(axis=0)[2], (3, 13, 10)), atol=1e-5
    )
    np.testing.assert_array_equal(
        ablated[0, :, :, [0, 1, 3, 4, 5]], values[0][:, :, [0, 1, 3, 4, 5]].transpose(2, 0, 1, 3)
    )


def test_the_sink_is_what_receives_most(model: jaxsink.Model, plain) -> None:
    received = jaxsink.forward(model, TOKENS, MASK, record=record.received()).record
    out = run(model, edit.zero("mlp", layers=[0], at="sink"), record=RECORDS).record["mlp"][0]
    sink = np.where(MASK, received[0].sum(axis=1), -1).argmax(axis=1)
    expected = np.asarray(plain.record["mlp"][0]).copy()
    expected[np.arange(3), sink] = 0
    np.testing.assert_array_equal(out, expected)


def test_tokens_by_kind_and_by_id(plain) -> None:
    config = FAMILIES["llada"].replace(eos_ids=(7,))
    tokens, mask = sequences(config)
    tokens[:, 5], tokens[:, 7], prompt = config.mask_id, 7, np.arange(13) < 4
    which = {"masked": np.arange(13) == 5, "prompt": prompt, "end-of-text": np.arange(13) == 7}
    for name, here in which.items():
        out = jaxsink.forward(
            lively(config), tokens, mask, prompt=np.broadcast_to(prompt, mask.shape) & (tokens != config.mask_id),
            edits=edit.zero("residual", layers=[2], at=name), record=record.residual(),
        ).record[2]  # fmt: skip
        hit = (np.asarray(out) == 0).all(axis=-1)
        wanted = (
            mask & (tokens == 7 if name == "end-of-text" else here) & ((tokens != config.mask_id) | (name == "masked"))
        )
        np.testing.assert_array_equal(hit & mask, wanted)


@pytest.mark.slow
def test_gradients_are_those_of_patching(model: jaxsink.Model, plain) -> None:
    """Attribution patching: the slope towards another run at every layer and position, by one backward pass."""
    corrupt = np.random.default_rng(5).integers(0, CONFIG.vocab, TOKENS.shape)
    own = jaxsink.forward(model, corrupt, MASK, record=record.residual()).record
    towards = plain.record["residual"] - own

    def score(**edits: Any) -> jax.Array:
        out = jaxsink.forward(model, corrupt, MASK, **edits)
        assert out.logits is not None
        return jax.nn.log_softmax(out.logits[2, -1])[3]

    slope = (jax.grad(lambda moved: score(edits=edit.add(moved)))(jnp.zeros_like(own)) * towards).sum(axis=-1)
    width = 3e-3
    for number, position in ((0, 2), (1, 6), (2, 12)):
        ends = [
            score(edits=edit.patch(own + sign * width * towards, layers=[number], at=[position])) for sign in (1, -1)
        ]
        np.testing.assert_allclose(slope[number, 2, position], (ends[0] - ends[1]) / (2 * width), rtol=3e-2, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("tap", "heads"), [("value_vectors", [1]), ("head_outputs", [3])])
def test_gradients_of_heads_are_slopes(model: jaxsink.Model, plain, tap: Any, heads: list[int]) -> None:
    """Against two passes, along a random direction, through every backend that has gradients of its own."""
    own = plain.record[tap]
    towards = np.random.default_rng(8).standard_normal(own.shape).astype(np.float32)

    def score(size: Any, backend: str) -> jax.Array:
        out = run(model, edit.add(size * jnp.asarray(towards), tap, layers=[0, 1], heads=heads), backend=backend)
        return jax.nn.log_softmax(out.logits[2, -1])[3]

    for backend in ("naive", "blocked", "pallas"):
        slope, width = jax.grad(score)(0.0, backend), 3e-3
        np.testing.assert_allclose(
            slope, (score(width, backend) - score(-width, backend)) / (2 * width), rtol=3e-2, atol=2e-3
        )


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["naive", "blocked", "pallas"])
@pytest.mark.parametrize("family", ["llada", "dream", "llama3.1"])
def test_a_sink_without_its_value_vectors_is_a_pass_by_hand(family: str, backend: str) -> None:
    """In every layer the key that receives most, by NumPy in float64; and at chosen positions, whatever they receive."""
    config = FAMILIES[family]
    model, (tokens, mask) = lively(config), sequences(config)
    wanted = {"received": record.received(), "v": record.value_vectors()}
    at_sink = edit.zero("value_vectors", at="sink")
    out: Any = jaxsink.forward(model, tokens, mask, edits=at_sink, record=wanted, backend=backend)
    sink = np.where(mask, np.asarray(out.record["received"]).sum(axis=2), -1.0).argmax(axis=-1)
    mute = np.arange(13) == sink[..., None]
    assert (np.abs(np.asarray(out.record["v"])).max(axis=(3, 4)) == 0)[mute].all()
    logits, maps = reference(config, model.params, tokens, mask, mute=mute)
    np.testing.assert_array_equal(np.where(mask, maps.sum(axis=(2, 3)), -1.0).argmax(axis=-1), sink)
    np.testing.assert_allclose(out.logits[mask], logits[mask], atol=2e-3, rtol=1e-4)
    here = mask & (np.cumsum(mask, axis=1) == 3)
    out = jaxsink.forward(
        model, tokens, mask, edits=edit.zero("value_vectors", at=here, layers=[0, 2]), backend=backend
    )
    mute = np.stack([here, np.zeros_like(here), here])
    expected = reference(config, model.params, tokens, mask, mute=mute)[0]
    np.testing.assert_allclose(out.logits[mask], expected[mask], atol=2e-3, rtol=1e-4)
    assert np.abs(expected - reference(config, model.params, tokens, mask)[0]).max() > 0.1


@pytest.mark.parametrize("unrolled", [False, True])
def test_without_edits_the_program_is_the_same(model: jaxsink.Model, monkeypatch, unrolled: bool) -> None:
    which = model.unrolled() if unrolled else model

    def program(**options: Any) -> str:
        batch = Batch.make(CONFIG, jnp.asarray(TOKENS), jnp.asarray(MASK))._replace(**options)
        return str(jax.make_jaxpr(lambda m: m(batch)[:3])(which))

    with_machinery = program(), program(outputs=jnp.zeros((3, 1), jnp.int32))
    for module in (attention, layer, transformer, pass_end):
        monkeypatch.setattr(module, "edited", lambda context, tap, vectors, record=None, outputs=None: vectors)
    assert (program(), program(outputs=jnp.zeros((3, 1), jnp.int32))) == with_machinery


def test_other_numbers_do_not_compile_again(model: jaxsink.Model) -> None:
    run(model, edit.scale(0.5, "mlp", layers=[0], at=[1]))
    before = _forward.cache_size()
    run(model, edit.scale(0.25, "mlp", layers=[1, 2], at=[3, 5]))
    assert _forward.cache_size() == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: edit.zero("stream"), "zero: tap must be one of"),  # pyright: ignore
        (lambda: edit.zero("mlp", heads=[1]), "heads belong to the taps 'value_vectors', 'values', 'head_outputs'"),
        (lambda: edit.zero("value_vectors", heads=[2]), "there is no head 2, only 0 to 1"),
        (lambda: edit.patch(np.ones((2, 3, 3, 13, 48))), "a single pass takes one step, and the source has 2"),
        (lambda: edit.patch(np.ones((2, 3, 3, 1, 48))), "one query per step, and which position that is"),
        (lambda: edit.zero("embedding", at="sink"), "the sink of a layer is known after its attention"),
        (lambda: edit.zero("mlp", at="sinks"), "at must be positions"),
        (lambda: edit.zero("mlp", layers=[3]), "the model has no layer 3, only 0 to 2"),
        (lambda: edit.zero("values", heads=[6]), "there is no head 6, only 0 to 5"),
        (lambda: edit.zero("mlp", at="prompt"), "an edit at='prompt' needs to know which tokens are the prompt"),
        (lambda: edit.zero("mlp", at="masked"), "has no mask token, so that nothing is at='masked'"),
        (lambda: edit.zero("mlp", at=[13]), "at must be token positions from 0 to 12"),
        (lambda: edit.zero("mlp", steps=[0]), "steps are those of a sampler"),
        (lambda: edit.add(np.ones(5)), r"a value of shape \(5,\) does not fit"),
        (lambda: edit.patch(np.ones((2, 3, 13, 48))), "the source has 2 layers; name those 2"),
        (lambda: edit.patch(np.ones((3, 2, 13, 48))), "the source has 2 sequences, and there are 3"),
        (lambda: edit.patch(np.ones((3, 3, 12, 48))), "the source must be a record of 'residual'"),
        (lambda: edit.patch({"a": 1, "b": 2}), "the record has 'a', 'b'; give one of them"),
        (lambda: edit.patch(np.ones((3, 3, 13, 48)), from_step=1), "step 1 was not recorded"),
        (lambda: record.received(), "edits must be an Edit or a list"),
    ],
)
def test_wrong_edits_get_one_sentence(model: jaxsink.Model, make: Any, message: str) -> None:
    with pytest.raises(JaxsinkError, match=message):
        run(model, make())
