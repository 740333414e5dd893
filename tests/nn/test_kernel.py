"""The Pallas kernels for TPU and GPU, in interpret mode, against float64 NumPy and the other backends."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh
from support.attention_layers import KERNELS, Case, Kernel, by_kind, check, check_reach, in_float64, layer, one_program
from support.configs import FAMILIES
from support.models import lively, sequences

import jaxsink
from jaxsink import parallel
from jaxsink.nn import attention
from jaxsink.nn.batch import Execution
from jaxsink.nn.kernels import arrays, backend, gpu, gpu_blocks, tiles, tpu
from jaxsink.nn.taps import ExtraSink
from jaxsink.recording import recorders as record

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(params=list(KERNELS))
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """arrays, kinds -> outputs and column sums; compiled as one program."""
    return one_program(request.param)


@pytest.fixture(params=list(KERNELS))
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The backend "pallas" is this kernel, also where programs were compiled with the other one."""
    jax.clear_caches()
    monkeypatch.setattr(backend, "kernel_for", lambda mesh: KERNELS[request.param])
    yield
    jax.clear_caches()


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


@pytest.mark.slow
@pytest.mark.parametrize("which", list(KERNELS))
@settings(max_examples=8, deadline=None)
@given(case=cases)
def test_any_layer_against_float64(which: str, case: Case) -> None:
    check(case, one_program(which))


@pytest.mark.slow
@pytest.mark.parametrize("which", list(KERNELS))
@settings(max_examples=25, deadline=None)
@example(  # the TPU's sums are off by 1.2e-6: float32 rounds so much in few of these layers
    case=Case(2, 18, 129, 2, 1, 128, padding="gaps", drop="factors", seed=319)
)
@given(case=cases)
def test_many_layers_against_float64(which: str, case: Case) -> None:
    check(case, one_program(which), sums=2e-6)


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
def test_several_tiles_against_float64(
    pattern: str, drop: str, block: int, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "PIECES", ((block, 128),))
    check(Case(batch=1, queries=290, keys=300, group=1, pattern=pattern, padding="gaps", drop=drop, seed=3), kernel)


def test_statistics_change_no_output_and_kinds_add_up(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "PIECES", ((128, 128),))
    x = layer(Case(queries=150, keys=150, pattern="causal"))
    (split, by), (plain, total), (alone, nothing) = (kernel(x, kinds) for kinds in (3, 1, 0))
    assert by is not None and total is not None and nothing is None
    np.testing.assert_array_equal(split, plain)
    np.testing.assert_array_equal(split, alone)
    np.testing.assert_allclose(by.sum(axis=2), total[:, :, 0], rtol=2e-6)


@pytest.mark.parametrize("on", [True, False])
def test_a_layer_may_leave_the_window_aside(on: bool, kernel: Kernel) -> None:
    """Which layers use the window is not known when a scan over layers is compiled."""
    x = layer(Case(pattern="window", drop="most"))
    visibility = dataclasses.replace(x.context.visibility, use_window=jnp.array(on))
    x = dataclasses.replace(x, context=dataclasses.replace(x.context, visibility=visibility))
    probs = in_float64(x)[1]
    np.testing.assert_allclose(kernel(x, 3)[1], by_kind(x, probs), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "batch", "queries"),
    [((2, 4), 4, 20), ((1, 8), 4, 19), ((1, 8), 3, 20), ((1, 8), 3, 19), ((2, 4), 3, 20)],
    ids=["heads and rows", "copies share rows", "copies share queries", "copies do the same", "rows do not divide"],
)
def test_on_a_mesh(shape: tuple[int, int], batch: int, queries: int, installed: None) -> None:
    x = layer(Case(batch=batch, queries=queries, kv_heads=2, group=3, pattern="causal", drop="some"))
    alone, columns = backend.mix_and_add_up(x, 3)
    mesh = parallel.make_mesh(*shape)
    context = dataclasses.replace(x.context, execution=Execution("pallas", mesh))
    spread, spread_columns = jax.jit(lambda q: backend.mix_and_add_up(dataclasses.replace(x, q=q, context=context), 3))(
        x.q
    )
    np.testing.assert_allclose(spread, alone, atol=1e-6)
    np.testing.assert_allclose(spread_columns, columns, atol=1e-6 * float(columns.max()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [
        *("mistral", "sdar", "dream", "gidd", "mdlm", "bd3lm", "nemotron", "a2d", "fast_dllm"),
        *("llada2", "llada_moe_dense", "sdar_moe"),
    ],
)
def test_a_model_gives_the_same_on_the_kernel(family: str, installed: None) -> None:
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
def test_tokens_may_stand_in_any_order(family: str, installed: None) -> None:
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    chip = AbstractDevice("TPU v5 lite", 1, "tpu")
    with use_abstract_mesh(AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,), abstract_device=chip)):
        run = jax.jit(lambda a: tpu.on_tpu_device(a, 3, tiles.vmem_budget(chip.device_kind), False))
        text = run.trace(arrays.arrays_of(x)).lower(lowering_platforms=("tpu",)).as_text()
    assert "tpu_custom_call" in text
    shapes = re.findall(r"tensor<([\dx]+)x[a-z]", text)
    assert max(math.prod(map(int, shape.split("x"))) for shape in shapes) < length**2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("queries", [20, 2048])
def test_it_lowers_for_a_gpu_without_any_map(queries: int, dtype: str) -> None:
    """The same; benchmarks/gpu_kernel.py has the compiler's registers and shared memory."""
    length = 2048
    case = Case(batch=1, queries=queries, keys=length, size=80, pattern="causal", drop="some", dtype=dtype)
    run = jax.jit(lambda a: gpu.on_gpu_device(a, 3, False))
    text = run.trace(arrays.arrays_of(layer(case))).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @__gpu$xla.gpu.triton") == 2
    shapes = re.findall(r"tensor<([\dx]+)x[a-z]", text)
    assert max(math.prod(map(int, shape.split("x"))) for shape in shapes) < length**2


@pytest.mark.parametrize("kinds", [1, 3])
def test_a_gpu_gives_the_same_bits_whatever_else_is_in_the_batch(kinds: int) -> None:
    """Sums are made in one order; neither other sequences nor other heads change it."""
    x = arrays.arrays_of(layer(Case(batch=3, queries=70, keys=140, pattern="causal", drop="some")))
    out, columns = gpu.on_gpu_device(x, kinds, True)
    one = arrays.Arrays(*(None if y is None else y[1:2] for y in x))
    alone, alone_columns = gpu.on_gpu_device(one, kinds, True)
    np.testing.assert_array_equal(out[1:2], alone)
    np.testing.assert_array_equal(columns[1:2], alone_columns)


def test_a_gpus_programs_reach_no_memory_but_operands_and_results() -> None:
    check_reach(one_program("gpu"))


def test_blocks_that_do_not_see_each_other_are_not_visited() -> None:
    blocks = gpu_blocks.Blocks(32, 16, 16, 4, 1)
    position = jnp.arange(64)[None]
    sees = gpu.blocks_that_see(jnp.maximum(position - 20, 0), position + 1, 64, blocks)
    np.testing.assert_array_equal(sees[0], [[1, 1, 0, 0], [1, 1, 1, 1]])
    np.testing.assert_array_equal(gpu.first_and_last(sees)[0], [[0, 1], [0, 3]])
    np.testing.assert_array_equal(gpu.first_and_last(sees.transpose(0, 2, 1))[0], [[0, 1], [0, 1], [1, 1], [1, 1]])
    nobody = gpu.first_and_last(jnp.zeros((1, 2, 3), bool))[0]
    assert (nobody[:, 1] < nobody[:, 0]).all()


@pytest.mark.parametrize("queries", [8, 100, 4096])
@pytest.mark.parametrize("size", [4, 64, 80, 128, 192, 256, 512])
def test_blocks_are_powers_of_two(size: int, queries: int) -> None:
    for item in (2, 4):
        cut = gpu_blocks.choose_blocks(queries, size, item)
        assert all(n & (n - 1) == 0 and n >= 16 for n in (cut.queries, cut.keys, cut.width)) and cut.width >= size


def mesh_of(platform: str, **facts: str) -> Any:
    return SimpleNamespace(devices=np.array([SimpleNamespace(platform=platform, **facts)]))


@pytest.mark.parametrize(
    ("capability", "chosen"),
    [
        ("8.0", "pallas"),
        ("9.0", "pallas"),
        ("12.0", "pallas"),
        ("7.5", "blocked"),
        ("gfx942", "blocked"),
        (None, "blocked"),
    ],
)
def test_gpus_with_the_right_tensor_cores_choose_the_kernel(capability: str | None, chosen: str) -> None:
    mesh = mesh_of("gpu", **({} if capability is None else {"compute_capability": capability}))
    assert attention.choose_backend(None, 4096, 4096, mesh) == chosen
    run = backend.kernel_for(mesh_of("gpu", compute_capability="8.6"))
    assert run.func is gpu.on_gpu_device and run.keywords == {"interpret": False}


def test_tpus_choose_the_kernel() -> None:
    assert attention.choose_backend(None, 64, 64, mesh_of("tpu")) == "pallas"
    assert attention.choose_backend("naive", 64, 64, mesh_of("tpu")) == "naive"
    assert backend.kernel_for(mesh_of("tpu", device_kind="TPU v4")).func is tpu.on_tpu_device
