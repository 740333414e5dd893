"""What `generate` records is what the model used: every step again from scratch, reductions and interventions by NumPy."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.reference.samplers import slow_cached
from support.reference.transformer import Slowly
from support.sampling import PROMPTS, DropLargest, model_of

import jaxsink
from jaxsink import ARSampler, DreamSampler, DropPositions, JaxsinkError, LLaDASampler, SDARSampler
from jaxsink.nn.batch import MASKED, PROMPT, UNMASKED
from jaxsink.recording import recorders as record
from jaxsink.recording import reductions as reduce
from jaxsink.sampling.interventions import needs
from jaxsink.sinks import Threshold, detect

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROWS = [PROMPTS[0][:3].tolist(), PROMPTS[1].tolist()]  # the first row is padded on the left
SAMPLERS = {
    "llada": LLaDASampler(8, 6, 4),
    "mmada": LLaDASampler(8, 8, 8, cfg_scale=0.5, threshold=0.2),
    "dream": DreamSampler(8, 5, "entropy", temperature=0.5),
    "sdar": SDARSampler(8, threshold=0.3),
    "llama3.1": ARSampler(7, stop_at_eos=False),
}


def largest_anywhere(tap: record.Tap) -> Any:
    return tap.probs.max(axis=(2, 3))


EVERYTHING = {
    "maps": record.maps(),
    "received": record.received(),
    "kinds": record.received_by_query(),
    "last": record.last_row(),
    "entropy": record.row_entropy(),
    "values": record.value_norm(),
    "hidden": record.hidden(),
    "some": record.maps(layers=[2, 0], heads=[4, 1]),
    "middle": record.received().at([1]),
    "mine": largest_anywhere,
}
CORE = {key: EVERYTHING[key] for key in ("maps", "received")}
REDUCED = {
    "top": record.received().then(reduce.top(4)),
    "counts": record.received().then(reduce.sink_counts((0.2, 1.0, 3.0))),
    "histogram": record.received().then(reduce.histogram((0.0, 0.5, 1.0, 2.0))),
    "heads": record.received().then(reduce.head_mean()),
    "by_kind": record.received().then(reduce.sum_by_kind()),
    "twice": record.received().at([2, 1]).then(reduce.head_mean()).then(lambda value, tap: value.max(axis=-1)),
}


def largest(received: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The same in NumPy: bool[L,B,H,S]."""
    score = np.where(mask[None, :, None, :], received, -1)
    return np.arange(score.shape[-1]) == score.argmax(-1)[..., None]


@cache
def run(family: str, intervene: Any = None) -> jaxsink.Generation:
    wanted = CORE
    if intervene is None and family in ("llada", "llama3.1"):
        wanted = EVERYTHING
    if intervene is None and family in ("sdar", "llama3.1"):
        wanted = wanted | REDUCED
    return jaxsink.generate(model_of(family), ROWS, SAMPLERS[family], record=wanted, intervene=intervene)


def again(family: str, out: jaxsink.Generation, wanted: Any, drops: Any = None) -> Any:
    """What `forward` records on the canvas of every step, [T,L,B,...]; all steps in one batch."""
    model, there = model_of(family), out.real_at()
    steps, batch = there.shape[:2]
    canvases = np.concatenate([out.canvas(step, 80) for step in range(steps)])
    given = np.tile((np.asarray(out.committed_at) < 0) & np.asarray(out.mask), (steps, 1))
    drop = None if drops is None else np.concatenate(list(drops), axis=1)
    seen = jaxsink.forward(model, canvases, np.concatenate(there), drop=drop, record=wanted, prompt=given).record
    return jax.tree.map(
        lambda x: np.moveaxis(np.asarray(x).reshape(x.shape[0], steps, batch, *x.shape[2:]), 1, 0), seen
    )


def near(ours: Any, expected: Any, out: jaxsink.Generation, atol: float = 1e-5) -> None:
    """Equal at the steps that each row took, and zero after them. Leaves are [T,L,B,...]."""
    steps = np.asarray(out.steps)

    def compare(x: Any, y: Any) -> None:
        assert x.shape == y.shape
        for row, count in enumerate(steps):
            np.testing.assert_allclose(x[:count, :, row], y[:count, :, row], atol=atol, rtol=1e-5)
            assert count == len(x) or (np.asarray(x)[count:, :, row] == 0).all()

    assert jax.tree.structure(ours) == jax.tree.structure(expected)
    jax.tree.map(compare, ours, expected)


@pytest.mark.parametrize("family", ["llada", "mmada", "dream", "sdar"])
def test_every_step_is_what_a_forward_pass_on_its_canvas_records(family: str) -> None:
    out = run(family)
    wanted = EVERYTHING if family == "llada" else CORE
    ours = {key: value for key, value in out.record.items() if key in wanted}
    steps, total = np.asarray(out.steps), len(out.recorded_steps)
    assert steps.max() <= total
    np.testing.assert_allclose(ours["maps"].sum(axis=4), ours["received"], atol=1e-6, rtol=1e-6)
    near(ours, again(family, out, wanted), out)
    if family == "llada":
        np.testing.assert_allclose(ours["some"], np.asarray(ours["maps"])[:, [2, 0]][:, :, :, [4, 1]], atol=1e-6)
        np.testing.assert_allclose(ours["middle"], ours["received"][:, 1:2], atol=1e-5)
    if family in ("mmada", "sdar"):
        assert (steps < total).any()  # some row was done early: zeros from there on, checked by `near`


def test_an_autoregressive_step_records_the_row_of_the_last_token() -> None:
    out = run("llama3.1")
    mask, length = np.asarray(out.mask), out.prompt_length
    whole = jaxsink.forward(
        model_of("llama3.1"), out.tokens, mask, record={"maps": record.maps(), "v": record.value_norm()}
    )
    maps = np.asarray(whole.record["maps"])
    for step in range(7):
        row = maps[:, :, :, length - 1 + step]
        for name in ("received", "last"):
            np.testing.assert_allclose(out.record[name][step], row, atol=1e-5)
        np.testing.assert_allclose(out.record["maps"][step][:, :, :, 0], row, atol=1e-5)
        np.testing.assert_allclose(out.record["mine"][step], row.max(-1), atol=1e-5)
        np.testing.assert_allclose(out.record["middle"][step], row[1:2], atol=1e-5)
        so_far = (np.arange(mask.shape[1]) < length + step) & mask
        norms = np.where(so_far[None, :, None], np.asarray(whole.record["v"]), 0)
        np.testing.assert_allclose(out.record["values"][step], norms, atol=1e-5)


def test_the_whole_causal_map_on_request() -> None:
    """Column sums of all rows so far, prompt included; what does not add up stays that of the last row."""
    wanted = {key: EVERYTHING[key] for key in ("maps", "received", "kinds", "last", "entropy", "middle")} | REDUCED
    sampler = ARSampler(7, stop_at_eos=False, whole_map=True)
    out = jaxsink.generate(model_of("llama3.1"), ROWS, sampler, record=wanted)
    plain, mask, length = run("llama3.1"), np.asarray(out.mask), out.prompt_length
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    maps = np.asarray(jaxsink.forward(model_of("llama3.1"), out.tokens, mask, record=record.maps()).record)
    prompt = np.arange(mask.shape[1]) < length
    for step in range(7):
        rows = maps[:, :, :, : length + step]
        np.testing.assert_allclose(out.record["received"][step], rows.sum(3), atol=1e-5)
        np.testing.assert_allclose(out.record["middle"][step], rows[1:2].sum(3), atol=1e-5)
        of_prompt = (maps * prompt[:, None])[:, :, :, : length + step].sum(3)
        np.testing.assert_allclose(out.record["kinds"]["prompt"][step], of_prompt, atol=1e-5)
    for name in ("last", "entropy", "maps"):
        np.testing.assert_allclose(out.record[name], plain.record[name], atol=1e-6)
    so_far = [(np.arange(mask.shape[1]) < length + step) & mask for step in range(7)]
    kinds = np.broadcast_to(np.where(prompt, PROMPT, UNMASKED), (7, *mask.shape))
    reductions_agree(out.record, np.asarray(out.record["received"]), np.stack(so_far), kinds)


def reductions_agree(records: Any, received: np.ndarray, real: np.ndarray, kinds: np.ndarray) -> None:
    """Every entry of REDUCED from received f32[T,L,B,H,S], real and kinds [T,B,S]."""
    there = np.broadcast_to(real[:, None, :, None], received.shape)
    order = np.argsort(np.where(there, -received, np.inf), axis=-1, kind="stable")[..., :4]
    score = np.take_along_axis(np.where(there, received, 0), order, -1)
    found = np.take_along_axis(there, order, -1)
    np.testing.assert_allclose(records["top"]["score"], score, atol=1e-5)
    np.testing.assert_array_equal(records["top"]["position"], np.where(found, order, 0))
    count = there.sum(-1, keepdims=True)
    above = received - (received.sum(-1, keepdims=True) - received) / np.maximum(count - 1, 1)
    counts = np.stack([((above > eps) & there).sum(-1) for eps in (0.2, 1.0, 3.0)], -1)
    np.testing.assert_array_equal(records["counts"], counts)
    edges = [0.0, 0.5, 1.0, 2.0, np.inf]
    bins = [((received >= low) & (received < high) & there).sum(-1) for low, high in itertools.pairwise(edges)]
    np.testing.assert_array_equal(records["histogram"], np.stack(bins, -1))
    np.testing.assert_allclose(records["heads"], received.mean(3), atol=1e-5)
    np.testing.assert_allclose(records["twice"], received[:, [2, 1]].mean(3).max(-1), atol=1e-5)
    for number, name in enumerate(record.QUERY_KINDS):
        share = np.where((kinds == number)[:, None, :, None], received, 0).sum(-1)
        np.testing.assert_allclose(records["by_kind"][name], share, atol=1e-5)


@pytest.mark.parametrize("family", ["sdar", "llama3.1"])
def test_reductions_in_the_loop(family: str) -> None:
    out = run(family)
    at, steps = np.asarray(out.committed_at), np.arange(len(out.recorded_steps))[:, None, None]
    real = out.real_at() & (steps < np.asarray(out.steps)[:, None])
    prompt = np.broadcast_to(np.arange(at.shape[1]) < out.prompt_length, real.shape)
    if family == "llama3.1":
        kinds = np.where(prompt, PROMPT, UNMASKED)
    else:
        kinds = np.where(at >= steps, MASKED, np.where(prompt, PROMPT, UNMASKED))
    reductions_agree(out.record, np.asarray(out.record["received"]), real, kinds)


def test_top_names_an_impossible_k() -> None:
    with pytest.raises(JaxsinkError, match="k must lie"):
        jaxsink.forward(model_of("llada"), PROMPTS, record=record.received().then(reduce.top(7)))


def test_every_and_stream_change_nothing() -> None:
    """Every second step is the same as each second of all steps; streamed chunks are the same bits as one run."""
    model, sampler, calls = model_of("sdar"), SDARSampler(8, threshold=0.08), []
    plain = jaxsink.generate(model, ROWS, sampler, record=record.received())
    sparse = jaxsink.generate(model, ROWS, sampler, record=record.received(), every=2)
    total = len(plain.recorded_steps)
    assert sparse.recorded_steps.tolist() == list(range(0, total, 2))
    np.testing.assert_array_equal(sparse.tokens, plain.tokens)
    np.testing.assert_allclose(sparse.record, plain.record[::2], atol=1e-6)
    streamed = jaxsink.generate(
        model, ROWS, sampler, record=record.received(), stream=3, listener=lambda *state: calls.append(state)
    )
    assert isinstance(streamed.record, np.ndarray)
    for ours, theirs in (
        (streamed.record, plain.record),
        (streamed.tokens, plain.tokens),
        (streamed.steps, plain.steps),
    ):
        np.testing.assert_array_equal(ours, theirs)
    last = int(np.asarray(plain.steps).max())
    assert 3 < last < 6 < total  # done in the second chunk, so the others do not run
    assert [done for done, _, _ in calls] == [3, last]
    for done, tokens, at in calls:
        assert ((tokens == 80) == (np.asarray(plain.committed_at) >= done)).all()
        assert (at < done).all()


def test_a_listener_that_would_never_be_called_is_refused() -> None:
    with pytest.raises(JaxsinkError, match="a listener is called after every `stream` steps"):
        jaxsink.generate(model_of("llada"), ROWS, LLaDASampler(8, 8, 8), listener=lambda *_: None)


def test_a_listener_that_asks_gets_the_record_of_its_steps() -> None:
    chunks = []

    def listen(step: int, tokens: object, committed_at: object, record: dict) -> None:
        chunks.append(record["mine"])

    mine = {"mine": record.received().then(reduce.sink_share(0.2)), "all": record.received()}
    out = jaxsink.generate(model_of("llada"), ROWS, LLaDASampler(8, 8, 8), record=mine, stream=2, listener=listen)
    assert len(chunks) == 4 and all(isinstance(chunk, np.ndarray) and len(chunk) == 2 for chunk in chunks)
    np.testing.assert_array_equal(np.concatenate(chunks), out.record["mine"])
    sinks = np.asarray(detect(out.record["all"], Threshold(0.2), out.mask))
    np.testing.assert_allclose(out.record["mine"], sinks.mean(axis=3), atol=1e-6)
    assert 0 < sinks.mean() < 1


def test_sink_shares_do_not_depend_on_how_many_queries_there_are() -> None:
    """An autoregressive model's step has one query, whose attention adds up to 1."""
    both = {"share": record.received().then(reduce.sink_share(0.2)), "all": record.received()}
    out = jaxsink.generate(model_of("llama3.1"), ROWS, ARSampler(4, stop_at_eos=False), record=both)
    scores, real = np.asarray(out.record["all"])[-1], out.real_at()[-1]
    scores = scores * real.sum(axis=-1)[:, None, None] / scores.sum(axis=-1, keepdims=True)
    sinks = np.asarray(detect(scores, Threshold(0.2), real))
    np.testing.assert_allclose(np.asarray(out.record["share"])[-1], sinks.mean(axis=2), atol=1e-6)
    assert sinks.any()


def test_streamed_autoregressive_records() -> None:
    plain = run("llama3.1")
    out = jaxsink.generate(
        model_of("llama3.1"), ROWS, SAMPLERS["llama3.1"], record=record.received(), every=2, stream=4
    )
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    np.testing.assert_allclose(out.record, np.asarray(plain.record["received"])[::2], atol=1e-6)


@pytest.mark.parametrize("family", ["llada", "dream", "sdar"])
def test_an_intervention_hides_what_the_last_step_names(family: str) -> None:
    """Every step again, with the drop that NumPy makes of the record of the step before."""
    out, free = run(family, DropLargest()), run(family)
    received, there = np.asarray(out.record["received"]), out.real_at()
    found = map(largest, received[:-1], there)
    drops = np.stack([np.zeros_like(received[0], bool), *found])
    expected = again(family, out, {"maps": record.maps(), "received": record.received()}, drops)
    near(out.record, expected, out)
    taken = np.arange(len(drops))[:, None] < np.asarray(out.steps)
    dropped = drops & taken[:, None, :, None, None]
    assert dropped[1].sum() == dropped.shape[1] * dropped.shape[2] * dropped.shape[3]
    assert (received[dropped] == 0).all()
    np.testing.assert_allclose(received[0], free.record["received"][0], atol=1e-6)  # nothing is hidden at step 0
    assert (np.asarray(out.tokens) != np.asarray(free.tokens)).any()


def test_ranking_on_clean_statistics() -> None:
    """The drop follows what a pass without any hidden key would have recorded on the canvas before."""
    out = run("llada", DropLargest("clean"))
    mask = np.asarray(out.mask)
    clean = again("llada", out, record.received())
    drops = np.stack([np.zeros_like(clean[0], bool), *[largest(r, mask) for r in clean[:-1]]])
    near(out.record, again("llada", out, {"maps": record.maps(), "received": record.received()}, drops), out)
    masked = np.stack([largest(r, mask) for r in np.asarray(out.record["received"])[:-1]])
    assert (drops[1:] != masked).any()


def hide_second(previous: Any) -> Any:
    """A user's own function: the second real token, in layers 0 and 2, heads 1 and 3, from step 2 on."""
    second = (jnp.cumsum(previous.mask, axis=1) == 2) & previous.mask
    layers, _, heads, _ = previous.drop.shape
    chosen = jnp.isin(jnp.arange(layers), jnp.array([0, 2]))[:, None, None, None]
    chosen = chosen & jnp.isin(jnp.arange(heads), jnp.array([1, 3]))[None, None, :, None]
    return chosen & second[None, :, None, :] & (previous.step >= 2)


def hide_unseen(previous: Any) -> Any:
    assert previous.record == ()
    return jnp.zeros(previous.drop.shape, bool)


hide_unseen.needs = ()


def test_fixed_positions_and_a_function_of_the_user_are_alike() -> None:
    ready = run("llada", DropPositions((1,), layers=(0, 2), heads=(1, 3), spare=2))
    own = run("llada", hide_second)
    np.testing.assert_array_equal(ready.tokens, own.tokens)
    jax.tree.map(np.testing.assert_array_equal, ready.record, own.record)
    received = np.asarray(ready.record["received"])
    where = [3 + 1, 1]  # the second real token of each row
    for row, position in enumerate(where):
        column = received[:, :, row, :, position]
        hidden = np.zeros(column.shape, bool)
        hidden[2:, ::2, 1:4:2] = True
        assert (column[hidden] == 0).all()
        assert (column[~hidden] > 0).all()


@pytest.mark.parametrize("rank_on", ["masked", "clean"])
def test_an_intervention_on_an_autoregressive_model(rank_on: str) -> None:
    """Row by row in NumPy: the prompt runs whole, then every token without the key that the step before names."""
    out = run("llama3.1", DropLargest(rank_on))
    model = model_of("llama3.1")
    for row, prompt in enumerate(ROWS):
        ids = np.asarray(out.tokens)[row, np.asarray(out.mask)[row]].tolist()
        length, first = len(ids), out.tokens.shape[1] - len(ids)
        slow, clean = Slowly(model, length), Slowly(model, length)
        for each in (slow, clean):
            each.run(ids, 0, len(prompt) - 1)
        drop = np.zeros((3, 6, length), bool)
        for step in range(7):
            at = len(prompt) - 1 + step
            logits, maps = slow.run(ids, at, at + 1, drop)
            ours = np.asarray(out.record["received"])[step, :, row, :, first:]
            np.testing.assert_allclose(ours, maps[:, :, 0], atol=2e-5)
            assert (ours[drop] == 0).all()
            assert ids[at + 1] == logits[0].argmax()
            seen = clean.run(ids, at, at + 1)[1] if rank_on == "clean" else maps
            drop = np.arange(length) == seen[:, :, 0].argmax(-1)[..., None]
    assert (np.asarray(out.tokens) != np.asarray(run("llama3.1").tokens)).any()


def test_fixed_positions_on_an_autoregressive_model() -> None:
    """The same as a pass over the whole text in which the rows of the response do not see the position."""
    out = run("llama3.1", DropPositions((0,)))
    mask, length = np.asarray(out.mask), out.prompt_length
    visible = np.ones((2, mask.shape[1], mask.shape[1]), bool)
    for row in range(2):
        visible[row, length:, np.argmax(mask[row])] = False
    maps = jaxsink.forward(model_of("llama3.1"), out.tokens, mask, visible, record=record.maps()).record
    for step in range(7):
        np.testing.assert_allclose(out.record["received"][step], maps[:, :, :, length - 1 + step], atol=1e-5)


CACHED = {
    "llada": ("llada", LLaDASampler(12, 6, 4)),
    "dream": ("dream", DreamSampler(12, 6, "maskgit_plus", block_length=4)),
    "dream, quota": ("dream", LLaDASampler(12, 6, 4)),
}


@pytest.mark.parametrize("cache_", ["prefix", "dual"])
@pytest.mark.parametrize("name", CACHED)
def test_cached_decoding_is_that_of_fast_dllm(name: str, cache_: str) -> None:
    """Tokens and statistics; the first step of a block runs, and records, everything."""
    family, plain = CACHED[name]
    model, sampler = model_of(family), replace(plain, cache=cache_)
    wanted = {"raw": record.received(), "top": record.received().then(reduce.top(3)), "norm": record.value_norm()}
    out = jaxsink.generate(model, PROMPTS, sampler, record=wanted)
    assert out.approximate == cache_
    raw = np.asarray(out.record["raw"])
    for row, prompt in enumerate(PROMPTS):
        canvas, received = slow_cached(model, prompt.tolist(), sampler)
        assert np.asarray(out.tokens)[row].tolist() == canvas.tokens
        assert np.asarray(out.committed_at)[row].tolist() == canvas.at
        np.testing.assert_allclose(raw[:, :, row], received, atol=2e-5)
    before = int(family == "dream")  # the token that predicts the block's first one runs along
    ran = [18, 12 + before, 18, 8 + before, 18, 4 + before] if cache_ == "prefix" else [18, 4 + before] * 3
    np.testing.assert_allclose(raw.sum(-1), np.broadcast_to(np.reshape(ran, (6, 1, 1, 1)), raw.shape[:-1]), atol=1e-4)
    np.testing.assert_array_equal(out.record["top"]["score"], -np.sort(-raw, axis=-1)[..., :3])
    exact = jaxsink.generate(model, PROMPTS, plain, record=record.received())
    assert exact.approximate is None
    for first in range(0, 6, 2):
        if (exact.canvas(first, 80) == out.canvas(first, 80)).all():
            np.testing.assert_allclose(raw[first], exact.record[first], atol=1e-5)
    with pytest.raises(JaxsinkError, match="summed over queries"):
        jaxsink.generate(model, PROMPTS, sampler, record=record.maps())


def test_records_of_the_last_query_need_it_in_every_step() -> None:
    model, last = model_of("llada"), record.last_row()
    with pytest.raises(JaxsinkError, match="without the last query"):
        jaxsink.generate(model, PROMPTS, LLaDASampler(12, 6, 4, cache="dual"), record=last)
    for sampler in (LLaDASampler(12, 6, 4, cache="prefix"), LLaDASampler(12, 6, 12, cache="dual")):
        rows = np.asarray(jaxsink.generate(model, PROMPTS, sampler, record=last).record)
        np.testing.assert_allclose(rows.sum(axis=-1), 1.0, atol=1e-5)


def test_an_intervention_may_need_nothing() -> None:
    assert needs(DropPositions((0,))) == needs(hide_unseen) == ()
    assert needs(hide_second) == record.received()
    out = jaxsink.generate(model_of("llada"), ROWS, LLaDASampler(4, 4, 4), intervene=hide_unseen)
    np.testing.assert_array_equal(out.tokens, jaxsink.generate(model_of("llada"), ROWS, LLaDASampler(4, 4, 4)).tokens)


@pytest.mark.parametrize("cache_", ["prefix", "dual"])
@pytest.mark.parametrize(
    ("family", "sampler"), [("llada", LLaDASampler(8, 2, 4)), ("dream", DreamSampler(8, 2, block_length=4))]
)
def test_cached_decoding_with_one_step_per_block_is_exact(family: str, sampler: Any, cache_: str) -> None:
    model = model_of(family)
    exact = jaxsink.generate(model, ROWS, sampler, record=record.received())
    cached = jaxsink.generate(model, ROWS, replace(sampler, cache=cache_), record=record.received())
    np.testing.assert_array_equal(cached.tokens, exact.tokens)
    np.testing.assert_allclose(cached.record, exact.record, atol=1e-5)


def test_cached_decoding_with_a_threshold_and_an_intervention_ends() -> None:
    """Rows share the block, the faster one waits; hidden keys receive nothing in partial passes either."""
    model, sampler = model_of("llada"), LLaDASampler(8, 8, 4, threshold=0.15, cache="prefix")
    out = jaxsink.generate(model, ROWS, sampler, record=record.received(), intervene=DropPositions((1,)))
    at = np.asarray(out.committed_at)[:, 6:]
    assert not (np.asarray(out.tokens) == 80).any()
    assert at[:, :4].max() < at[:, 4:].min()
    received = np.asarray(out.record)
    for row, position in enumerate((4, 1)):
        column = received[:, :, row, :, position]
        assert (column[0] > 0).all()
        assert (column[1:] == 0).all()
