"""Planning for GPUs, as far as it needs no compiler: names, chips, times from the roofline, mistakes."""

from __future__ import annotations

import json
import math

import jax
import pytest

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.cli.main import main
from jaxsink.cli.plan_tables import between, small
from jaxsink.planner import evaluation, gpu, here, planner, timing
from jaxsink.planner.compile import Compiled, Memory
from jaxsink.planner.gpu import CHIPS, MULTIPROCESSORS, SHEETS, parse_gpus
from jaxsink.planner.job import Job
from jaxsink.planner.plan import find_topologies
from jaxsink.planner.roofline import roofline
from jaxsink.planner.topology import GIB

H100 = CHIPS["h100"]
EIGHT = parse_gpus("h100:8")
JOB = Job(jaxsink.preset("llada-8b-instruct"), jaxsink.LLaDASampler(256, 256, 32), batch=64, prompt=256)


def test_gpus_have_names_and_counts() -> None:
    assert (EIGHT.name, EIGHT.chip, EIGHT.chips, EIGHT.devices) == ("h100:8", H100, 8, 8)
    assert parse_gpus("h100").name == parse_gpus("h100:1").name == "h100"
    assert parse_gpus("RTX4090").chip.name == "rtx4090"
    assert [t.chip.accelerator for t in find_topologies("v5e:2x4", ["l4", "l4", "h100:2"])] == ["tpu", "gpu", "gpu"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h1000", "did you mean h100"),
        ("a100", "did you mean a100-80g or a100-40g"),
        ("4090", "did you mean rtx4090"),
        ("titan", "there are b200, h200, h100"),
        ("h100:", "not a GPU we know"),
        ("h100:2x4", "not a GPU we know"),
        ("h100:0", "on one host, 1 to 8 of them, such as h100:8"),
        ("h100:16", "on one host"),
        ("", "there are"),
    ],
)
def test_unknown_gpus_are_one_sentence_with_what_was_meant(name: str, message: str) -> None:
    with pytest.raises(JaxsinkError, match=message):
        parse_gpus(name)


def test_every_chip_is_described_to_the_compiler_with_what_it_has() -> None:
    for chip in CHIPS.values():
        has, text = MULTIPROCESSORS[chip.capability], chip.target()
        major, minor = chip.capability.split(".")
        assert f"cuda_compute_capability {{ major: {major} minor: {minor} }}" in text
        for part in (
            f"core_count: {chip.cores} ",
            f"device_memory_size: {chip.memory} ",
            f"shared_memory_per_core: {has.shared}",
            f'device_description_str: "{chip.device}"',
        ):
            assert part in text
        assert has.shared_of_block < has.shared and chip.hbm == pytest.approx(0.95 * chip.memory)
        ridge = chip.flops / chip.bandwidth  # products per byte at which both limits meet
        assert 50 < ridge < 450


def test_every_chip_names_the_document_with_its_figures() -> None:
    assert {chip.sheet for chip in CHIPS.values()} == set(SHEETS.values())
    assert all(chip.sheet.startswith("NVIDIA ") for chip in CHIPS.values())
    of_ampere = [name for name, chip in CHIPS.items() if "GA102" in chip.sheet]
    assert of_ampere == [name for name, chip in CHIPS.items() if chip.capability == "8.6"]


def test_geforce_cards_send_through_the_host_at_half_of_pcie() -> None:
    pcie = {
        "8.6": 32e9,
        "8.9": 32e9,
        "12.0": 64e9,
    }  # x16 in one direction: PCIe 4 of Ampere and Ada, PCIe 5 of Blackwell
    for name, chip in CHIPS.items():
        if chip.capability in pcie:
            assert chip.link == pcie[chip.capability] / (2 if name.startswith("rtx") else 1), name
        else:
            assert chip.link >= 300e9, name  # NVLink
    assert sum(name.startswith("rtx") for name in CHIPS) == 3


def test_a_step_lies_between_two_shares_of_the_roofline() -> None:
    found = timing.Timing(collective=0.01).within(0.04, (0.8, 0.4))
    assert found.range == (pytest.approx(0.05), pytest.approx(0.11))
    assert found.total == pytest.approx(math.sqrt(0.05 * 0.11))
    slow_link = timing.Timing(collective=0.3).within(0.04, (0.8, 0.4))
    assert slow_link.range == (pytest.approx(0.3), pytest.approx(0.4)) and slow_link.modelled >= 0
    assert json.loads(json.dumps(found.to_dict()))["range"] == list(found.range)


def test_gpus_send_over_all_links_at_once_and_the_compilers_cycles_are_not_asked_for() -> None:
    seconds, moved = timing.ring("all-reduce", 8e9, 8, H100)
    assert (seconds, moved) == (pytest.approx(14e9 / 450e9 + 14 * H100.hop), 14e9)
    assert timing.ring("all-reduce", 8e9, 2, H100)[0] == pytest.approx(8e9 / 450e9 + 2 * H100.hop)


class CompilerFor:
    """A stand-in: a loop over steps with one all-reduce of 4 MiB, and cycles that a GPU's compiler would never give."""

    devices = jax.devices()

    def __init__(self, topology: object) -> None:
        self.topology = topology

    def mesh(self, data: int, model: int) -> None:
        return None

    def weight_bytes(self, job: Job, data: int, model: int) -> float:
        return 16e9 / model

    read_bytes = weight_bytes

    def compile(self, job: Job, data: int, model: int) -> Compiled:
        text = """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
}
%body (s: f32[1048576]) -> f32[1048576] {
  %s = f32[1048576] parameter(0)
  %work = f32[1048576] fusion(%s), kind=kLoop, calls=%f, backend_config={"estimated_cycles":"99999999999"}
  %start = f32[1048576] all-reduce-start(%work), replica_groups=[1,8]<=[8], to_apply=%add
  ROOT %done = f32[1048576] all-reduce-done(%start)
}
%going (s.1: f32[1048576]) -> pred[] {
  %s.1 = f32[1048576] parameter(0)
  ROOT %less = pred[] compare(%s.1, %s.1), direction=LT
}
ENTRY %main (t: f32[1048576]) -> f32[1048576] {
  %t = f32[1048576] parameter(0)
  ROOT %loop = f32[1048576] while(%t), condition=%going, body=%body
}
"""
        needed = (15 + job.batch / data / 8) * GIB
        read = self.read_bytes(job, data, model)
        return Compiled(
            job, EIGHT, (data, model), needed, 1.0, Memory(15 * GIB, 0, 0, needed - 15 * GIB, 0), text, read
        )


def test_a_plan_has_the_collectives_of_the_program_and_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "Compiler", CompilerFor)
    plan = planner.make_plan(JOB, EIGHT, (8, 1), search=True)
    found = json.loads(json.dumps(plan.to_dict()))
    assert (found["gpu"], found["fits"], found["collectives_per_step"]) == ("h100:8", True, {"all-reduce": 1})
    limit = roofline(JOB, EIGHT, 16e9).limit
    collective = 2 * 7 / 8 * 4 * (1 << 20) / 450e9 + 14 * H100.hop
    fast, slow = limit / 0.65, limit / 0.25 + collective
    assert found["step_seconds"]["range"] == [pytest.approx(fast), pytest.approx(slow)]
    assert found["step_seconds"]["total"] == pytest.approx(math.sqrt(fast * slow))
    assert found["step_seconds"]["compiler"] == 0
    assert 64 * 0.8 * (0.95 * 79.1 - 15) < found["largest_batch"] <= 64 * (0.95 * 79.1 - 15)
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=.95" in " ".join(found["suggestions"])


def test_a_single_run_costs_its_steps_at_both_ends_of_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "Compiler", CompilerFor)
    run = planner.make_plan(JOB, EIGHT, (8, 1), search=False)
    assert run.timing is not None and run.timing.range is not None and run.hours is not None
    fast, slow = run.timing.range
    assert (run.hours.fast, run.hours.slow) == (pytest.approx(256 * fast / 3600), pytest.approx(256 * slow / 3600))
    assert run.hours.estimate == pytest.approx(256 * run.timing.total / 3600)
    decoding = JOB.replace(config=jaxsink.preset("llama-3.1-8b-instruct"), sampler=jaxsink.ARSampler(256))
    cached = planner.make_plan(decoding, EIGHT, (8, 1), search=False)
    assert cached.timing is not None and cached.hours is not None
    prefill = decoding.prefill_flops / (0.5 * 8 * 989.4e12)
    assert cached.hours.estimate == pytest.approx((256 * cached.timing.total + prefill) / 3600) and prefill > 0


def test_the_command_says_what_a_single_run_costs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(planner, "Compiler", CompilerFor)
    words = ["plan", "llada-8b-instruct", "--gpu", "h100:8", "--batch", "64", "--mesh", "8x1", "--no-search"]
    found = []
    for price, more in ((2.99, []), (2.0, ["--price", "2"])):
        assert main([*words, *more, "--json"]) == 0
        planned = json.loads(capsys.readouterr().out)
        (run,), (total,) = planned["plans"], planned["totals"]
        assert (total["gpu"], total["price_per_chip_hour"], total["hours"]) == ("h100:8", price, run["hours"])
        assert total["dollars"] == {name: pytest.approx(8 * price * hours) for name, hours in run["hours"].items()}
        found.append([total["dollars"][f"at_{share}_percent_mfu"] for share in (65, 25)])
    for (low, high), more in zip(found, ([], ["--price", "2"]), strict=True):
        assert main([*words, *more]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert f"dollars {low:.2g} to {high:.2g} per chip and hour {'2' if more else '2.99'} " in printed
        assert "(65-25 %)" in printed and "loading and compiling not at all" in printed
        assert ("Prices per hour are of 2025, an assumption" in printed) is not bool(more)


def test_hours_and_dollars_of_small_runs_are_readable() -> None:
    assert [small(value) for value in (0.0, 1e-5, 0.00123, 0.456, 9.4, 12.3, 1234.5)] == [
        *("0", "< 0.001", "0.0012", "0.46", "9.4", "12", "1234"),
    ]
    assert between([3.0, 1e-6, 0.5]) == "< 0.001 to 3" and between([1e-6, 1e-5]) == "< 0.001"


def test_a_plan_of_experts_says_that_the_compiler_takes_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "Compiler", CompilerFor)
    job = JOB.replace(config=jaxsink.preset("llada2.0-mini"), sampler=jaxsink.LLaDA2Sampler(256))
    said = " ".join(planner.make_plan(job, EIGHT, (8, 1), search=False).suggestions)
    assert "each of a token's 8 choices with all 256 experts" in said
    assert "experts" not in " ".join(planner.make_plan(JOB, EIGHT, (8, 1), search=False).suggestions)


def test_the_command_plans_evaluations_on_gpus(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(evaluation, "Compiler", CompilerFor)
    words = ["--setting", "llada-8b-instruct/gsm8k/study", "--rows", "64", "--mesh", "8x1", "--no-search"]
    assert main(["plan", "llada-8b-instruct", "--gpu", "h100:8", *words]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for part in ("(65-25 % MFU)", "Of GPUs:", "nothing was measured", "at $2.99 per chip and hour"):
        assert part in printed
    assert "compiler's estimate)" not in printed and "Of TPUs" not in printed and "is published" not in printed
    assert main(["plan", "llada-8b-instruct", "--gpu", "h100:8", *words, "--price", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (total,) = found["totals"]
    assert total["gpu"] == "h100:8"
    assert list(total["hours"]) == ["roofline_estimate", "at_65_percent_mfu", "at_25_percent_mfu"]
    assert total["dollars"]["at_25_percent_mfu"] == pytest.approx(16 * total["hours"]["at_25_percent_mfu"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt2", "--gpu", "h1000", "--gen", "16"], "did you mean h100"),
        (["gpt2", "--gen", "16"], "say for what to plan"),
        (
            ["gpt2", "--gpu", "h100:8", "--mesh", "3x3", "--gen", "16"],
            "3 x 3 mesh does not fit the 8 devices of h100:8",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert main(["plan", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_without_the_compiler_one_sentence_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(gpu, "has_compiler", lambda: False)
    assert main(["plan", "gpt2", "--gpu", "h100", "--gen", "16"]) == 2
    error = capsys.readouterr().err
    assert "the GPU compiler (but no GPU)" in error and "pip install '.[cuda]'" in error


def test_devices_that_are_here_have_their_chips_figures() -> None:
    assert here.chip_of("NVIDIA H100 80GB HBM3") == H100
    assert here.chip_of("NVIDIA GeForce RTX 4090").name == "rtx4090"
    assert here.chip_of("NVIDIA L40S").name == "l40s" and here.chip_of("NVIDIA L4").name == "l4"
    assert here.chip_of("TPU v5 lite").name == "v5e" and here.chip_of("TPU v5p").name == "v5p"
    assert here.chip_of("AMD Instinct MI300X").name == "a100-80g"  # only ratios matter there
