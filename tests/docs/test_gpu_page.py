"""The page on GPUs is written from the committed results of the GPU compiler, and claims no more than they say."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.paths import ROOT

from jaxsink.planner.gpu import CHIPS, LOOKED_UP, MULTIPROCESSORS, REGISTERS

FOUND = importlib.util.spec_from_file_location("gpu_page", ROOT / "docs" / "gpu.py")
assert FOUND is not None and FOUND.loader is not None
gpu_page = importlib.util.module_from_spec(FOUND)
FOUND.loader.exec_module(gpu_page)


def test_the_page_is_as_the_program_writes_it() -> None:
    text = gpu_page.PAGE.read_text(encoding="utf-8")
    assert text == gpu_page.page(text), "python docs/gpu.py"


def test_the_kernel_fits_every_chip_and_holds_no_map() -> None:
    kernel = [one for one in gpu_page.read("gpu_kernel.json") if one["backend"] == "pallas"]
    assert {one["capability"] for one in kernel} == set(MULTIPROCESSORS) == set(gpu_page.SHARED)
    for one in kernel:
        room = MULTIPROCESSORS[one["capability"]].shared_of_block
        assert room == gpu_page.SHARED[one["capability"]] * 1024 and one["maps"] == 0
        check_programs(one["programs"], room)


def check_programs(programs: dict[str, dict[str, int]], room: int) -> None:
    """Kernels within the registers and the shared memory of a chip."""
    assert programs
    for program in programs.values():
        assert program["shared bytes"] <= room and program["spilled bytes"] == 0
        assert program["registers"] * program["threads"] <= REGISTERS and program["registers"] <= 255


def test_the_samplers_fit_their_budgets_and_hold_no_map() -> None:
    found = gpu_page.read("gpu_compile.json")
    compiled = {(one["gpu"], one["dtype"]) for one in found if one["model"] == "llada-8b-instruct"}
    assert {("h100", "bfloat16"), ("h100:8", "bfloat16"), ("rtx4090", "int8")} <= compiled
    assert [1, 8] in [one["asked_mesh"] for one in found if one["budget"] is not None]
    for one in found:
        chip = CHIPS[one["gpu"].split(":")[0]]
        assert one["maps"] == 0 and one["kernels"] >= 1 and one["hbm_per_device"] == chip.hbm
        check_programs(one["programs"], MULTIPROCESSORS[chip.capability].shared_of_block)
        if one["budget"] is not None:
            assert one["fits"] and one["needed_per_device"] <= one["budget"] * gpu_page.GIB


def test_every_gpu_stands_with_its_source() -> None:
    text = gpu_page.PAGE.read_text(encoding="utf-8")
    for chip in CHIPS.values():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| {chip.name} |") and chip.sheet in line]
        assert row.endswith(f"| {chip.sheet}, {LOOKED_UP} |")


def test_no_time_is_given_where_experts_are_dense() -> None:
    """The roofline counts the selected experts only."""
    _, _, after = gpu_page.tables().partition("### Time")
    times, _, _ = after.partition("### The kernel")
    assert "llada-8b-instruct" in times and "llada2.0-mini" not in times


@pytest.mark.parametrize("asked", [True, False])
def test_the_gpu_step_of_ci_is_reached_where_it_is_asked_for(asked: bool, tmp_path: Path) -> None:
    """Its last step with programs that only say how they are called; the job of CI runs the same script."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    step = script[script.index('say "compile for GPU"') : script.index('say "done"')]
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "gpu", tmp_path / ".ci")
    for name in ("pip", "python"):
        program = tmp_path / ".venv" / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\necho {name} "$@"\n')
        program.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "JAXSINK_CI_CUDA"}
    said = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"say() {{ :; }}\n{step}"],
        cwd=tmp_path, env=environment | ({"JAXSINK_CI_CUDA": "1"} if asked else {}),
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    if asked:
        assert said.startswith("pip install --quiet .[cuda]\n") and "skipped" not in said
        assert "python benchmarks/gpu_compile.py --check\n" in said and "tests/planner/test_gpu_compile.py" in said
    else:
        assert said.startswith("skipped: ") and said.count("\n") == 1
    assert "- run: bash .ci/gpu python\n" in (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")


def test_a_report_of_a_bug_has_the_line_that_the_page_asks_for() -> None:
    asked = (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text(encoding="utf-8")
    assert "The last line that `jaxsink doctor` prints" in asked and "--version" not in asked
    assert "Paste the last line of `jaxsink doctor` into an issue" in gpu_page.PAGE.read_text(encoding="utf-8")
