"""Planning with the TPU compiler (extra `tpu`), and that what is compiled is what `generate` runs."""

import json
import os
import re
import subprocess
import sys

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from support.configs import FAMILIES

import jaxsink
from jaxsink.cli.main import main
from jaxsink.evals.settings import get_setting
from jaxsink.parallel import make_mesh, shard
from jaxsink.planner.compile import Compiler, lower
from jaxsink.planner.job import Job
from jaxsink.planner.memory import estimated_bytes
from jaxsink.planner.planner import make_plan
from jaxsink.planner.topology import GIB
from jaxsink.planner.tpu import has_compiler, parse_slice
from jaxsink.planner.workload import published_workload
from jaxsink.recording.attention import received
from jaxsink.recording.reductions import top
from jaxsink.sampling import execution

CACHE = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
needs_compiler = pytest.mark.skipif(not has_compiler(), reason="needs libtpu (extra `tpu`)")


@pytest.mark.parametrize(
    ("family", "sampler"),
    [
        ("llada", jaxsink.LLaDASampler(8, 8, 4)),
        ("dream", jaxsink.DreamSampler(8, 8)),
        ("llama3.1", jaxsink.ARSampler(8)),
        ("fast_dllm", jaxsink.FastDLLMv2Sampler(8, 4, 2, use_block_cache=True)),
    ],
)
def test_what_is_compiled_is_the_program_that_generate_runs(family, sampler, monkeypatch):
    config = FAMILIES[family]
    mesh = make_mesh(1, 1, jax.devices()[:1])
    record = received().then(top(2))
    job = Job(config, sampler, batch=2, prompt=4, record=record, dtype="float32")
    planned = lower(job, mesh).as_text()
    advance, seen = execution._advance, []

    def spy(*args, **kwargs):
        seen.append(advance.lower(*args, **kwargs).as_text())
        raise InterruptedError

    monkeypatch.setattr(execution, "_advance", spy)
    with pytest.raises(InterruptedError):
        jaxsink.generate(shard(jaxsink.init(config), mesh), [[1, 2, 3, 4]] * 2, sampler, record=record)

    def on_one_device(text):
        """Axes of length 1 may be named or not."""
        return re.sub('{"(data|model)"}', "{}", text)

    assert [on_one_device(text) for text in seen] == [on_one_device(planned)]


def test_importing_the_planner_leaves_the_environment_alone():
    code = (
        "import os; before = dict(os.environ); import jaxsink.planner.planner, jaxsink.cli.plan; "
        "assert dict(os.environ) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})


@pytest.fixture
def planning(monkeypatch):
    """A process that plans sets its environment; tests put it back."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]


@needs_compiler
@pytest.mark.parametrize(
    ("family", "sampler"), [("llada", jaxsink.LLaDASampler(8, 8, 4)), ("qwen3", jaxsink.ARSampler(8))]
)
def test_on_a_tpu_heads_are_told_apart_before_the_loop_over_layers(family, sampler, planning):
    config = FAMILIES[family]
    job = Job(config, sampler, batch=2, prompt=4)
    text = lower(job, Compiler(parse_slice("v5e:2x2")).mesh(1, 4)).as_text()
    stacked = f"{config.layers}x{config.heads}x{config.head_dim}x{config.width}xbf16"
    assert stacked in text


@needs_compiler
def test_jaxs_cache_of_programs_is_left_alone(planning, tmp_path):
    """It keeps what is compiled for a slice, and fails to read it again."""
    before = {name: getattr(jax.config, name) for name in CACHE}
    for name, value in zip(CACHE, (str(tmp_path), 0.0), strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    try:
        compiler = Compiler(parse_slice("v5e:1x1"))
        job = Job(FAMILIES["llada"], jaxsink.LLaDASampler(8, 8, 4), batch=2, prompt=4)
        for _ in range(2):
            jax.clear_caches()
            assert compiler.compile(job, 1, 1).fits
        assert not list(tmp_path.iterdir()) and jax.config.jax_compilation_cache_dir == str(tmp_path)
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


@needs_compiler
def test_a_plan_of_a_diffusion_model(planning, capsys):
    arguments = "mini-llada --tpu v5e:1x1 v5e:2x2 --gen 16 --prompt 16 --batch 4 --no-search --json"
    assert main(["plan", *arguments.split()]) == 0
    one, four = json.loads(capsys.readouterr().out)["plans"]
    assert one["fits"] and four["fits"]
    assert (one["mesh"], one["devices"], one["collectives_per_step"]) == ({"data": 1, "model": 1}, 1, {})
    assert four["mesh"] == {"data": 4, "model": 1}
    memory = one["memory_per_device"]
    parameters = sum(x.size for x in jax.tree.leaves(jaxsink.abstract(jaxsink.load("mini-llada").config)))
    assert memory["weights"] == 2 * parameters
    assert memory["total"] == pytest.approx(one["needed_per_device"])
    assert 0 < one["shares"]["roofline"] < 1
    assert one["step_seconds"]["compiler"] > 0


@needs_compiler
def test_a_plan_of_an_autoregressive_model_has_its_cache_in_the_state(planning):
    config = FAMILIES["llama3.1"].replace(width=256, heads=4, kv_heads=4, head_dim=64, mlp_width=512, layers=2)
    job = Job(config, jaxsink.ARSampler(64), batch=4, prompt=64, record=received().then(top(4)))
    plan = make_plan(job, parse_slice("v5e:2x2"), (1, 4), search=False)
    assert plan.compiled.memory is not None and plan.timing is not None
    cache = 2 * config.layers * 4 * 128 * 64 * 2  # k and v; of four kv heads each device has one
    assert cache <= plan.compiled.memory.state < 1.5 * cache
    assert plan.timing.collectives["all-reduce"] >= 2 * config.layers
    assert plan.roofline.bound == "memory"


@needs_compiler
def test_what_does_not_fit_says_how_much_it_would_need(planning):
    config = FAMILIES["llama3.1"].replace(vocab=9_000_000, width=1024, heads=8, kv_heads=8, head_dim=128, layers=1)
    job = Job(config, jaxsink.ARSampler(8), batch=1, prompt=8)
    plan = make_plan(job, parse_slice("v5e:1x1"))
    assert not plan.compiled.fits
    assert plan.compiled.needed > 30 * GIB
    assert (plan.timing, plan.largest) == (None, None)
    assert "more chips" in plan.suggestions[0]


@needs_compiler
def test_the_largest_batch_fits_and_is_more_than_was_asked_for(planning):
    config = FAMILIES["llada"].replace(vocab=512, layers=1)
    job = Job(config, jaxsink.LLaDASampler(512, 4, 512), batch=64, prompt=512, record=received())
    plan = make_plan(job, parse_slice("v5e:1x1"))
    assert plan.largest is not None and plan.largest > 64
    compiler = Compiler(parse_slice("v5e:1x1"))
    assert compiler.compile(job.replace(batch=plan.largest), 1, 1).fits


@needs_compiler
@pytest.mark.slow
def test_the_formula_for_memory_says_rather_too_much_than_too_little(planning):
    """Two layers of LLaDA-8B at true width, as they are evaluated."""
    config = jaxsink.preset("llada-8b-instruct").replace(layers=2)
    work = published_workload(get_setting("llada-8b-instruct/humaneval/study"), config)
    compiler = Compiler(parse_slice("v5e:2x2"))
    for rows, mesh in ((32, (4, 1)), (32, (2, 2))):
        job = work.job(work.buckets(rows, mesh[0])[1])
        weights = compiler.weight_bytes(job, *mesh)
        needed = compiler.compile(job, *mesh).needed - weights
        estimated = estimated_bytes(job, mesh, weights) - weights
        assert 0.9 * needed <= estimated <= 2.5 * needed


@needs_compiler
def test_a_loop_carries_few_numbers_per_head_as_few_bytes(planning):
    config = FAMILIES["llada"].replace(heads=32, kv_heads=32, head_dim=8, width=256)
    job = Job(config, jaxsink.LLaDASampler(256, 256, 32), batch=16, prompt=32, record=received().then(top(8)))
    memory = make_plan(job, parse_slice("v5e:2x2"), (4, 1), search=False).compiled.memory
    logical = 256 * config.layers * 4 * 32 * 8 * (4 + 4)  # steps, layers, rows of a device, heads, scores and places
    assert memory is not None
    assert logical <= memory.record < 2 * logical
    assert memory.temporaries < 2 * logical  # filled up to 128 numbers, scores and places alone would be 16 times that
