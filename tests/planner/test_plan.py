"""Planning, as far as it needs no TPU compiler: reading its text, times, roofline, cost, search, and messages."""

import json
import math
from pathlib import Path

import jax
import pytest

import jaxsink
from jaxsink.cli.main import main
from jaxsink.cli.plan_tables import advice, cost, facts
from jaxsink.errors import JaxsinkError
from jaxsink.evals.settings import get_setting
from jaxsink.planner import evaluation, planner, timing, tpu
from jaxsink.planner.compile import Compiled, Memory, needed_bytes
from jaxsink.planner.hlo import group_size, parse_module
from jaxsink.planner.job import Job
from jaxsink.planner.plan import find_settings, totals
from jaxsink.planner.planner import check_mesh
from jaxsink.planner.roofline import guess_step, read_bytes, roofline
from jaxsink.planner.search import largest_batch
from jaxsink.planner.topology import GIB
from jaxsink.planner.tpu import CHIPS, parse_slice
from jaxsink.planner.workload import published_workload
from jaxsink.sinks import MaskSinks

V5E = CHIPS["v5e"]
HOP = V5E.hop
SLICE = parse_slice("v5e:2x4")
LLADA = jaxsink.preset("llada-8b-instruct")
AR = "llama-3.1-8b-instruct"
JOB = Job(LLADA, jaxsink.LLaDASampler(256, 256, 32), batch=8, prompt=256)


TEXT = Path(__file__).with_name("small_step.txt").read_text()


@pytest.fixture(scope="module")
def module():
    return parse_module(TEXT)


def test_the_step_loop_is_the_one_that_ends_by_its_data(module):
    step = module.step_loop()
    assert (step.body, step.trips) == ("step_body", None)
    layers = module.loop(module.computations["step_body"]["while.1"])
    assert (layers.body, layers.trips) == ("layer_body", 3)


def test_operations_are_read_with_sizes_operands_and_cycles(module):
    product = module.computations["layer_body"]["product.1"]
    assert (product.kind, product.bytes, product.cycles, product.operands) == ("fusion", 8 * 128 * 2, 1000, ("x.2",))
    start = module.computations["step_body"]["all-gather-start.1"]
    assert start.bytes == (8 + 64) * 128 * 2
    assert module.operand_bytes(start, "step_body") == 8 * 128 * 2
    assert module.computations["step_body"]["choice.1"].branches == ["cheap_branch", "dear_branch"]


def test_groups_of_collectives_in_all_three_spellings(module):
    assert group_size(module.computations["layer_body"]["all-reduce.1"]) == 4
    assert group_size(module.computations["step_body"]["all-gather-start.1"]) == 8
    texts = {
        "replica_groups={{0,1,2},{3,4,5}}": 3,
        "replica_groups=mesh['a'=2,'b'=8] {'a','b':(1)4}": 8,
        "source_target_pairs={{0,1},{1,0}}": 2,
    }
    for text, size in texts.items():
        line = f"%r = f32[8]{{0}} all-reduce(%x), {text}"
        assert group_size(parse_module(f"ENTRY %e (x: f32[8]) -> f32[8] {{\n{line}\n}}").computations["e"]["r"]) == size


def test_a_step_adds_up_cycles_kernels_sorts_and_what_collectives_leave_uncovered(module):
    found = timing.time_of_loop(module, module.step_loop(), V5E)
    assert found.compiler == pytest.approx((3 * 1000 + 500 + 3000) / 1.5e9)
    kernel = 394e6 / (0.28 * 197e12)  # its products take longer than its bytes
    sort = 2 * 4 * 256 * 4 * 36 / 819e9  # 8 levels: 36 passes over what it reads and writes
    assert found.kernels == pytest.approx(3 * kernel)
    assert found.modelled == pytest.approx(3 * kernel + sort)
    reduce = 2 * (3 / 4) * 2048 / 90e9 + 6 * HOP
    gather = (7 / 8) * 64 * 128 * 2 / 90e9 + 7 * HOP
    assert gather > 3000 / 1.5e9
    assert found.collective == pytest.approx(3 * reduce + gather - 3000 / 1.5e9)
    assert found.covered == pytest.approx(3000 / 1.5e9)
    assert dict(found.collectives) == {"all-reduce": 3, "all-gather": 1}
    assert found.total == pytest.approx(found.compiler + found.modelled + found.collective)


def test_a_kernel_that_records_nothing_is_faster():
    text = TEXT.replace("%kernel.1", "%attention_alone.1")
    found = timing.time_of_loop(parse_module(text), parse_module(text).step_loop(), V5E)
    assert found.kernels == pytest.approx(3 * 394e6 / (0.36 * 197e12))


def test_gathers_read_rows_and_a_sliced_all_reduce_is_a_reduce_scatter():
    text = """%all-reduce-scatter (p: f32[64,128]) -> f32[16,128] {
  %p = f32[64,128]{1,0} parameter(0)
  %inside = f32[64,128]{1,0} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %kept = f32[16,128]{1,0} dynamic-slice(%inside), dynamic_slice_sizes={16,128}
}
%lookup (t: f32[5000,128]) -> f32[64,128] {
  %t = f32[5000,128]{1,0} parameter(0)
  ROOT %rows = f32[64,128]{1,0} gather(%t)
}
ENTRY %main (table: f32[5000,128]) -> f32[16,128] {
  %table = f32[5000,128]{1,0} parameter(0)
  %gather_fusion = f32[64,128]{1,0} fusion(%table), kind=kCustom, calls=%lookup
  ROOT %out = f32[16,128]{1,0} fusion(%gather_fusion), kind=kCustom, calls=%all-reduce-scatter
}
"""
    found = timing.time_of(parse_module(text), "main", V5E)
    assert found.modelled == pytest.approx(2 * 64 * 128 * 4 / 819e9)
    assert dict(found.collectives) == {"reduce-scatter": 1}
    assert found.collective == pytest.approx(3 / 4 * 64 * 128 * 4 / 90e9 + 3 * HOP)


def test_two_devices_share_one_link_and_one_needs_none():
    assert timing.ring("all-reduce", 9e9, 1, V5E) == (0.0, 0.0)
    seconds, moved = timing.ring("all-reduce", 9e9, 2, V5E)
    assert (seconds, moved) == (pytest.approx(9e9 / 45e9 + 2 * HOP), 9e9)
    seconds, moved = timing.ring("all-gather", 8e9, 4, V5E)
    assert (seconds, moved) == (pytest.approx(6e9 / 90e9 + 3 * HOP), 6e9)
    assert timing.ring("collective-permute", 9e9, 4, V5E)[0] == pytest.approx(9e9 / 45e9 + HOP)


def test_the_roofline_of_llada_counts_its_products_and_its_weights():
    per_layer = 4 * 4096 * 4096 + 3 * 4096 * 12288
    head = 4096 * 126464
    assert JOB.flops == 8 * (512 * 32 * (2 * per_layer + 4 * 4096 * 512) + 2 * head * 32)
    limit = roofline(JOB, SLICE, read=2e9)
    assert limit.compute == pytest.approx(JOB.flops / 8 / 197e12)
    assert limit.memory == pytest.approx(2e9 / 819e9)
    assert (limit.limit, limit.bound) == (limit.compute, "compute")
    shares = limit.shares(2 * limit.compute, 0.25 * limit.compute)
    assert (shares["roofline"], shares["collective"]) == (0.5, 0.125)


def test_guidance_and_clean_ranking_run_the_layers_again_and_a_cache_runs_less():
    guided = JOB.replace(sampler=jaxsink.LLaDASampler(256, 256, 32, cfg_scale=1.0))
    clean = JOB.replace(intervene=MaskSinks(1, rank_on="clean"))
    assert (JOB.passes, guided.passes, clean.passes) == (1, 2, 2)
    assert guided.flops > 1.9 * JOB.flops
    cached = JOB.replace(sampler=jaxsink.LLaDASampler(256, 256, 32, cache="dual"))
    assert cached.queries == (512 + 31 * 32) / 32
    assert cached.cache_bytes > JOB.cache_bytes == 0


def test_an_autoregressive_step_reads_its_cache_and_is_bound_by_memory():
    job = Job(jaxsink.preset("llama-3.1-8b"), jaxsink.ARSampler(128), batch=4, prompt=128)
    assert (job.steps, job.length, job.queries) == (128, 256, 1)
    assert job.cache_bytes == 4 * 256 * 2 * 32 * 8 * 128 * 2
    assert roofline(job, SLICE, 2e9).bound == "memory"
    every = job.replace(intervene=MaskSinks(1, rows="all"))
    assert (every.queries, every.cache_bytes, every.prefill_flops) == (256, 0, 0) and every.flops > 200 * job.flops


def test_the_embedding_is_read_only_where_it_is_the_head():
    table = ("embedding", (100, 8), 2)
    layers = ("layers.mlp.up.weight", (4, 16, 8), 2)
    assert read_bytes([table, layers, ("head.weight", (100, 8), 2)]) == 2 * (4 * 16 * 8 + 100 * 8)
    assert read_bytes([table, layers]) == 2 * (4 * 16 * 8 + 100 * 8)


def test_many_rows_go_along_the_data_axis_and_few_tokens_along_the_model_axis():
    def step(job, data, weights=16e9):
        return guess_step(job, SLICE, weights * data / 8, data, 8 // data)

    assert step(JOB, 4) < step(JOB, 2) < step(JOB, 1)
    decoding = Job(jaxsink.preset("llama-2-7b"), jaxsink.ARSampler(128), batch=8, prompt=128)
    assert step(decoding, 1) < step(decoding, 4)


@pytest.mark.parametrize(("slope", "start"), [(0.1, 8), (0.1, 128), (0.003, 16), (4.0, 1), (2.9, 4)])
def test_the_largest_batch_is_one_that_was_compiled_and_close_to_the_limit(slope, start):
    tried = {}

    def need(batch):
        tried[batch] = 4 * GIB + slope * batch * GIB + (0.3 * GIB if batch > 64 else 0)
        return tried[batch]

    limit = 15.75 * GIB
    best = largest_batch(need, limit, {start: need(start)}, 1)
    assert tried[best] <= limit
    assert best >= 0.8 * int(11.4 / slope)
    assert len(tried) <= 5


def test_no_more_than_are_wanted_are_tried():
    tried = []

    def need(batch):
        tried.append(batch)
        return batch * GIB

    assert largest_batch(need, 100 * GIB, {8: 8.0 * GIB}, 8, most=24) == 24
    assert tried and max(tried) == 24
    assert largest_batch(need, 100 * GIB, {24: 24.0 * GIB}, 8, most=24) == 24 and max(tried) == 24


def test_batches_stay_multiples_and_nothing_fits_where_the_weights_do_not():
    assert largest_batch(lambda b: b * GIB, 15.75 * GIB, {4: 4.0 * GIB}, 4) == 12
    assert largest_batch(lambda b: math.inf, GIB, {8: math.inf}, 4) is None


class CompilerWithRoomFor:
    """A stand-in: memory and time grow with the batch, each row of a device takes another `seconds`.

    Cutting the weights gives room for as many times the rows, and takes longer in all.
    """

    def __init__(self, rows, seconds):
        self.topology, self.rows, self.seconds = SLICE, rows, seconds

    def weight_bytes(self, job, data, model):
        return 8 * GIB

    def read_bytes(self, job, data, model):
        return 8e9

    def compile(self, job, data, model):
        fits = job.batch <= self.rows * model
        needed = (8 + 7.5 * job.batch / self.rows / model) * GIB
        cycles = f'"estimated_cycles":"{int(1.5e9 * self.seconds * job.batch / data)}"'
        text = f"""%body (s: s32[]) -> s32[] {{
  %s = s32[] parameter(0)
  ROOT %work = s32[] fusion(%s), kind=kLoop, calls=%f, backend_config={{{cycles}}}
}}
%going (s.1: s32[]) -> pred[] {{
  %s.1 = s32[] parameter(0)
  ROOT %less = pred[] compare(%s.1, %s.1), direction=LT
}}
ENTRY %main (t: s32[]) -> s32[] {{
  %t = s32[] parameter(0)
  ROOT %loop = s32[] while(%t), condition=%going, body=%body
}}
"""
        return Compiled(
            job, SLICE, (data, model), needed, 1.0, Memory(*[0.0] * 5) if fits else None, text if fits else None
        )


@pytest.mark.parametrize(
    ("batch", "room", "expected"), [(32, 16, (16, 2)), (40, 16, (16, 3)), (48, 40, (24, 2)), (64, 16, None)]
)
def test_rows_go_in_turn_where_the_faster_mesh_has_no_room_for_all(batch, room, expected):
    compiler = CompilerWithRoomFor(room, seconds=0.01)
    too_large = compiler.compile(JOB.replace(batch=batch), 8, 1)
    assert not too_large.fits
    found = planner.faster_in_turn(compiler, too_large, step=0.07, say=lambda text: None)
    if expected is None:  # 4 x 0.02 seconds are more
        assert found is None
        return
    size, turns = expected
    assert (found.batch, found.mesh) == (size, (8, 1))
    assert found.step == pytest.approx(0.01 * size / 8)
    assert found.of_all == pytest.approx(turns * found.step)


def test_rows_do_not_go_in_turn_where_not_even_one_fits():
    compiler = CompilerWithRoomFor(4, seconds=0.01)
    too_large = compiler.compile(JOB, 8, 1)
    assert planner.faster_in_turn(compiler, too_large, step=1.0, say=lambda text: None) is None


@pytest.mark.parametrize(("mesh", "search"), [(None, True), (None, False), ((4, 2), True)])
def test_a_plan_says_when_rows_go_faster_in_turn(mesh, search, monkeypatch):
    monkeypatch.setattr(planner, "Compiler", lambda topology: CompilerWithRoomFor(16, seconds=0.01))
    plan = planner.make_plan(JOB.replace(batch=32), SLICE, mesh, search=search)
    assert plan.compiled.mesh == (4, 2) and plan.compiled.fits
    assert plan.timing.total == pytest.approx(0.08)
    said = [line for line in plan.suggestions if "in turn" in line]
    if mesh is not None or not search:
        assert plan.to_dict()["faster_in_turn"] is None and not said
        return
    found = plan.to_dict()["faster_in_turn"]
    assert (found["batch"], found["mesh"]) == (16, {"data": 8, "model": 1})
    assert found["seconds_of_all_rows"] == pytest.approx(2 * found["step_seconds"]) == pytest.approx(0.04)
    assert "batches of 16 in turn, on --mesh 8x1" in said[0] and "40 instead of 80 ms" in said[0]


def test_a_single_run_on_a_tpu_has_hours_and_dollars_by_the_compilers_estimate(capsys, monkeypatch):
    monkeypatch.setattr(planner, "Compiler", lambda topology: CompilerWithRoomFor(16, seconds=0.01))
    words = ["plan", "llada-8b-instruct", "--tpu", "v5e:2x4", "--mesh", "8x1", "--no-search", "--batch"]
    assert main([*words, "16", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    (run,), (total,) = planned["plans"], planned["totals"]
    limit = max(run["roofline_seconds"].values())
    assert run["hours"] == {
        "compiler_estimate": pytest.approx(256 * 0.02 / 3600),
        "at_65_percent_mfu": pytest.approx(256 * limit / 0.65 / 3600),
        "at_40_percent_mfu": pytest.approx(256 * limit / 0.40 / 3600),
    }
    assert total["dollars"] == {name: pytest.approx(8 * V5E.price * hours) for name, hours in run["hours"].items()}
    assert main([*words, "64", "--json"]) == 0  # does not fit
    planned = json.loads(capsys.readouterr().out)
    assert planned["plans"][0]["hours"] is None and planned["totals"] == []
    assert main([*words, "64"]) == 0
    printed = capsys.readouterr().out
    assert "NO" in printed and "Prices" not in printed and "hours, estimate" in printed


def test_a_chip_without_a_price_has_hours_and_no_dollars():
    plan = planner.Plan(
        CompilerWithRoomFor(16, seconds=0.01).compile(JOB, 8, 1), None, timing.Timing(compiler=0.5),
        roofline(JOB, SLICE, 8e9), None, None, (),
    )  # fmt: skip
    assert cost(plan, {"dollars": None, "price_per_chip_hour": None})["dollars"] == ""
    assert cost(plan, None)["hours, estimate"] == "0.036"


class CompilerOfWeights(CompilerWithRoomFor):
    """A step takes `seconds[mesh]`; a device reads its part of the weights."""

    def __init__(self, seconds, unfit=()):
        super().__init__(1 << 20, 0.0)
        self.steps, self.unfit, self.compiled = seconds, unfit, []

    def read_bytes(self, job, data, model):
        return 8e9 / model

    def compile(self, job, data, model):
        self.compiled.append((data, model))
        self.seconds = self.steps[data, model] * data / job.batch
        self.rows = 1 if (data, model) in self.unfit else 1 << 20
        return super().compile(job, data, model)


@pytest.mark.parametrize(
    ("unfit", "expected"), [((), ((8, 1), 0.0125)), (((8, 1),), ((2, 4), 0.006)), (((8, 1), (4, 2)), ((2, 4), 0.006))]
)
def test_a_plan_shows_the_mesh_with_the_highest_share_beside_the_fastest(unfit, expected, monkeypatch):
    """Few tokens read many weights: cutting them is faster, but its collectives keep a step from its limit."""
    seconds = {(8, 1): 0.0125, (4, 2): 0.0125, (2, 4): 0.006, (1, 8): 0.0058}
    compiler = CompilerOfWeights(seconds, unfit)
    monkeypatch.setattr(planner, "Compiler", lambda topology: compiler)
    monkeypatch.setattr(planner, "guess_step", lambda job, topology, read, data, model: abs(data - 2.1))
    monkeypatch.setattr(planner, "find_largest", lambda compiler, compiled, say: None)
    job = Job(LLADA, jaxsink.ARSampler(8), batch=8, prompt=8)
    plan = planner.make_plan(job, SLICE)
    mesh, step = expected
    limits = {shape: roofline(job, SLICE, 8e9 / shape[1]).limit for shape in seconds}
    shares = {shape: limits[shape] / seconds[shape] for shape in seconds if shape not in unfit}
    assert plan.compiled.mesh == (2, 4) and max(shares, key=lambda shape: shares[shape]) == mesh
    assert plan.highest is not None
    assert plan.to_dict()["highest_share"] == {
        "mesh": {"data": mesh[0], "model": mesh[1]},
        "step_seconds": pytest.approx(step, rel=1e-6),
        "roofline": pytest.approx(shares[mesh], rel=1e-6),
    }
    assert facts(plan)["  highest share, of any mesh"].startswith(f"{shares[mesh]:.0%} on {mesh[0]} x {mesh[1]}, ")
    assert (1, 8) not in compiler.compiled  # reads less than the chosen one, and should be slower
    for more in ({"mesh": (2, 4)}, {"search": False}):
        alone = planner.make_plan(job, SLICE, **more)
        assert alone.highest is None and facts(alone)["  highest share, of any mesh"] == ""


class Slice(CompilerWithRoomFor):
    """The same with devices, so that meshes can be laid out on it; counts what is compiled."""

    devices = jax.devices()

    def __init__(self, rows, seconds):
        super().__init__(rows, seconds)
        self.compiled = []

    def compile(self, job, data, model):
        self.compiled.append((job.batch, job.length, data, model))
        return super().compile(job, data, model)


@pytest.fixture
def evaluation_plan(monkeypatch):
    def make(room, **options):
        compiler = Slice(room, seconds=0.02)
        monkeypatch.setattr(evaluation, "Compiler", lambda _: compiler)
        work = published_workload(get_setting("llada-8b-instruct/gsm8k/study"), LLADA)
        return evaluation.plan_evaluation(work, SLICE, **options), compiler

    return make


def test_the_cheapest_rows_are_found_in_few_compiles(evaluation_plan):
    plan, compiler = evaluation_plan(room=24)
    assert plan.mesh == (8, 1) and plan.fits
    assert plan.rows == 24  # the formula says 8, and would like 40
    assert plan.compiles == len(compiler.compiled) <= 8
    assert max(batch for batch, _, _, _ in compiler.compiled) <= 40
    largest, busiest = plan.largest.job, plan.busiest.job
    assert (largest.prompt, busiest.prompt, busiest.response) == (1664, 1536, 256)


def test_hours_are_a_range_of_the_compilers_estimate_and_what_is_published(evaluation_plan):
    plan, _ = evaluation_plan(room=24, mesh=(8, 1), rows=24, search=False)
    step = 0.02 * 24 / 8
    assert plan.timing.total == pytest.approx(step, rel=1e-3)
    at_limit = sum(b.batches * 256 * roofline(plan.work.job(b), SLICE, 8e9).limit for b in plan.buckets)
    assert plan.hours.estimate == pytest.approx(at_limit / plan.share / 3600)
    assert plan.hours.fast == pytest.approx(at_limit / 0.65 / 3600)
    assert plan.hours.slow == pytest.approx(at_limit / 0.40 / 3600)
    busiest = max(plan.buckets, key=lambda b: b.sequences)
    assert plan.share == pytest.approx(roofline(plan.work.job(busiest), SLICE, 8e9).limit / plan.timing.total)
    (total,) = totals([plan, plan], price=2.0)
    assert total["hours"]["compiler_estimate"] == pytest.approx(2 * plan.hours.estimate)
    assert total["dollars"]["at_40_percent_mfu"] == pytest.approx(2 * plan.hours.slow * 8 * 2.0)
    assert totals([plan], None)[0]["price_per_chip_hour"] == V5E.price
    assert json.loads(json.dumps(plan.to_dict()))["buckets"][0]["rows"] <= 24


def test_an_evaluation_that_does_not_fit_has_no_hours(evaluation_plan):
    plan, _ = evaluation_plan(room=4, mesh=(8, 1), rows=24)
    assert not plan.fits and plan.hours is None and plan.share is None
    assert totals([plan], None) == []
    assert "does not fit" in advice(plan)


def test_the_command_plans_the_evaluations_of_the_model(capsys, monkeypatch):
    monkeypatch.setattr(evaluation, "Compiler", lambda _: Slice(24, 0.02))
    assert main(["plan", "llada-1.5", "--tpu", "v5e:2x4", "--no-search"]) == 0
    printed = capsys.readouterr().out
    for part in (
        "1,319 questions x 10 conditions",
        "by the compiler's estimate",
        "65-40 % MFU",
        "counted with SmolLM2's tokenizer",
    ):
        assert part in printed
    assert "evaluate MODEL llada-8b-instruct/gsm8k/study --out DIR --rows 8 --mesh 8x1" in printed
    assert "llada-8b-instruct/humaneval/study" in printed and "hours in all" in printed
    words = ["--setting", "llada-8b-instruct/gsm8k/study", "--rows", "32", "--mesh", "8x1", "--json"]
    assert main(["plan", "llada-8b-instruct", "--tpu", "v5e:2x4", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    (plan,) = found["plans"]
    assert plan["rows"] == 32 and not plan["fits"] and found["totals"] == []


@pytest.mark.parametrize(
    ("model", "subject"), [("llada-8b-base", "llada-8b-instruct"), ("qwen3-8b", None), ("llama-3-8b", AR)]
)
def test_a_model_has_the_settings_of_its_kind(model, subject):
    found = find_settings(None, model, jaxsink.preset(model))
    assert [setting.name for setting in found] == [f"{subject}/{b}/study" for b in ("gsm8k", "humaneval") if subject]


def test_what_the_compiler_says_when_memory_is_short():
    used = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 17.50G of 15.75G hbm."
    short = "Ran out of memory on HBM, total memory for HLO temporaries (721.88G) exceeds available HBM (15.7G)."
    assert needed_bytes(used) == 17.5 * GIB
    assert needed_bytes(short) == 721.88 * GIB
    assert needed_bytes("RESOURCE_EXHAUSTED: something else") == math.inf
    assert needed_bytes("INTERNAL: a bug") is None


def test_slices_have_chips_and_devices():
    assert (SLICE.chips, SLICE.devices, SLICE.chip) == (8, 8, V5E)
    assert (parse_slice("v4:2x2x1").chips, parse_slice("v4:2x2x1").devices) == (4, 8)
    assert parse_slice("v5p:2x2x2").devices == 8


@pytest.mark.parametrize("name", ["v5e", "v9:2x2", "v5e:2x2x1", "v5p:2x2", "v5e:0x2", "v5e:2x", ""])
def test_unknown_slices_are_refused(name):
    with pytest.raises(JaxsinkError, match="slice"):
        parse_slice(name)


def test_a_mesh_must_fit_the_slice_and_the_batch():
    check_mesh((2, 4), SLICE, JOB)
    with pytest.raises(JaxsinkError, match="does not fit the 8 devices"):
        check_mesh((2, 2), SLICE, JOB)
    with pytest.raises(JaxsinkError, match=r"batch of 9 .* take 10"):
        check_mesh((2, 4), SLICE, JOB.replace(batch=9))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt-9", "--tpu", "v5e:2x4"], "there is no checkpoint at gpt-9"),
        (["gpt2", "--tpu", "v9:2x4"], "not a TPU slice"),
        (["gpt2", "--tpu", "v5e:2x4", "--mesh", "8"], "a mesh is two numbers"),
        (["gpt2", "--tpu", "v5e:2x4", "--record", "everything"], "--record: 'everything' is not known"),
        (["gpt2", "--tpu", "v5e:2x4", "--price", "-1"], "price must be a finite number of 0 or more"),
        (["gpt2", "--tpu", "v5e:2x4", "--rows", "8"], "--rows is of an evaluation"),
        (["gpt2", "--tpu", "v5e:2x4", "--setting", "x/gsm8k"], "unknown evaluation setting"),
        (["gpt2", "--tpu", "v5e:2x4", "--setting", f"{AR}/gsm8k/study"], "has learned 1024"),
        (["gpt2", "--tpu", "v5e:2x4", "--setting", "dream-7b-instruct/gsm8k/study"], "has no mask token"),
        ([AR, "--tpu", "v5e:2x4", "--setting", f"{AR}/gsm8k/study", "--batch", "8"], "--batch is of a single run"),
        ([AR, "--tpu", "v5e:2x4", "--setting", f"{AR}/gsm8k/study", "--steps", "8"], "--steps is of a single run"),
        ([AR, "--tpu", "v5e:2x4", "--mesh", "8x1", "--rows", "4"], "--rows 4 is less than the 8 parts"),
        ([AR, "--tpu", "v5e:2x4", "--mesh", "4x1"], "4 x 1 mesh does not fit"),
        ([AR, "--tpu", "v5e:2x4", "--data-file", "x.jsonl"], "--data-file is of one benchmark"),
        (["gpt2", "--tpu", "v5e:2x4", "--gen", "2000"], "more than the 1024"),
        (["gpt2", "--tpu", "v5e:2x4", "--block", "8"], "--block is not for a gpt2 model"),
        (["gpt2", "--tpu", "v5e:2x4", "--mesh", "8x1", "--batch", "3"], "batch of 3"),
        (["gpt2", "--tpu", "v5e:2x4", "--mesh", "3x3"], "3 x 3 mesh does not fit"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, message, capsys, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert main(["plan", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_without_the_compiler_one_sentence_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(tpu, "has_compiler", lambda: False)
    assert main(["plan", "gpt2", "--tpu", "v5e:2x4", "--gen", "16"]) == 2
    error = capsys.readouterr().err
    assert "pip install '.[tpu]'" in error and error.count("\n") == 1
