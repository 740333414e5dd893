"""The Pallas kernel, in interpret mode, against float64 NumPy and the other backends."""

from __future__ import annotations

import dataclasses
import math
import re
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh
from support.configs import FAMILIES
from support.models import lively, sequences

import jaxsink
from jaxsink import parallel
from jaxsink.nn import attention
from jaxsink.nn.batch import Execution, Keys
from jaxsink.nn.context import LayerContext, Queries, Visibility
from jaxsink.nn.kernels import backend, tiles
from jaxsink.nn.taps import ExtraSink
from jaxsink.recording import recorders as record

pytestmark = pytest.mark.usefixtures("quick_compilation")


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer, drawn at random."""

    batch: int = 2
    queries: int = 20
    keys: int = 20
    kv_heads: int = 2
    group: int = 2
    size: int = 16
    pattern: str = "all"  # or "causal", "window", "blocks"
    padding: str = "left"  # or "none", "gaps", "row": one row of nothing but padding
    drop: str = "none"  # or "some", "most", "every", "factors"
    seed: int = 0
    dtype: str = "float32"


def layer(case: Case) -> record.Tap:
    rng = np.random.default_rng(case.seed)
    b, keys, heads = case.batch, case.keys, case.kv_heads * case.group

    def normal(*shape: int) -> jnp.ndarray:
        return jnp.asarray(rng.standard_normal(shape), case.dtype)

    mask = np.ones((b, keys), bool)
    if case.padding == "left":
        mask[0, : keys // 3] = False
    if case.padding == "gaps":
        mask = rng.random((b, keys)) < 0.7
        mask[:, -1] = True
    if case.padding == "row":
        mask[-1] = False
    drop: Any = None
    if case.drop != "none":
        drop = rng.random((b, heads, keys)) < {"some": 0.2, "most": 0.9, "every": 2.0, "factors": 0.3}[case.drop]
    if case.drop == "factors":
        drop = np.where(drop, 0.0, rng.uniform(0.1, 2.0, drop.shape)).astype(np.float32)
    start = keys - case.queries
    position = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    see = Visibility(
        jnp.asarray(mask),
        jnp.asarray(position),
        causal=case.pattern in ("causal", "window"),
        block=4 if case.pattern == "blocks" else None,
        window=5 if case.pattern == "window" else None,
    )
    kind = jnp.asarray(rng.integers(0, 3, (b, keys)))
    counted = jnp.asarray(mask & (rng.random((b, 1)) < 0.8))
    context = LayerContext(
        Keys(counted, kind, kind),
        Queries(
            counted[:, start:], start + jnp.arange(case.queries), kind[:, start:], jnp.asarray(position[:, start:])
        ),
        see,
        layer=jnp.array(0),
        drop=None if drop is None else jnp.asarray(drop),
    )
    return record.Tap(
        context,
        q=normal(b, case.queries, heads, case.size),
        k=normal(b, keys, case.kv_heads, case.size),
        v=normal(b, keys, case.kv_heads, case.size),
        hidden=normal(b, case.queries, 3),
    )


def in_float64(x: record.Tap) -> tuple[np.ndarray, np.ndarray]:
    """(outputs [B,Q,H,D], probabilities [B,H,Q,S]); rows that see no key are zero."""
    q, k, v = (np.asarray(y, np.float64).transpose(0, 2, 1, 3) for y in (x.q, x.k, x.v))
    k, v = (np.repeat(y, q.shape[1] // k.shape[1], axis=1) for y in (k, v))
    see, queries, drop = x.context.visibility, x.context.queries, x.context.drop
    distance = np.asarray(queries.position)[:, None] - np.arange(k.shape[2])
    seen = np.asarray(see.real)[:, None, None, :] & np.ones(distance.shape, bool)
    if see.causal:
        seen &= distance >= 0
    if see.window is not None and (see.use_window is None or bool(see.use_window)):
        seen &= distance < see.window
    if see.block is not None:
        of_key, of_query = (np.asarray(y) // see.block for y in (see.token_position, queries.token_position))
        seen &= (of_key[:, None, :] <= of_query[:, :, None])[:, None]
    factor = np.ones((q.shape[0], q.shape[1], k.shape[2]))
    if drop is not None:
        factor = np.where(drop, 0.0, 1.0) if drop.dtype == bool else np.asarray(drop, np.float64)
    weight = seen * factor[:, :, None, :]
    weight = np.where(weight.any(axis=-1, keepdims=True), weight, seen)  # no row goes blind
    scores = np.where(weight > 0, q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1]), -1e9)
    weight = weight * np.exp(scores - scores.max(axis=-1, keepdims=True))
    probs = weight / np.maximum(weight.sum(axis=-1, keepdims=True), 1e-300)
    return (probs @ v).transpose(0, 2, 1, 3), probs


def by_kind(x: record.Tap, probs: np.ndarray) -> np.ndarray:
    """[B,H,3,S]."""
    kind = np.where(x.query_mask, x.query_kind, -1)
    return np.stack([np.einsum("bq,bhqs->bhs", kind == n, probs) for n in range(3)], axis=2)


def check(case: Case) -> None:
    x = layer(case)
    out, probs = in_float64(x)
    expected = by_kind(x, probs)
    ours, columns = backend.mix_and_add_up(x, 3)
    assert columns is not None and columns.dtype == jnp.float32 and ours.dtype == x.q.dtype
    largest = np.maximum(expected.max(axis=(1, 2, 3), keepdims=True), 1e-30)
    assert (np.abs(columns - expected) / largest).max() <= 1e-6  # bfloat16 as well: sums stay in float32
    assert (np.asarray(columns)[expected == 0] == 0).all()
    ours = np.asarray(ours, np.float64)
    assert np.isfinite(ours).all()
    sees = probs.sum(axis=(1, 3)) > 0
    tolerance = 2e-6 if case.dtype == "float32" else 1e-2
    np.testing.assert_allclose(ours[sees], out[sees], atol=tolerance * np.abs(out).max(initial=1.0))


cases = st.builds(
    Case,
    batch=st.integers(1, 2),
    queries=st.integers(1, 40),
    keys=st.sampled_from([40, 128, 129]),
    kv_heads=st.integers(1, 2),
    group=st.sampled_from([1, 2, 7]),
    size=st.sampled_from([4, 64, 80, 96, 128, 256]),
    pattern=st.sampled_from(["all", "causal", "window", "blocks"]),
    padding=st.sampled_from(["none", "left", "gaps", "row"]),
    drop=st.sampled_from(["none", "some", "most", "every", "factors"]),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)


@settings(max_examples=8, deadline=None)
@given(case=cases)
def test_any_layer_against_float64(case: Case) -> None:
    check(case)


@pytest.mark.parametrize(
    ("pattern", "drop", "block"),
    [
        ("all", "most", 128),
        ("causal", "most", 32),
        ("causal", "factors", 128),
        ("window", "most", 32),
        ("blocks", "most", 128),
    ],
)
def test_several_tiles_against_float64(pattern: str, drop: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "PIECES", ((block, 128),))
    check(Case(batch=1, queries=290, keys=300, group=1, pattern=pattern, padding="gaps", drop=drop, seed=3))


def test_statistics_change_no_output_and_kinds_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "PIECES", ((128, 128),))
    x = layer(Case(queries=150, keys=150, pattern="causal"))
    (split, by), (plain, total), (alone, nothing) = (backend.mix_and_add_up(x, kinds) for kinds in (3, 1, 0))
    assert by is not None and total is not None and nothing is None
    np.testing.assert_array_equal(split, plain)
    np.testing.assert_array_equal(split, alone)
    np.testing.assert_allclose(by.sum(axis=2), total[:, :, 0], rtol=2e-6)


@pytest.mark.parametrize("on", [True, False])
def test_a_layer_may_leave_the_window_aside(on: bool) -> None:
    """Which layers use the window is not known when a scan over layers is compiled."""
    x = layer(Case(pattern="window", drop="most"))
    visibility = dataclasses.replace(x.context.visibility, use_window=jnp.array(on))
    x = dataclasses.replace(x, context=dataclasses.replace(x.context, visibility=visibility))
    probs = in_float64(x)[1]
    np.testing.assert_allclose(backend.mix_and_add_up(x, 3)[1], by_kind(x, probs), atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "batch", "queries"),
    [((2, 4), 4, 20), ((1, 8), 4, 19), ((1, 8), 3, 20), ((1, 8), 3, 19), ((2, 4), 3, 20)],
    ids=["heads and rows", "copies share rows", "copies share queries", "copies do the same", "rows do not divide"],
)
def test_on_a_mesh(shape: tuple[int, int], batch: int, queries: int) -> None:
    x = layer(Case(batch=batch, queries=queries, kv_heads=2, group=3, pattern="causal", drop="some"))
    alone, columns = backend.mix_and_add_up(x, 3)
    mesh = parallel.make_mesh(*shape)
    context = dataclasses.replace(x.context, execution=Execution("pallas", mesh))
    spread, spread_columns = jax.jit(lambda q: backend.mix_and_add_up(dataclasses.replace(x, q=q, context=context), 3))(
        x.q
    )
    np.testing.assert_allclose(spread, alone, atol=1e-6)
    np.testing.assert_allclose(spread_columns, columns, atol=1e-6 * float(columns.max()))


@pytest.mark.parametrize("family", ["mistral", "sdar", "dream", "gidd"])
def test_a_model_gives_the_same_on_the_kernel(family: str) -> None:
    config = FAMILIES[family]
    model = lively(config)
    tokens, mask = sequences(config)
    drop = np.random.default_rng(2).random((config.layers, 3, config.heads, 13)) < 0.4
    wanted = {"all": record.received(), "kinds": record.received_by_query(), "keys": record.key_norm()}
    ours, theirs = (
        jaxsink.forward(model, tokens, mask, drop=drop, record=wanted, backend=name) for name in ("pallas", "naive")
    )
    np.testing.assert_allclose(np.asarray(ours.logits)[mask], np.asarray(theirs.logits)[mask], atol=2e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours.record, theirs.record)


@pytest.mark.parametrize("family", ["sdar", "gpt2"])
def test_tokens_may_stand_in_any_order(family: str) -> None:
    """Sequences whose tokens are dealt out anew, with their positions, give the same anew; the kernel's blocks notice."""
    config = FAMILIES[family].replace(attention="bidirectional") if family == "gpt2" else FAMILIES[family]
    model, tokens = lively(config), sequences(config)[0]
    order = np.random.default_rng(0).permutation(13)
    plain = np.asarray(jaxsink.forward(model, tokens).logits)
    for name in ("pallas", "blocked", "naive"):
        positions = np.tile(np.arange(13), (3, 1))
        counted = jaxsink.forward(model, tokens, positions=positions, backend=name).logits
        np.testing.assert_allclose(counted, plain, atol=2e-5)
        dealt = jaxsink.forward(model, tokens[:, order], positions=positions[:, order], backend=name).logits
        np.testing.assert_allclose(dealt, plain[:, order], atol=2e-5)


@pytest.mark.parametrize(
    ("family", "sampler"),
    [
        ("llada", jaxsink.LLaDASampler(16, 4, block_length=8, cache="prefix")),
        ("fast_dllm", jaxsink.FastDLLMv2Sampler(16, 16, 8, 0.1, use_block_cache=True, stop_at_eos=False)),
    ],
)
def test_a_cached_run_writes_the_same_and_cuts_its_records(family: str, sampler: jaxsink.Sampler) -> None:
    """The cache may be longer than the sequence, so records are cut back to it; sequences may run stretches of their own."""
    config = FAMILIES[family]
    prompts = [np.random.default_rng(n).integers(0, config.vocab - 10, n).tolist() for n in (5, 3)]
    ours, theirs = (
        jaxsink.generate(lively(config), prompts, sampler, record=record.received_by_query(), backend=name)
        for name in ("pallas", "naive")
    )
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), ours.record, theirs.record)


def received_row(tap: record.Tap) -> jnp.ndarray:
    """A user's function of the probabilities."""
    return tap.probs.max(axis=2)


def test_what_the_kernel_serves() -> None:
    x = layer(Case())
    assert backend.serves(x, (record.received(), record.received_by_query(), record.key_norm()))
    for recorder in (record.maps(), record.last_row(), record.row_entropy(), record.Recorder(received_row)):
        assert not backend.serves(x, (record.received(), recorder))
    few = layer(Case(queries=7))
    see = dataclasses.replace(x.context.visibility, custom=jnp.ones((2, 20, 20), bool))
    custom = dataclasses.replace(x, context=dataclasses.replace(x.context, visibility=see))
    extra = dataclasses.replace(x, sink=ExtraSink(x.k[0, 0], x.v[0, 0]))
    assert not any(backend.serves(y, ()) for y in (few, custom, extra))


def test_what_the_kernel_does_not_serve_runs_on_blocked() -> None:
    x = layer(Case(drop="some"))
    recorders = (record.received(), record.maps())
    ours, theirs = (attention.BACKENDS[name](x, recorders) for name in ("pallas", "blocked"))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_gradients_are_those_of_the_other_backends() -> None:
    x = layer(Case(pattern="causal", drop="factors"))

    def value(q: jnp.ndarray, k: jnp.ndarray, v: jnp.ndarray, drop: jnp.ndarray, name: str) -> jnp.ndarray:
        context = dataclasses.replace(x.context, drop=drop)
        tap = dataclasses.replace(x, context=context, q=q, k=k, v=v)
        out, (received,) = attention.BACKENDS[name](tap, (record.received(),))
        return jnp.sin(out[:, 8:]).sum() + jnp.square(received).sum()

    given = (x.q, x.k, x.v, x.context.drop)
    ours, theirs = (jax.grad(value, (0, 1, 2, 3))(*given, name) for name in ("pallas", "naive"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max())), ours, theirs)


@pytest.mark.parametrize("size", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("length", [512, 4096, 8192, 32768])
def test_blocks_fit_the_memory_of_every_chip(size: int, length: int) -> None:
    for kind in ("TPU v4", "TPU v5 lite", "TPU v5", "TPU v6 lite", "TPU7x"):
        for item in (2, 4):
            budget = tiles.vmem_budget(kind)
            cut = tiles.choose_tiles(length, length, tiles.up_to(size, 128), item, budget, True)
            assert tiles.vmem_bytes(cut.query_block, cut.key_tile, cut.key_tiles, size, item, True) <= budget
            assert cut.queries == cut.keys == length  # nothing is padded


def test_too_many_keys_are_named() -> None:
    with pytest.raises(jaxsink.JaxsinkError, match=r"1048576 keys .* backend='blocked'"):
        tiles.choose_tiles(1 << 20, 1 << 20, 128, 2, tiles.SMALL_VMEM, True)


def test_it_lowers_for_a_tpu_without_any_map() -> None:
    """The program for a TPU, as far as it can be made without its compiler; benchmarks/kernel.py goes further."""
    length = 2048
    x = layer(Case(batch=1, queries=length, keys=length, size=128, pattern="causal", drop="some", dtype="bfloat16"))
    context = x.context
    bounds = backend.intervals(context.visibility, context.queries)
    arrays = backend.Arrays(x.q, x.k, x.v, context.visibility.real, x.query_kind, context.drop, *bounds)
    chip = AbstractDevice("TPU v5 lite", 1, "tpu")
    with use_abstract_mesh(AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,), abstract_device=chip)):
        run = jax.jit(lambda a: backend.on_one_device(a, 3, tiles.vmem_budget(chip.device_kind), False))
        text = run.trace(arrays).lower(lowering_platforms=("tpu",)).as_text()
    assert "tpu_custom_call" in text
    shapes = re.findall(r"tensor<([\dx]+)x[a-z]", text)
    assert max(math.prod(map(int, shape.split("x"))) for shape in shapes) < length**2


def test_tpus_choose_the_kernel() -> None:
    def mesh(platform: str) -> Any:
        return SimpleNamespace(devices=np.array([SimpleNamespace(platform=platform)]))

    assert attention.choose_backend(None, 64, 64, mesh("tpu")) == "pallas"
    assert attention.choose_backend("naive", 64, 64, mesh("tpu")) == "naive"
    assert attention.choose_backend(None, 4096, 4096, mesh("gpu")) == "blocked"
