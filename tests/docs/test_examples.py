"""Every command and code block of every page, of `--help` and of examples/ runs as printed, in a fresh directory."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from support.examples import LEFT_OUT, SUBSTITUTIONS, Example, all_pages
from support.stand_ins import StandIns

from jaxsink.cli.main import main
from jaxsink.evals import settings
from jaxsink.tasks import benchmark_builders, benchmarks
from jaxsink.zoo import presets

ALL = all_pages()
FOR_GPUS = "jaxsink plan … for GPUs"
NEEDS = {
    "jaxsink plan": "libtpu",
    FOR_GPUS: "jax_cuda13_plugin",
    "jaxsink lm-eval": "lm_eval",
}  # extras: .ci/run installs them and runs these pages again
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_compilation")]


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> StandIns:
    return StandIns(tmp_path_factory.mktemp("stand-ins"))


@pytest.fixture(autouse=True)
def workshop(stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of its own, a hub and published files that are here, and answers of 16 tokens to questions without shots."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(stand_ins.folder / "cache"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(stand_ins.folder / "tfds"))
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    monkeypatch.setenv("BROWSER", "true")  # a command that opens nothing
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("JAXSINK_CHECKPOINTS", str(stand_ins.folder / "checkpoints"))
    info = SimpleNamespace(sha="0" * 40, siblings=())
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, name, **_: info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(stand_ins[Path(name).name]))
    files = {"gsm8k": ("gsm8k_train.jsonl", "gsm8k_test.jsonl"), "humaneval": ("HumanEval.jsonl.gz",)}
    known = {
        name: tuple(map(as_published, benchmarks.FILES[name], map(stand_ins.__getitem__, files[name])))
        for name in files
    }
    for module in (benchmarks, benchmark_builders):
        monkeypatch.setattr(module, "FILES", {**benchmarks.FILES, **known})
    if not (stand_ins.folder / "tfds").exists():  # as after a download
        for name, split, file in (("gsm8k", "train", 0), ("gsm8k", "test", 1), ("humaneval", "test", 0)):
            benchmarks.load_benchmark(name, split, stand_ins[files[name][file]])
    for name, setting in settings.SETTINGS.items():
        monkeypatch.setitem(settings.SETTINGS, name, shortened(setting))


@pytest.fixture(autouse=True)
def small_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is planned for has the heads of the published models, but narrow layers: it compiles in seconds."""
    for name, config in presets.PRESETS.items():
        small = config.replace(layers=2, width=256, mlp_width=256, window_layers=None)
        monkeypatch.setitem(presets.PRESETS, name, small)


@pytest.fixture(autouse=True)
def tasks_that_are_here(stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    """lm-eval's own tasks need a network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    if importlib.util.find_spec("lm_eval") is None:
        return
    from lm_eval import tasks

    class Here(tasks.TaskManager):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "include_defaults": False, "include_path": str(stand_ins["tasks"])})

    monkeypatch.setattr(tasks, "TaskManager", Here)


def as_published(file: benchmarks.PublishedFile, path: Path) -> benchmarks.PublishedFile:
    return dataclasses.replace(file, url=path.as_uri(), size=path.stat().st_size, sha256=benchmarks.file_sha256(path))


def shortened(setting: settings.EvalSetting) -> settings.EvalSetting:
    lengths = {"gen_length": 16, "max_new_tokens": 16, "steps": 4, "block_length": 8}
    options = tuple((name, lengths.get(name, value)) for name, value in setting.options)
    return dataclasses.replace(setting, options=options, shots=settings.Shots())


@pytest.mark.parametrize("page", ALL)
def test_the_examples_of(page: str, stand_ins: StandIns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = [example for example in ALL[page] if not example.left_out and not missing(example)]
    stand_ins.provide(tmp_path, "\n".join(example.text for example in examples))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in examples:
        run(example, names)


def missing(example: Example) -> str | None:
    """The package that it needs and that is not installed."""
    if re.search(r"^jaxsink plan .*--gpu|jaxsink\.plan\(.*\bgpu=", example.text, re.MULTILINE):
        return None if importlib.util.find_spec(NEEDS[FOR_GPUS]) else NEEDS[FOR_GPUS]
    wanted = (
        package
        for command, package in NEEDS.items()
        if example.text.startswith(command)
        or f"import {package}" in example.text
        or f"{command.replace(' ', '.')}(" in example.text
    )
    return next((package for package in wanted if importlib.util.find_spec(package) is None), None)


def run(example: Example, names: dict[str, Any]) -> None:
    print(f"$ {example.text}", file=sys.stderr)
    if example.kind == "python":
        exec(compile(example.text, example.page, "exec"), names)
    elif example.text.startswith("jaxsink ") and not re.search(r"[|<>&;$*]", example.text):
        try:
            code = main(shlex.split(example.text)[1:])
        except SystemExit as end:
            code = end.code
        assert not code, example.printed
    elif example.text.startswith("python examples/"):  # in this process, where the hub's models are stand-ins
        words = shlex.split(example.text)[1:]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words)
            runpy.run_path(words[0], run_name="__main__")
    else:
        subprocess.run(["bash", "-euo", "pipefail", "-c", example.text], check=True, timeout=300)


def test_what_is_declared_is_used() -> None:
    """A substitution or an exception that no example needs any more would hide the next one."""
    printed = [example.printed for examples in ALL.values() for example in examples if example.kind == "shell"]
    for pattern, *_, why in (*SUBSTITUTIONS, *LEFT_OUT):
        assert any(re.search(pattern, text) for text in printed) or "--steps 2" in pattern, (pattern, why)
