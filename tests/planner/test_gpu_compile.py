"""Planning with XLA's GPU compiler (extra `cuda`)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import jax
import pytest

import jaxsink
from jaxsink.cli.main import main
from jaxsink.planner.gpu import has_compiler

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs JAX's CUDA plugin (extra `cuda`)")


@pytest.fixture(autouse=True)
def planning(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that plans sets its environment; tests put it back."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]


def test_a_plan_of_a_diffusion_model_runs_the_kernel_and_fits(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "mini-llada --gpu h100 rtx4090:2 --gen 16 --prompt 16 --batch 4 --no-search --json"
    assert main(["plan", *arguments.split()]) == 0
    one, two = json.loads(capsys.readouterr().out)["plans"]
    assert one["fits"] and two["fits"]
    assert (one["gpu"], one["mesh"], one["devices"]) == ("h100", {"data": 1, "model": 1}, 1)
    assert one["collectives_per_step"] == {} and two["mesh"] == {"data": 2, "model": 1}
    parameters = sum(x.size for x in jax.tree.leaves(jaxsink.abstract(jaxsink.load("mini-llada").config)))
    assert one["memory_per_device"]["weights"] == 2 * parameters
    fast, slow = one["step_seconds"]["range"]
    assert fast < one["step_seconds"]["total"] < slow


def test_the_program_of_a_gpu_calls_the_kernel_twice_in_a_layer() -> None:
    planned = jaxsink.plan("mini-llada", gpu="l4", batch=2, prompt=16, gen=16, record="by_query", search=False)
    text = planned.runs[0].compiled.text
    assert text is not None
    assert text.count('custom_call_target="__gpu$xla.gpu.triton"') == 2  # in the loop over layers
