"""Programs of models with narrow weights do not hold a second, wider copy of all layers on a CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES

import jaxsink
from jaxsink.evals.likelihood.passes import Inputs, Pass, Plan, _score
from jaxsink.nn.batch import Execution
from jaxsink.nn.compilation import NO_HOISTING, compiler_options
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.forward import _forward
from jaxsink.nn.inputs import ForwardInputs
from jaxsink.nn.new_model import abstract
from jaxsink.parallel import make_mesh, pmap
from jaxsink.parallel.pmap import PmapProgram
from jaxsink.planner.compile import lower, place_weights
from jaxsink.planner.job import Job
from jaxsink.recording.attention import received
from jaxsink.recording.spec import make_record_spec

pytestmark = pytest.mark.usefixtures("quick_compilation")

NARROW = ("bfloat16", "float16", "int8")
PROGRAMS = ("diffusion", "autoregressive", "forward", "likelihood")
BATCH, LENGTH = 1, 16


def shape_of(family: str) -> ModelConfig:
    """Many layers, so that all of them weigh far more than all else that a program holds."""
    changes = {"layers": 24, "width": 256, "heads": 4, "kv_heads": 4, "head_dim": 64, "mlp_width": 512}
    return FAMILIES[family].replace(**changes)


def job_of(family: str, dtype: str) -> Job:
    sampler = jaxsink.ARSampler(8) if family == "llama3.1" else jaxsink.LLaDASampler(8, 8, 8)
    return Job(shape_of(family), sampler, BATCH, LENGTH - 8, record=received(), dtype=dtype)


def program(name: str, dtype: str) -> Any:
    """One of the programs that run a model, as it is compiled for this CPU."""
    mesh = make_mesh(1, 1, jax.devices()[:1])
    job = job_of("llama3.1" if name == "autoregressive" else "llada", dtype)
    if name in ("diffusion", "autoregressive"):
        return lower(job, mesh).compile()
    model = place_weights(job, mesh)
    tokens, real = (jax.ShapeDtypeStruct((BATCH, LENGTH), kind) for kind in (jnp.int32, bool))
    if name == "forward":
        inputs = ForwardInputs(tokens, real, None, None, None)
        return _forward.lower(model, inputs, (), Execution()).compile()
    targets, each = jax.ShapeDtypeStruct((BATCH, 4), jnp.int32), jax.ShapeDtypeStruct((BATCH,), jnp.int32)
    given: Any = Inputs(tokens, real, real, targets, each)  # pyright: ignore[reportArgumentType]
    return _score.lower(model, given, Plan(Pass(), make_record_spec(job.config, None), Execution())).compile()


def bytes_of_layers(dtype: str) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(abstract(shape_of("llada"), dtype).layers))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_program_holds_all_layers_twice(name: str, dtype: str) -> None:
    held = program(name, dtype).memory_analysis().temp_size_in_bytes
    assert held < bytes_of_layers(dtype) / 4


def test_the_same_of_programs_dealt_out_by_pmap(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[PmapProgram] = []
    original = PmapProgram.__init__

    def remember(self: PmapProgram, function: Any) -> None:
        original(self, function)
        made.append(self)

    monkeypatch.setattr(PmapProgram, "__init__", remember)
    pmap._pmap_program.cache_clear()
    weights = abstract(shape_of("llada"), "bfloat16")
    model = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.01, leaf.dtype), weights)
    options: dict[str, Any] = {"record": received(), "seed": [0, 1, 2]}
    prompts, sampler = np.arange(24).reshape(3, 8), jaxsink.LLaDASampler(8, 4, 8)
    alone = jaxsink.generate(model, prompts, sampler, **options)
    for _ in range(2):
        dealt = jaxsink.generate(model, prompts, sampler, devices=jax.devices()[:2], **options)
        np.testing.assert_array_equal(dealt.tokens, alone.tokens)
    (compiled,) = [one for program in made for one in program._compiled.values()]
    assert compiled.memory_analysis().temp_size_in_bytes < bytes_of_layers("bfloat16") / 4


def test_only_narrow_weights_on_a_cpu_are_compiled_another_way() -> None:
    """A plan for a TPU is made in a process with a CPU, so the weights decide and not the process."""

    def options(dtype: str, platform: str | None) -> Any:
        sharding = None if platform is None else SimpleNamespace(device_set=[SimpleNamespace(platform=platform)])
        return compiler_options([SimpleNamespace(dtype=jnp.dtype(dtype), sharding=sharding)])

    assert options("bfloat16", "cpu") == options("int8", "cpu") == options("bfloat16", None) == NO_HOISTING
    assert options("float32", "cpu") is options("bfloat16", "tpu") is options("int8", "gpu") is None


def test_forward_inside_other_programs() -> None:
    """Options are for whole programs; `forward` may be part of one, or be differentiated."""
    model = jaxsink.init(FAMILIES["llada"], dtype="bfloat16")
    tokens = np.arange(8)[None]
    expected = np.asarray(jaxsink.forward(model, tokens).logits)

    def scores(model: jaxsink.Model) -> jax.Array:
        return jaxsink.forward(model, tokens).logits

    np.testing.assert_allclose(jax.jit(scores)(model), expected, atol=1e-3)
    np.testing.assert_allclose(jax.jit(lambda: scores(model))(), expected, atol=1e-3)
    for gradient in (jax.grad(lambda m: scores(m).sum()), jax.jit(jax.grad(lambda m: scores(m).sum()))):
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient(model)))
