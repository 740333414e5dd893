"""Edits while a sampler runs: every step is the edited pass over its canvas, whatever the batch and the devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.sampling import PROMPTS, model_of

import jaxsink
from jaxsink import JaxsinkError, edit, record
from jaxsink.sinks import MaskSinks

SAMPLERS = {"llada": jaxsink.LLaDASampler(6, 6, 6), "dream": jaxsink.DreamSampler(6, 6)}
GUIDED = {
    "llada": jaxsink.LLaDASampler(6, 6, 3, cfg_scale=0.5),
    "mdlm": jaxsink.MDLMSampler(6, 6, 3, cfg_scale=2.0),
    "bd3lm": jaxsink.BD3LMSampler(6, 6, 3, cfg_scale=0.5),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", SAMPLERS)
def test_patching_with_the_own_record_changes_no_bit(family: str) -> None:
    model, sampler = model_of(family), SAMPLERS[family]
    wanted = {"residual": record.residual(), "received": record.received()}
    plain = jaxsink.generate(model, PROMPTS, sampler, record=wanted)
    again = jaxsink.generate(model, PROMPTS, sampler, record=wanted, intervene=edit.patch(plain.record["residual"]))
    np.testing.assert_array_equal(again.tokens, plain.tokens)
    for name in wanted:
        np.testing.assert_array_equal(again.record[name], plain.record[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", GUIDED)
def test_with_guidance_vectors_of_positions_stay_in_the_pass_that_is_recorded(name: str) -> None:
    """The own record changes no bit; another prompt's, in one layer, gives its text: without prompts both are alike."""
    model, sampler = model_of("llada"), GUIDED[name]
    wanted = {"residual": record.residual(), "values": record.head_values(), "received": record.received()}
    plain, other = (
        jaxsink.generate(model, prompts, sampler, record=wanted) for prompts in (PROMPTS, PROMPTS[:, ::-1].copy())
    )
    for tap in ("residual", "values"):
        own = edit.patch(plain.record[tap], tap)
        again = jaxsink.generate(model, PROMPTS, sampler, record=wanted, intervene=own)
        np.testing.assert_array_equal(again.tokens, plain.tokens)
        for kept in wanted:
            np.testing.assert_array_equal(again.record[kept], plain.record[kept])
    assert (np.asarray(other.response) != plain.response).any()
    from_there = edit.patch(other.record["residual"], layers=[1])
    run = jaxsink.generate(model, PROMPTS, sampler, record=wanted, intervene=from_there)
    np.testing.assert_array_equal(run.response, other.response)
    np.testing.assert_array_equal(run.record["residual"][:, 1:], other.record["residual"][:, 1:])


def test_with_guidance_other_edits_act_in_both_passes() -> None:
    """An mlp at zero is a model without its weights, as guidance sees it too."""
    model, sampler = model_of("llada"), GUIDED["llada"]
    less: Any = jax.tree.map(lambda x: x, model)
    less.layers.mlp.down.weight.set_value(less.layers.mlp.down.weight[...].at[1].set(0))
    seen = []

    def keep(step: Any, scores: Any, position: Any) -> Any:
        jax.debug.callback(lambda x: seen.append(np.asarray(x)), scores, ordered=True)
        return scores

    run = jaxsink.generate(model, PROMPTS, sampler, intervene=edit.zero("mlp", layers=[1]), edit_logits=keep)
    expected = jaxsink.generate(less, PROMPTS, sampler, edit_logits=keep)
    jax.effects_barrier()
    np.testing.assert_array_equal(run.tokens, expected.tokens)
    assert len(seen) == 12
    np.testing.assert_allclose(seen[:6], seen[6:], atol=1e-4)


@pytest.mark.slow
def test_a_step_is_an_edited_pass() -> None:
    """And hidden keys go along; before the chosen step nothing differs."""
    model, sampler = model_of("llada"), SAMPLERS["llada"]
    vector = np.random.default_rng(2).standard_normal(model.config.width)
    steered = edit.add(vector, layers=[1], steps=[3], at="masked")
    wanted = {"residual": record.residual(), "dropped": record.dropped()}
    plain = jaxsink.generate(model, PROMPTS, sampler, record=wanted, intervene=MaskSinks(1))
    run = jaxsink.generate(model, PROMPTS, sampler, record=wanted, intervene=[MaskSinks(1), steered])
    np.testing.assert_array_equal(run.record["residual"][:3], plain.record["residual"][:3])
    canvas = run.canvas(3, model.config.mask_id or 0)
    for edits, same in ((edit.add(vector, layers=[1], at="masked"), True), ((), False)):
        expected = jaxsink.forward(
            model, canvas, drop=run.record["dropped"][3], edits=edits, record=record.residual()
        ).record
        assert np.allclose(run.record["residual"][3], expected, atol=1e-4) == same


@pytest.mark.slow
def test_a_run_that_recorded_some_steps_is_patched_in_at_those() -> None:
    """Step 2 of it into step 2, and so on; its record alone does not say which steps it is of."""
    model, sampler = model_of("dream"), SAMPLERS["dream"]
    every, some = (jaxsink.generate(model, PROMPTS, sampler, record=record.residual(), every=n) for n in (1, 2))
    other = PROMPTS[:, ::-1].copy()
    at = edit.patch(some, layers=[1], steps=[2, 4])
    run = jaxsink.generate(model, other, sampler, record=record.residual(), intervene=at)
    plain = jaxsink.generate(model, other, sampler, record=record.residual())
    np.testing.assert_array_equal(run.record[:2], plain.record[:2])
    for step in (2, 4):
        np.testing.assert_array_equal(run.record[step, 1], every.record[step, 1])
    assert not np.allclose(run.record[3, 1], every.record[3, 1])
    one = jaxsink.generate(model, other, sampler, record=record.residual(), intervene=edit.patch(some, from_step=4))
    for step in range(6):
        np.testing.assert_array_equal(one.record[step], every.record[4])
    own = jaxsink.generate(model, PROMPTS, sampler, record=record.residual(), intervene=edit.patch(every))
    np.testing.assert_array_equal(own.record, every.record)
    for source, message in (
        (some, "no record of step 1, only of 0, 2, 4; name some of those by `steps`"),
        (some.record, "the source has 3 recorded steps and the run has 6.*`every`.*`from_step`"),
    ):
        with pytest.raises(JaxsinkError, match=message):
            jaxsink.generate(model, other, sampler, intervene=edit.patch(source))
    with pytest.raises(JaxsinkError, match="step 3 was not recorded"):
        edit.patch(some, from_step=3)
    with pytest.raises(JaxsinkError, match="the run recorded nothing"):
        edit.patch(jaxsink.generate(model, other, sampler))


@pytest.mark.slow
@pytest.mark.parametrize("tap", ["residual", "values", "head_outputs"])
def test_an_autoregressive_run_is_patched_in_where_its_queries_ran(tap: Any) -> None:
    model, sampler = model_of("llama3.1"), jaxsink.ARSampler(5, stop_at_eos=False)
    wanted = {"residual": record.residual, "values": record.head_values, "head_outputs": record.head_outputs}[tap]()
    first = jaxsink.generate(model, PROMPTS, sampler, record=wanted)
    assert first.record.shape[3] == 1
    for source in (first, first.record):
        again = jaxsink.generate(model, PROMPTS, sampler, record=wanted, intervene=edit.patch(source, tap))
        np.testing.assert_array_equal(again.tokens, first.tokens)
        np.testing.assert_array_equal(again.record, first.record)
    whole = jaxsink.forward(model, first.tokens, record=wanted).record
    ran = np.broadcast_to((np.arange(11) >= 5) & (np.arange(11) < 10), (2, 11))
    patch = edit.patch(whole, tap, layers=[0, 2], at=ran)
    other = PROMPTS[:, ::-1].copy()
    run = jaxsink.generate(
        model, other, sampler, intervene=edit.patch(first.record[:, jnp.array([0, 2])], tap, layers=[0, 2])
    )
    logits = jaxsink.forward(model, run.tokens, edits=patch).logits
    assert logits is not None
    np.testing.assert_array_equal(np.asarray(logits)[:, 5:-1].argmax(axis=-1), run.response)
    by_run: Any = jaxsink.forward(model, run.tokens, edits=edit.patch(first, tap, layers=[0, 2])).logits
    np.testing.assert_allclose(by_run, logits, atol=1e-3)
    half = jaxsink.generate(model, PROMPTS, sampler, record=wanted, every=2)
    some = jaxsink.generate(model, PROMPTS, sampler, intervene=edit.patch(half, tap, steps=[0, 4]))
    np.testing.assert_array_equal(some.tokens, first.tokens)
    with pytest.raises(JaxsinkError, match="no record of step 1"):
        jaxsink.generate(model, PROMPTS, sampler, intervene=edit.patch(half, tap))


def test_a_step_of_another_run_in_every_step() -> None:
    model, sampler = model_of("llada"), SAMPLERS["llada"]
    plain = jaxsink.generate(model, PROMPTS, sampler, record=record.residual().at([0, 2]))
    frozen = edit.patch(plain.record, layers=[0, 2], from_step=2)
    run = jaxsink.generate(model, PROMPTS, sampler, record=record.residual(), intervene=frozen)
    for step in range(6):
        np.testing.assert_array_equal(run.record[step][jnp.array([0, 2])], plain.record[2])


@pytest.mark.slow
def test_an_autoregressive_model_writes_what_the_edited_passes_predict() -> None:
    model = model_of("llama3.1")
    edits = [edit.zero("values", layers=[1], heads=[2]), edit.scale(2.0, "mlp", layers=[0], at=[3, 7])]
    sampler = jaxsink.ARSampler(5, stop_at_eos=False)
    run = jaxsink.generate(model, PROMPTS, sampler, intervene=edits)
    logits = jaxsink.forward(model, run.tokens, edits=edits).logits
    assert logits is not None
    np.testing.assert_array_equal(np.asarray(logits)[:, 5:-1].argmax(axis=-1), run.response)
    assert (
        np.asarray(run.response) != jaxsink.generate(model, PROMPTS, jaxsink.ARSampler(5, stop_at_eos=False)).response
    ).any()


@pytest.mark.slow
def test_neither_batch_nor_padding_nor_devices_matter() -> None:
    model, sampler = model_of("llada"), SAMPLERS["llada"]
    prompts = [list(PROMPTS[0]), list(PROMPTS[1][:4]), list(PROMPTS[0][:5])]
    source = np.random.default_rng(3).standard_normal((2, 3, 12, model.config.width)).astype(np.float32)

    def edits(rows: Any, start: int) -> list[edit.Edit]:
        """The same for these sequences alone, of which the first `start` positions are cut off."""
        return [edit.patch(source[:, rows, start:], layers=[0, 2], at=[1, 2]), edit.zero("mlp", layers=[1], at="sink")]

    run = jaxsink.generate(model, prompts, sampler, intervene=edits(slice(None), 0), record=record.residual_norm())
    dealt = jaxsink.generate(
        model,
        prompts,
        sampler,
        intervene=edits(slice(None), 0),
        record=record.residual_norm(),
        devices=jax.devices()[:2],
    )
    np.testing.assert_array_equal(dealt.tokens, run.tokens)
    np.testing.assert_allclose(dealt.record, run.record, rtol=1e-4)
    alone = jaxsink.generate(
        model, prompts[1:2], sampler, intervene=edits(slice(1, 2), 2), record=record.residual_norm()
    )
    np.testing.assert_array_equal(alone.tokens[0], run.tokens[1, 2:])
    np.testing.assert_allclose(alone.record[:, :, 0], run.record[:, :, 1, 2:], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llada", "llama3.1"])
def test_a_cut_model_is_edited_alike(family: str) -> None:
    """On a mesh that cuts sequences, weights and heads: every tap with heads, the sink, and another run."""
    alone = model_of(family)
    sampler = SAMPLERS.get(family, jaxsink.ARSampler(6, stop_at_eos=False))
    source = jaxsink.generate(alone, PROMPTS[:, ::-1].copy(), sampler, record=record.residual())
    edits = [
        edit.zero("value_vectors", layers=[0], at="sink"), edit.scale(0.5, "head_outputs", layers=[1], heads=[3]),
        edit.zero("values", layers=[2], heads=[0]), edit.patch(source, layers=[1], at=[2, 7]),
    ]  # fmt: skip
    cut = jaxsink.parallel.shard(alone, jaxsink.parallel.make_mesh(2, 4))
    run, expected = (
        jaxsink.generate(model, PROMPTS, sampler, intervene=edits, record=record.residual()) for model in (cut, alone)
    )
    np.testing.assert_array_equal(run.tokens, expected.tokens)
    np.testing.assert_allclose(run.record, expected.record, atol=2e-4)
    plain = jaxsink.generate(alone, PROMPTS, sampler, record=record.residual())
    assert np.abs(np.asarray(plain.record) - np.asarray(expected.record)).max() > 0.1


@pytest.mark.slow
def test_cached_keys_have_value_vectors_to_edit() -> None:
    """What an autoregressive model sees of a key that does not run again, step by step."""
    model, sampler = model_of("llama3.1"), jaxsink.ARSampler(5, stop_at_eos=False)
    silent = edit.zero("value_vectors", layers=[0, 1], at=[1])
    run = jaxsink.generate(model, PROMPTS, sampler, intervene=silent)
    logits: Any = jaxsink.forward(model, run.tokens, edits=silent).logits
    np.testing.assert_array_equal(np.asarray(logits)[:, 5:-1].argmax(axis=-1), run.response)
    wanted = {"v": record.value_vectors()}
    late = edit.zero("value_vectors", at=[1], steps=[3])
    seen = jaxsink.generate(model, PROMPTS, sampler, intervene=late, record=wanted).record["v"]
    gone = (np.asarray(seen)[:, :, :, 1] == 0).all(axis=(1, 2, 3, 4))
    np.testing.assert_array_equal(gone, np.arange(5) == 3)


def test_what_cannot_be_is_said() -> None:
    model, sampler = model_of("llada"), SAMPLERS["llada"]
    with pytest.raises(JaxsinkError, match="only one that hides keys, not 2"):
        jaxsink.generate(model, PROMPTS, sampler, intervene=[MaskSinks(1), MaskSinks(2)])
    with pytest.raises(JaxsinkError, match="there is no step 6, only 0 to 5"):
        jaxsink.generate(model, PROMPTS, sampler, intervene=edit.zero("mlp", steps=[6]))


@pytest.mark.parametrize(
    ("family", "sampler"),
    [("nemotron", jaxsink.NemotronSampler(8, 4)), ("a2d", jaxsink.BD3LMSampler(8, 8, block_size=4))],
    ids=["nemotron", "bd3lm"],
)
def test_samplers_that_keep_their_context_are_edited_like_others(family: str, sampler: Any) -> None:
    """An intervention that hides nothing has them run everything in each step."""
    model = model_of(family)

    def nothing(previous: Any) -> Any:
        return jnp.zeros(previous.drop.shape, bool)

    plain, run, whole = (
        jaxsink.generate(model, PROMPTS, sampler, record=record.received(), intervene=intervene)
        for intervene in (None, edit.zero("mlp"), [nothing, edit.zero("mlp")])
    )
    assert (np.asarray(run.tokens) != plain.tokens).any()
    np.testing.assert_array_equal(run.tokens, whole.tokens)
    np.testing.assert_allclose(run.record, whole.record, atol=1e-5)


UNEVEN: Any = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [20, 21, 22, 23]]


def test_steps_that_nobody_took_are_no_source() -> None:
    """Sequences that need one, two and all of eight steps: what they had after their last is left alone, and no part of a
    mean."""
    model = model_of("llada")
    short = jaxsink.LLaDASampler(8, 8, 8, threshold=0.0)
    source = jaxsink.generate(model, UNEVEN, short, record=record.mlp_output())
    assert np.asarray(source.steps).tolist() == [1, 1, 1] and len(source.record) == 8
    np.testing.assert_allclose(
        edit.mean(source, "mlp").value, np.asarray(source.record)[0].mean(axis=(1, 2)), rtol=1e-4, atol=1e-5
    )
    sampler = jaxsink.LLaDASampler(8, 8, 8)
    plain, run = (
        jaxsink.generate(model, UNEVEN, sampler, record=record.mlp_output(), intervene=intervene)
        for intervene in (None, edit.patch(source, "mlp"))
    )
    np.testing.assert_array_equal(run.record[0], source.record[0])
    np.testing.assert_array_equal(run.tokens, plain.tokens)
    np.testing.assert_array_equal(run.record[1:], plain.record[1:])
    one = jaxsink.generate(
        model, UNEVEN, sampler, record=record.mlp_output(), intervene=edit.patch(source, "mlp", from_step=5)
    )
    np.testing.assert_array_equal(one.record, plain.record)


def test_an_autoregressive_source_ends_where_its_sequence_did() -> None:
    model, prompts = model_of("llama3.1"), PROMPTS
    free = jaxsink.ARSampler(6, stop_at_eos=False)
    plain = jaxsink.generate(model, prompts, free, record=record.residual())
    end = int(np.asarray(plain.response)[0, 1])
    stops = model.with_config(model.config.replace(eos_ids=(end,)))
    source = jaxsink.generate(stops, prompts, jaxsink.ARSampler(6), record=record.residual())
    assert int(source.steps[0]) == 2 < int(np.asarray(source.steps).max())
    run = jaxsink.generate(model, prompts, free, record=record.residual(), intervene=edit.patch(source))
    np.testing.assert_array_equal(run.tokens, plain.tokens)
    np.testing.assert_array_equal(run.record, plain.record)


def test_layers_of_a_record_keep_their_order() -> None:
    model, sampler = model_of("llada"), SAMPLERS["llada"]
    other = PROMPTS[:, ::-1].copy()
    plain = jaxsink.generate(model, other, sampler, record=record.mlp_output())
    turned = jaxsink.generate(model, other, sampler, record=record.mlp_output().at([2, 1, 0]))
    wanted, *same = (
        jaxsink.generate(model, PROMPTS, sampler, record=record.residual(), intervene=intervene)
        for intervene in (
            edit.patch(plain, "mlp"),
            edit.patch(turned, "mlp"),
            edit.patch(turned, "mlp", layers=[2, 1, 0]),
        )
    )
    for run in same:
        np.testing.assert_array_equal(run.record, wanted.record)
    with pytest.raises(JaxsinkError, match="a source of all layers is in their order"):
        jaxsink.generate(model, PROMPTS, sampler, intervene=edit.patch(turned.record, "mlp", layers=[2, 1, 0]))
