"""The logit lens against a pass in plain NumPy, in blocks and whole, in passes and in runs."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively, sequences
from support.reference.transformer import residuals
from support.sampling import PROMPTS, model_of

import jaxsink
from jaxsink import JaxsinkError, record
from jaxsink.nn.batch import Batch, Execution
from jaxsink.nn.recorder import compile_record
from jaxsink.recording import lens as lens_module
from jaxsink.recording.lens_sums import best_on, by_maxima, by_top_k
from jaxsink.recording.tuned import save_lens

CONFIG = FAMILIES["llama3.1"]
TOKENS, MASK = sequences(CONFIG)


@pytest.fixture(scope="module")
def model() -> jaxsink.Model:
    return lively(CONFIG)


@pytest.fixture(scope="module")
def from_scratch(model: jaxsink.Model) -> np.ndarray:
    """[L,B,S,E] of a NumPy pass in float64, which has nothing of the model but its weights."""
    return residuals(CONFIG, model.params, TOKENS, MASK)


def by_hand(model: jaxsink.Model, residual: np.ndarray, targets: Any, top: int) -> dict[str, np.ndarray]:
    """float64, [L,B,S,V] at once."""
    config, x = model.config, np.asarray(residual, np.float64)
    x = (
        x
        / np.sqrt((x**2).mean(axis=-1, keepdims=True) + config.norm_eps)
        * np.asarray(model.norm.weight[...], np.float64)
    )
    head = model.embedding if model.head is None else model.head.weight
    logits = x @ np.asarray(head[...], np.float64).T
    log_prob = (
        logits
        - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - logits.max(-1, keepdims=True)
    )
    prob, token = np.exp(log_prob), np.argsort(-logits, axis=-1)[..., :top]
    shifted = config.attention == "causal" or config.family == "dream"
    wanted = (np.concatenate([targets[:, 1:], targets[:, -1:]], axis=1) if shifted else targets)[None, ..., None]
    return {
        "token": token, "log_prob": np.take_along_axis(log_prob, token, -1), "entropy": -(prob * log_prob).sum(-1),
        "kl": (prob[-1] * (log_prob[-1] - log_prob)).sum(-1),
        "rank": (logits > np.take_along_axis(logits, wanted, -1)).sum(-1),
    }  # fmt: skip


@pytest.mark.parametrize(("vocabulary", "room"), [(2048, 32 << 20), (32, 32 << 20), (32, 4 * 3 * 3 * 32 * 5)])
def test_lens_is_norm_and_head_of_every_layer(
    model: jaxsink.Model, from_scratch: np.ndarray, monkeypatch, vocabulary: int, room: int
) -> None:
    """In one block, in blocks of the vocabulary that do not divide it, and in blocks of queries that do not, too."""
    jax.clear_caches()
    monkeypatch.setattr(lens_module, "VOCABULARY", vocabulary)
    monkeypatch.setattr(lens_module, "BLOCK_BYTES", room)
    targets = np.random.default_rng(3).integers(0, CONFIG.vocab, TOKENS.shape)
    wanted = {"lens": record.lens(4, rank=True), "residual": record.residual(), "logits": record.lens_logits()}
    out = jaxsink.forward(model, TOKENS, MASK, record=wanted, targets=targets)
    jax.clear_caches()
    assert out.logits is not None
    np.testing.assert_allclose(out.record["residual"][:, MASK], from_scratch[:, MASK], rtol=1e-4, atol=1e-4)
    found, expected = out.record["lens"], by_hand(model, from_scratch, targets, 4)
    assert set(found) == {*expected, "position"}
    np.testing.assert_array_equal(found["position"], np.broadcast_to(np.where(MASK, np.arange(1, 14), -1), (3, 3, 13)))
    for name, values in expected.items():
        np.testing.assert_allclose(np.asarray(found[name])[:, MASK], values[:, MASK], atol=2e-4, rtol=1e-4)
        np.testing.assert_array_equal(np.asarray(found[name])[:, ~MASK], -1 if name in ("token", "rank") else 0)
    np.testing.assert_array_equal(out.record["logits"][-1][MASK], out.logits[MASK])
    np.testing.assert_array_equal(found["token"][-1][MASK], jax.lax.top_k(out.logits, 4)[1][MASK])
    np.testing.assert_array_equal(found["kl"][-1], 0)
    best = jax.lax.top_k(jax.nn.log_softmax(out.logits), 4)[0]
    np.testing.assert_allclose(found["log_prob"][-1][MASK], best[MASK], atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", [2048, 7, 3])
def test_one_maximum_after_the_other_is_what_top_k_finds(model: jaxsink.Model, monkeypatch, vocabulary: int) -> None:
    """To the bit, among equal logits too, in blocks that hold more tokens than are kept, or fewer."""
    twice = jax.tree.map(lambda x: x, model)
    weight = model.head.weight if model.head is not None else model.embedding
    tied = weight[...].at[CONFIG.vocab // 2 :].set(weight[...][: CONFIG.vocab - CONFIG.vocab // 2])
    (twice.embedding if model.head is None else twice.head.weight).set_value(tied)
    monkeypatch.setattr(lens_module, "VOCABULARY", vocabulary)
    found = []
    for best_of in (by_top_k, by_maxima):
        jax.clear_caches()
        monkeypatch.setattr(lens_module, "best_on", lambda mesh, best_of=best_of: best_of)
        seen = jaxsink.forward(twice, TOKENS, MASK, record=record.lens(5, rank=True), targets=TOKENS)
        found.append(jax.tree.map(np.asarray, seen.record))
    jax.clear_caches()
    token = found[0]["token"][:, MASK]
    assert (token[..., 1] == token[..., 0] + CONFIG.vocab // 2).all()
    for name, values in found[0].items():
        np.testing.assert_array_equal(found[1][name], values, err_msg=name)


def test_only_one_device_that_is_no_tpu_takes_top_k() -> None:
    """A mesh would gather the logits for it."""
    assert best_on(None) is best_on(jaxsink.parallel.make_mesh(1, 1, jax.devices()[:1])) is by_top_k
    assert best_on(jaxsink.parallel.make_mesh(2, 4)) is by_maxima


@pytest.mark.parametrize(("family", "shift"), [("llada", 0), ("dream", 1)])
def test_lens_of_models_that_see_both_sides(family: str, shift: int) -> None:
    """Against NumPy; queries of Dream speak of the token to their right."""
    config = FAMILIES[family]
    model, (tokens, mask) = lively(config), sequences(config)
    tokens = np.where(np.random.default_rng(2).random(tokens.shape) < 0.5, config.mask_id, tokens)
    targets = np.random.default_rng(3).integers(0, config.vocab, tokens.shape)
    wanted = {"lens": record.lens(4, rank=True), "residual": record.residual()}
    found = jaxsink.forward(model, tokens, mask, record=wanted, targets=targets).record
    slow = residuals(config, model.params, tokens, mask)
    np.testing.assert_allclose(found["residual"][:, mask], slow[:, mask], rtol=1e-4, atol=1e-4)
    expected, lens = by_hand(model, slow, targets, 4), found["lens"]
    for name, values in expected.items():
        np.testing.assert_allclose(np.asarray(lens[name])[:, mask], values[:, mask], atol=5e-4, rtol=1e-4)
    about = np.where(mask, np.arange(13) + shift, -1)
    np.testing.assert_array_equal(lens["position"], np.broadcast_to(about, lens["position"].shape))


@pytest.mark.parametrize("unrolled", [False, True])
def test_chosen_layers_and_positions(model: jaxsink.Model, unrolled: bool) -> None:
    """Positions count from the first real token; a sequence that is too short has nothing there."""
    which = model.unrolled() if unrolled else model
    wanted = {
        "all": record.lens(2),
        "some": record.lens(2, positions=[1, 9]).at([2, 0]),
        "tail": record.lens(2).at([1]),
    }
    out = jaxsink.forward(which, TOKENS, MASK, record=wanted).record
    for name, values in out["all"].items():
        place = np.array([[4, 12], [1, 9], [1, 9]])
        chosen = np.take_along_axis(
            np.asarray(values)[[2, 0]], place.reshape(1, 3, 2, *[1] * (values.ndim - 3)), axis=2
        )
        chosen[:, 1, 1] = -1 if name in ("token", "position") else 0
        np.testing.assert_allclose(out["some"][name], chosen, atol=1e-5)
        np.testing.assert_allclose(out["tail"][name][0], values[1], atol=1e-5)


def test_a_tuned_lens_moves_the_residual(model: jaxsink.Model) -> None:
    rng = np.random.default_rng(1)
    tuned = record.TunedLens(
        jnp.asarray(rng.normal(size=(3, 48, 48), scale=0.1), jnp.float32),
        jnp.asarray(rng.normal(size=(3, 48)), jnp.float32),
    )
    wanted = {"lens": record.lens_logits(tuned=tuned), "residual": record.residual(), "plain": record.lens_logits()}
    out = jaxsink.forward(model, TOKENS, MASK, record=wanted).record
    moved = out["residual"] + jnp.einsum("lbse,lfe->lbsf", out["residual"], tuned.change) + tuned.bias[:, None, None]
    np.testing.assert_allclose(out["lens"][:, MASK], model.logits(model.norm(moved))[:, MASK], atol=1e-3)
    nothing = jax.tree.map(jnp.zeros_like, tuned)
    same = jaxsink.forward(model, TOKENS, MASK, record=record.lens_logits(tuned=nothing)).record
    np.testing.assert_allclose(same, out["plain"], atol=1e-5)
    with pytest.raises(JaxsinkError, match="two lenses are tuned differently"):
        jaxsink.forward(model, TOKENS, record=[record.lens(tuned=tuned), record.lens(tuned=nothing)])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llada", "dream", "llama3.1"])
def test_every_step_of_a_run_is_the_lens_of_its_canvas(family: str) -> None:
    """And the window holds what the head reads: the best token is the one that is written."""
    model = model_of(family)
    sampler = {"llada": jaxsink.LLaDASampler(8, 8, 4), "dream": jaxsink.DreamSampler(8, 8)}.get(
        family, jaxsink.ARSampler(8, stop_at_eos=False)
    )
    wanted = {"window": record.lens(3, "window", rank=True), "all": record.lens(3, rank=True)}
    run = jaxsink.generate(model, PROMPTS, sampler, record=wanted).on_host()
    window = run.record["window"]
    for step in (0, 5):
        if family != "llama3.1":
            canvas = run.canvas(step, model.config.mask_id or 0)
            expected = jaxsink.forward(model, canvas, record=record.lens(3, rank=True), targets=run.tokens).record
            for name, values in expected.items():
                np.testing.assert_allclose(run.record["all"][name][step], values, atol=1e-4)
    for sequence, written in np.argwhere(run.committed_at >= 0):
        step = run.committed_at[sequence, written]
        slot = np.flatnonzero(window["position"][step, -1, sequence] == written)[0]
        assert window["token"][step, -1, sequence, slot, 0] == run.tokens[sequence, written]
        assert window["rank"][step, -1, sequence, slot] == 0


@pytest.mark.slow
def test_neither_devices_nor_batch_matter() -> None:
    model, sampler = model_of("llada"), jaxsink.LLaDASampler(6, 6, 6)
    prompts, wanted = [list(PROMPTS[0]), list(PROMPTS[1][:4]), list(PROMPTS[0][:5])], record.lens(2, rank=True)
    run = jaxsink.generate(model, prompts, sampler, record=wanted)
    dealt = jaxsink.generate(model, prompts, sampler, record=wanted, devices=jax.devices()[:2])
    alone = jaxsink.generate(model, prompts[1:2], sampler, record=wanted)
    for name, values in run.record.items():
        np.testing.assert_allclose(dealt.record[name], values, atol=1e-4)
        of_padded = values[:, :, 1, 2:] - 2 * (name == "position")
        np.testing.assert_allclose(alone.record[name][:, :, 0], of_padded, atol=1e-4)


def test_what_cannot_be_is_said(model: jaxsink.Model) -> None:
    for make, message in (
        (lambda: record.lens(0), "lens: top must be"),
        (lambda: record.lens(positions="all"), "positions must be one of window or a list, each of it a whole number"),  # pyright: ignore
        (lambda: record.lens(positions=[]), "positions names none"),
        (lambda: record.lens(90), "top 90 is more than the vocabulary of 89 tokens"),
        (lambda: record.lens(rank=True), "give targets="),
    ):
        with pytest.raises(JaxsinkError, match=message):
            jaxsink.forward(model, TOKENS, MASK, record=make())


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_with_a_cache_the_lens_reads_what_the_step_reads(cache: Any) -> None:
    model, sampler = model_of("llada"), jaxsink.LLaDASampler(8, 8, 4, cache=cache)
    with pytest.raises(JaxsinkError, match="lens cannot read all positions; give it positions='window'"):
        jaxsink.generate(model, PROMPTS, sampler, record={"r": record.received(), "l": record.lens(2)})
    with pytest.raises(JaxsinkError, match=r"summed over queries can be kept, and maps is none; record received\(\)"):
        jaxsink.generate(model, PROMPTS, sampler, record={"r": record.received(), "m": record.maps()})
    run = jaxsink.generate(model, PROMPTS, sampler, record=record.lens(2, "window"))
    for step in range(8):
        about = 6 + 4 * (step // 4) + np.arange(4)
        np.testing.assert_array_equal(run.record["position"][step, -1], np.broadcast_to(about, (2, 4)))
        best, written = run.record["token"][step, -1, ..., 0], np.asarray(run.committed_at)[:, about] == step
        np.testing.assert_array_equal(np.asarray(best)[written], np.asarray(run.tokens)[:, about][written])


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize(("vocab", "shape"), [(96, (1, 8)), (92, (2, 4)), (89, (1, 8))])
def test_blocks_follow_the_cut_of_the_head(monkeypatch, vocab: int, shape: tuple[int, int]) -> None:
    """Several blocks in each part, with equal logits in all of them; and a vocabulary that no part divides. Devices send
    each other what was read, never weights of the head."""
    monkeypatch.setattr(lens_module, "VOCABULARY", 5)
    jax.clear_caches()
    alone = lively(CONFIG.replace(vocab=vocab))
    assert alone.head is not None
    rows = jnp.arange(vocab) % 5
    alone.head.weight[...] = jax.nn.one_hot(rows, CONFIG.width)  # each token has the logit of every fifth one
    model = jaxsink.parallel.shard(alone, jaxsink.parallel.make_mesh(*shape))
    tokens, mask = sequences(model.config, batch=2)
    targets = np.random.default_rng(3).integers(0, vocab, tokens.shape)
    wanted = {"lens": record.lens(7, rank=True), "logits": record.lens_logits()}
    out = jaxsink.forward(model, tokens, mask, record=wanted, targets=targets)
    plain = jaxsink.forward(alone, tokens, mask, record=wanted, targets=targets).record["lens"]
    jax.clear_caches()
    found, logits = out.record["lens"], np.asarray(out.record["logits"])
    order = np.argsort(-logits, axis=-1, stable=True)
    following = np.concatenate([targets[:, 1:], targets[:, -1:]], axis=1)
    np.testing.assert_array_equal(np.asarray(found["token"])[:, mask], order[:, mask, :7])
    rank = np.argmax(order == following[..., None], axis=-1)
    np.testing.assert_array_equal(np.asarray(found["rank"])[:, mask], rank[:, mask])
    for name in ("log_prob", "entropy", "kl", "position"):
        np.testing.assert_allclose(found[name], plain[name], atol=1e-4)
    np.testing.assert_array_equal(found["kl"][-1], 0)


def test_no_device_needs_weights_of_the_head_of_another(monkeypatch) -> None:
    """What devices send each other has no axis of the vocabulary, a part or a block beside the model's width."""
    monkeypatch.setattr(lens_module, "VOCABULARY", 5)
    config = CONFIG.replace(vocab=88)
    mesh = jaxsink.parallel.make_mesh(1, 8)
    model = jaxsink.parallel.shard(lively(config), mesh)
    batch = Batch.make(config, *map(jnp.asarray, sequences(config)))
    recorders, _ = compile_record(record.lens(2), config.layers, config.heads)

    def read(model: jaxsink.Model) -> Any:
        return model(batch, recorders=recorders, execution=Execution(mesh=mesh), head=False).record

    text = jax.jit(read).lower(model).compile().as_text() or ""
    sent = re.findall(r"= (.*) (?:all-\w+|collective-permute|reduce-scatter)(?:-start)?\(", text)
    axes = {tuple(map(int, shape.split(","))) for line in sent for shape in re.findall(r"\[([\d,]+)\]", line)}
    assert any(48 in shape for shape in axes), "residual streams are sent"
    assert not {shape for shape in axes if 48 in shape and {5, 11, 40, 88} & set(shape)}


READ_BY = {
    "nemotron": ("nemotron", jaxsink.NemotronSampler(8, 4)),
    "speculative": ("nemotron", jaxsink.SpeculativeSampler(8, 4)),
    "mdlm, shifted": ("a2d", jaxsink.MDLMSampler(8, 8, block_size=4, right_shift_logits=True)),
    "bd3lm, shifted": ("a2d", jaxsink.BD3LMSampler(8, 8, block_size=4, right_shift_logits=True)),
    "dream": ("dream", jaxsink.DreamSampler(8, 8)),
}


@pytest.mark.parametrize("name", READ_BY)
def test_the_last_layer_reads_what_is_written_where_it_is_written(name: str) -> None:
    """Whoever shifts, the model or the sampler."""
    family, sampler = READ_BY[name]
    out = jaxsink.generate(model_of(family), PROMPTS, sampler, record=record.lens(1, positions="window", rank=True))
    found = {part: np.asarray(values)[:, -1] for part, values in out.record.items()}
    for sequence in range(len(PROMPTS)):
        for position in range(out.prompt_length, out.tokens.shape[1]):
            step = int(out.committed_at[sequence, position])
            (reader,) = np.flatnonzero(found["position"][step, sequence] == position)
            assert found["rank"][step, sequence, reader] == 0
            assert found["token"][step, sequence, reader, 0] == out.tokens[sequence, position]


def test_opened_models_predict_what_they_were_trained_to() -> None:
    """A next-token model that sees both sides is asked for the next token."""
    config = FAMILIES["qwen2"]
    opened, (tokens, mask) = lively(config), sequences(config)
    seen = jaxsink.forward(opened, tokens, mask, attention="bidirectional", record=record.lens(1)).record
    np.testing.assert_array_equal(seen["position"][0], np.where(mask, np.arange(1, tokens.shape[1] + 1), -1))


def test_steps_that_did_not_run_have_no_tokens_on_any_number_of_devices() -> None:
    model, prompts = model_of("sdar"), [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [20, 21, 22, 23]]
    wanted = {"lens": record.lens(1, positions="window"), "residual": record.residual(), "first": record.embedding()}
    one, many, streamed = (
        jaxsink.generate(model, prompts, jaxsink.SDARSampler(8), record=wanted, **how)
        for how in ({}, {"devices": jax.devices()}, {"stream": 2})
    )
    taken = np.arange(len(one.recorded_steps))[:, None] < np.asarray(one.steps)
    assert not taken.all()
    for other in (many, streamed):
        for name, values in one.record["lens"].items():
            np.testing.assert_allclose(other.record["lens"][name], values, atol=1e-4)
        for name in ("residual", "first"):
            np.testing.assert_allclose(other.record[name], one.record[name], atol=1e-4)
    over = np.moveaxis(np.asarray(one.record["lens"]["token"]), 1, 2)[~taken]
    assert (over == -1).all() and not np.moveaxis(np.asarray(one.record["residual"]), 1, 2)[~taken].any()


def test_an_edit_after_the_final_norm_is_read_by_all_layers(model: jaxsink.Model) -> None:
    louder = jaxsink.edit.scale(2.0, "final_norm")
    all_layers, last = (
        jaxsink.forward(model, TOKENS, MASK, edits=louder, record=which).record
        for which in (record.lens(2), record.lens(2).at([2]))
    )
    for name, values in last.items():
        np.testing.assert_allclose(values[0], all_layers[name][2], atol=1e-4)
    plain = jaxsink.forward(model, TOKENS, MASK, record=record.lens(2)).record
    assert (np.asarray(all_layers["entropy"])[:, MASK] < np.asarray(plain["entropy"])[:, MASK]).all()


def test_two_recorders_may_read_one_tuned_lens(model: jaxsink.Model, tmp_path: Any) -> None:
    layers, width = model.config.layers, model.config.width
    save_lens(record.TunedLens(jnp.zeros((layers, width, width)), jnp.zeros((layers, width))), tmp_path / "lens")
    wanted = {"best": record.lens(1, tuned=tmp_path / "lens"), "all": record.lens_logits(tuned=tmp_path / "lens")}
    seen = jaxsink.forward(model, TOKENS, MASK, record=wanted).record
    best = np.asarray(seen["all"]).argmax(axis=-1)
    np.testing.assert_array_equal(best[:, MASK], np.asarray(seen["best"]["token"])[:, MASK, 0])
