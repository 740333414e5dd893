"""`jaxsink doctor`: a machine that computes right is told so, one that does not is found, and nothing crashes it."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
import pytest

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.cli.main import main
from jaxsink.health import backends, doctor
from jaxsink.health.reference import make_layer
from jaxsink.nn.attention import BACKENDS
from jaxsink.nn.backends import naive
from jaxsink.nn.kernels.gpu import on_gpu_device

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the interpreted kernels, which have tests of their own."""
    monkeypatch.setattr(backends, "BACKENDS", {name: BACKENDS[name] for name in ("naive", "blocked")})
    monkeypatch.setattr(backends, "INTERPRETED", {})


@pytest.mark.usefixtures("few")
def test_the_command_prints_what_the_function_returns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = jaxsink.doctor()
    assert found.passed and printed["passed"]
    changing = {"seconds", "line"}
    assert {k: v for k, v in printed.items() if k not in changing} == {
        k: v for k, v in json.loads(json.dumps(found.to_dict())).items() if k not in changing
    }
    assert {(one["backend"], one["dtype"]) for one in printed["checks"]} == {
        (backend, dtype) for backend in ("naive", "blocked") for dtype in ("float32", "bfloat16")
    }
    for one in printed["checks"]:
        assert 0 < one["sums"] < 1e-6 and one["outputs"] < (1e-6 if one["dtype"] == "float32" else 1e-2)
    assert printed["versions"]["jax"] == jax.__version__ and jax.__version__ in printed["line"]
    assert "all right" in printed["line"] and "\n" not in printed["line"]
    assert main(["doctor", "--seconds", "0"]) == 0
    out = capsys.readouterr().out
    assert out.count("not run: time was over") == 2 and out.strip().splitlines()[-1].startswith(
        "jaxsink doctor: all right"
    )


@pytest.mark.parametrize("kernel", ["pallas", "pallas-gpu"])
def test_the_kernels_are_checked_too(kernel: str) -> None:
    check = backends.check_backend(kernel, "float32", make_layer("float32", 24, 16))
    assert check.passed and check.sums is not None and 0 < check.sums < 1e-6


def test_both_kernels_are_interpreted_where_there_is_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(backends.backends_here()) == [*BACKENDS, "pallas-gpu"]
    for device in ("on_tpu", "has_tensor_cores"):
        with monkeypatch.context() as patch:
            patch.setattr(backends, device, lambda mesh: True)
            assert list(backends.backends_here()) == list(BACKENDS)


def test_a_wrong_gpu_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_key_off(*given: Any, **settings: Any) -> Any:
        out, columns = on_gpu_device(*given, **settings)
        return out, columns.at[1, 2, 0, 7].add(0.01)

    monkeypatch.setattr(backends, "on_gpu_device", one_key_off)
    check = backends.check_backend("pallas-gpu", "float32", make_layer("float32", 24, 16))
    assert not check.passed and check.why == "too far from float64"


def off_by_a_little(tap: Any, recorders: Any) -> Any:
    """One key of 24 receives one percent more."""
    out, (sums,) = naive(tap, recorders)
    return out, ({kind: x.at[1, 2, 7].multiply(1.01) for kind, x in sums.items()},)


def outputs_of_another_head(tap: Any, recorders: Any) -> Any:
    out, sums = naive(tap, recorders)
    return out[:, :, ::-1], sums


def not_a_number(tap: Any, recorders: Any) -> Any:
    out, sums = naive(tap, recorders)
    return out.at[1, 3, 0, 0].set(np.nan), sums


def fails(tap: Any, recorders: Any) -> Any:
    raise RuntimeError("XLA says no\nand more")


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (off_by_a_little, "too far from float64"),
        (outputs_of_another_head, "too far from float64"),
        (not_a_number, "too far from float64"),
        (fails, "RuntimeError: XLA says no"),
    ],
)
def test_a_backend_that_is_wrong_is_found(
    backend: Any, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backends, "BACKENDS", {"odd": backend})
    monkeypatch.setattr(backends, "INTERPRETED", {})
    monkeypatch.setattr(backends, "TOLERANCES", {"float32": backends.TOLERANCES["float32"]})
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert f"WRONG: {message}" in out and "NOT RIGHT" in out.splitlines()[-1] and message in out.splitlines()[-1]


def test_an_extra_without_its_device_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "is_installed", lambda extra: extra == "cuda")
    (note,) = doctor.notes_on(doctor.find_devices())
    assert "the extra `cuda` is installed, and JAX runs on cpu" in note and "JAX_PLATFORMS=cuda" in note
    monkeypatch.setattr(doctor, "is_installed", lambda extra: False)
    assert doctor.notes_on(doctor.find_devices()) == []
    old = doctor.Device("NVIDIA T4", "gpu", "7.5", 15 << 30)
    assert str(old) == "NVIDIA T4 (sm_75, 15.0 GiB)"
    assert "8.0 or more" in doctor.notes_on((old,))[0]


def test_no_device_at_all_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> None:
        raise RuntimeError("Unable to initialize backend 'cuda'\nmore")

    monkeypatch.setattr(jax, "local_devices", nothing)
    with pytest.raises(
        JaxsinkError, match=r"no device to run on \(Unable to initialize backend 'cuda'\); JAX_PLATFORMS=cpu"
    ):
        jaxsink.doctor()
