"""Eight devices, however they are used, give what one device gives; batches need not divide."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively

import jaxsink
from jaxsink import JaxsinkError, parallel
from jaxsink.parallel.pmap import PmapProgram
from jaxsink.recording.attention import last_row, received
from jaxsink.recording.reductions import top
from jaxsink.sampling import execution as spread
from jaxsink.sampling.run import Carry
from jaxsink.sinks import MaskSinks, Threshold, TopK, detect, track

SAMPLERS = {
    "llada": jaxsink.LLaDASampler(8, 8, 4, temperature=0.7),
    "dream": jaxsink.DreamSampler(8, 8, alg="entropy", temperature=0.3),
    "llama3.1": jaxsink.ARSampler(8, temperature=0.8),
    "fast_dllm": jaxsink.FastDLLMv2Sampler(8, 4, 2, threshold=0.1, use_block_cache=True, stop_at_eos=False),
    "bd3lm": jaxsink.AncestralSampler(8, top_p=0.9),
    "gidd": jaxsink.GIDDSampler(8, 8),
    "nemotron": jaxsink.NemotronSampler(8, 4, temperature=0.7),
    "llada2": jaxsink.LLaDA2Sampler(8, 4, threshold=0.2, editing_threshold=0.1, max_post_steps=2),
}
OTHERS = {  # with one layout of each kind
    "a2d": jaxsink.MDLMSampler(8, 6, 4),
    "a2d, block by block": jaxsink.BD3LMSampler(8, 6, 4, temperature=0.7),
    "nemotron, speculation": jaxsink.SpeculativeSampler(8, 4),
    "sdar_moe": jaxsink.SDARSampler(8, threshold=0.1),
}
BATCH = 5
pytestmark = pytest.mark.usefixtures("quick_compilation")


def prompts(family: str) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(4, 70, size).tolist() for size in (4, 7, 5, 7, 3)[:BATCH]]


def generated(family: str, model: jaxsink.Model, **options):
    recorder = last_row() if family == "llama3.1" else received()
    return jaxsink.generate(
        model,
        prompts(family),
        (SAMPLERS | OTHERS)[family],
        record={"all": recorder, "top": recorder.then(top(2))},
        intervene=MaskSinks(1),
        seed=list(range(BATCH)),
        **options,
    )


@pytest.fixture(scope="module", params=list(SAMPLERS))
def alone(request):
    model = lively(FAMILIES[request.param], size=0.12)
    return request.param, model, generated(request.param, model)


def assert_same(out, expected) -> None:
    np.testing.assert_array_equal(out.tokens, expected.tokens)
    np.testing.assert_array_equal(out.committed_at, expected.committed_at)
    np.testing.assert_array_equal(out.steps, expected.steps)
    np.testing.assert_array_equal(out.mask, expected.mask)
    assert (out.commits is None) == (expected.commits is None)
    if out.commits is not None:
        np.testing.assert_array_equal(out.commits, expected.commits)
        assert (out.times_committed() > 1).any()
    scores, wanted = np.asarray(out.record["all"]), np.asarray(expected.record["all"])
    np.testing.assert_allclose(scores, wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(out.record["top"]["position"], expected.record["top"]["position"])
    rule = Threshold(1.0)
    one, other = (track(x.record["all"], rule, x.real_at(), x.recorded_of()) for x in (out, expected))
    for name in ("sinks", "position", "births", "deaths", "jumps", "longest", "kind"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.slow
@pytest.mark.parametrize("count", [8, 2])
def test_pmap(alone, count: int) -> None:
    family, model, expected = alone
    assert_same(generated(family, model, devices=jax.devices()[:count]), expected)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 8), (2, 4), (8, 1)])
def test_mesh(alone, shape: tuple[int, int]) -> None:
    family, model, expected = alone
    sharded = parallel.shard(model, parallel.make_mesh(*shape))
    assert parallel.mesh_of(sharded) is not None
    assert_same(generated(family, sharded), expected)


@pytest.mark.slow
@pytest.mark.parametrize("family", OTHERS)
def test_other_samplers(family: str) -> None:
    # At 0.12 the largest logits of speculation round by 3e-6 on a mesh, and by 2.6e-6 where only the batch is cut.
    size = 0.1 if family == "nemotron, speculation" else 0.12
    model = lively(FAMILIES[family.partition(",")[0]], size=size)
    expected = generated(family, model)
    assert_same(generated(family, model, devices=jax.devices()[:2]), expected)
    assert_same(generated(family, parallel.shard(model, parallel.make_mesh(2, 4))), expected)


@pytest.mark.slow
def test_streaming_over_devices(alone) -> None:
    family, model, expected = alone
    seen = []

    def listen(step: int, tokens: np.ndarray, committed_at: np.ndarray, record: dict) -> None:
        seen.append((tokens, committed_at, record["all"]))

    out = generated(family, model, devices=jax.devices()[:4], stream=4, listener=listen)
    assert_same(out, expected)
    np.testing.assert_array_equal(seen[-1][0], expected.tokens)
    np.testing.assert_array_equal(seen[-1][1], expected.committed_at)
    streamed, whole = np.concatenate([record for _, _, record in seen]), np.asarray(out.record["all"])
    np.testing.assert_array_equal(streamed[: len(whole)], whole[: len(streamed)])
    assert len(streamed) >= np.asarray(out.steps).max()  # all that there was; a run may end before its last chunk


def test_rows_lie_along_the_data_axis() -> None:
    """The mesh really cuts the batch and the weights, and the compiled loop holds no whole batch."""
    mesh = parallel.make_mesh(4, 2)
    model = parallel.shard(lively(FAMILIES["llada"]), mesh)
    ids = np.random.default_rng(1).integers(4, 70, (8, 5))
    out = jaxsink.generate(model, ids, jaxsink.LLaDASampler(4, 4, 4), record=received())
    assert out.tokens.sharding.shard_shape(out.tokens.shape) == (2, 9)
    assert out.record.sharding.shard_shape(out.record.shape)[2] == 2
    weight = model.layers.attention.q.weight[...]
    assert weight.sharding.shard_shape(weight.shape)[1] == weight.shape[1] // 2


def test_heads_that_do_not_divide_lie_in_fewer_parts() -> None:
    mesh, config = parallel.make_mesh(1, 8), jaxsink.preset("dream-7b-base")
    for name, parts in (("attention.q.weight", 4), ("attention.k.weight", 4), ("mlp.up.weight", 8)):
        sharding = parallel.sharding_of(f"layers.{name}", 3, config, mesh)
        assert sharding.shard_shape((28, 3584, 3584)) == (28, 3584 // parts, 3584)


@pytest.mark.parametrize(("batch", "rule"), [(1, Threshold(1.0)), (3, TopK(2)), (11, Threshold(1.0))])
def test_detect_and_track_over_devices(rule, batch: int) -> None:
    rng = np.random.default_rng(batch)
    scores = rng.gamma(0.3, 3.0, (4, 2, batch, 3, 9)).astype(np.float32)
    mask = rng.random((batch, 9)) < 0.8
    steps = rng.integers(1, 5, batch)
    np.testing.assert_array_equal(detect(scores, rule, mask, jax.devices()), detect(scores, rule, mask))
    np.testing.assert_array_equal(detect(scores, rule, None, jax.devices()), detect(scores, rule))
    dealt, alone = track(scores, rule, mask, steps, jax.devices()), track(scores, rule, mask, steps)
    for name, one, other in zip(alone._fields, dealt, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=name)


def test_mistakes_are_named() -> None:
    model = lively(FAMILIES["llada"])
    with pytest.raises(JaxsinkError, match="at least one device"):
        generated("llada", model, devices=[])
    with pytest.raises(JaxsinkError, match="none twice"):
        generated("llada", model, devices=[jax.devices()[0]] * 2)
    with pytest.raises(JaxsinkError, match="lies on a mesh"):
        generated("llada", parallel.shard(model, parallel.make_mesh(1, 8)), devices=jax.devices())
    with pytest.raises(JaxsinkError, match=r"\[T,L,B,H,S\]"):
        track(np.ones((3, 4)), devices=jax.devices())
    with pytest.raises(JaxsinkError, match=r"\[..., B, H, S\]"):
        detect(np.ones((3, 4)), TopK(1), devices=jax.devices())
    with pytest.raises(JaxsinkError, match="batch as its first axis"):
        jaxsink.generate(
            model, prompts("llada"), SAMPLERS["llada"], record=lambda tap: tap.probs.max(), devices=jax.devices()[:2]
        )


def test_weights_are_copied_to_the_devices_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every chunk of steps of every call finds them there; pmap would copy them for each."""
    model, devices, found = lively(FAMILIES["llada"], size=0.12), jax.devices()[:4], []
    call = PmapProgram.__call__

    def watched(self, model, carry, *rest, **options):
        if isinstance(model, jaxsink.Model) and isinstance(carry, Carry):
            shards = [shard for leaf in jax.tree.leaves(model) for shard in leaf.addressable_shards]
            found.append([(shard.device, shard.data.unsafe_buffer_pointer()) for shard in shards])
        return call(self, model, carry, *rest, **options)

    monkeypatch.setattr(PmapProgram, "__call__", watched)
    there = spread.replicate(model, devices)
    for _ in range(2):
        generated("llada", there, devices=devices, stream=4)
    assert len(found) >= 4 and all(places == found[0] for places in found)
    assert {device for device, _ in found[0]} == set(devices)
    generated("llada", model, devices=devices, stream=4)
    assert {device for device, _ in found[-1]} == set(devices)
