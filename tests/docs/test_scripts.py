"""The scripts of examples/ and the picture of README.md: each runs as a reader runs it, and says what is promised."""

from __future__ import annotations

import importlib.util
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.paths import ROOT

FOLDER = ROOT / "examples"
PICTURE = ROOT / "docs" / "moving-sink.gif"
# What each script has to print on a built-in model.
PROMISED = {
    "attention_maps": r"maps\.png: 4 heads of (\d+) x \1 tokens",
    "batch_with_padding": r"[1-9]\d* tokens of padding, same text: True, largest difference of .*: [0-9]e-0[5-9]",
    "gsm8k_settings": r"gen_length=256, steps=256, block_length=32(.|\n)*K = 0 +\d+% solved(.|\n)*K = 1, random",
    "compare_checkpoints": r"mini-llada: #### 7(.|\n)*mini-dream: #### 7(.|\n)*compare\.html",
    "eight_devices": r"8 devices(.|\n)*same tokens: True, largest difference of attention: (0e\+00|[0-9]e-0[5-9])",
    "to_pandas": r"committed_at +text +received(.|\n)*tokens that receive most",
}
FILES = {"attention_maps": "maps.png", "compare_checkpoints": "compare.html", "to_pandas": "attention.csv"}

pytestmark = pytest.mark.usefixtures("quick_compilation")


def run(name: str, *arguments: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


def test_every_script_is_listed() -> None:
    listed = re.findall(r"\| \[(\w+)\.py\]\((\w+)\.py\) \|", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert {name for names in listed for name in names} == set(PROMISED) == {path.stem for path in FOLDER.glob("*.py")}


@pytest.mark.parametrize("name", PROMISED)
def test_scripts_are_short(name: str) -> None:
    lines = (FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 25 and f"python examples/{name}.py" in lines[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROMISED)
def test_a_script_runs_on_a_built_in_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(name, folder=tmp_path, monkeypatch=monkeypatch)
    printed = capsys.readouterr().out
    assert re.search(PROMISED[name], printed), printed
    assert [path.name for path in tmp_path.iterdir()] == ([FILES[name]] if name in FILES else [])


@pytest.mark.slow
def test_a_script_takes_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("attention_maps", "mini-dream", "0", folder=tmp_path, monkeypatch=monkeypatch)
    assert "maps.png: 4 heads of" in capsys.readouterr().out
    with Image.open(tmp_path / "maps.png") as picture:
        assert len(np.unique(np.asarray(picture.convert("L")))) > 50


def test_the_picture_is_the_one_that_its_program_draws(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("moving_sink", PICTURE.with_name("moving_sink.py"))
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    program.draw(tmp_path / "new.gif")
    assert PICTURE.stat().st_size < 1_500_000
    with Image.open(PICTURE) as kept, Image.open(tmp_path / "new.gif") as drawn:
        assert kept.n_frames == drawn.n_frames == 32  # pyright: ignore[reportAttributeAccessIssue]
        for frame in (0, 15, 31):
            kept.seek(frame)
            drawn.seek(frame)
            pair = [np.asarray(picture.convert("RGB"), float) for picture in (kept, drawn)]
            assert np.abs(pair[0] - pair[1]).mean() < 1, frame
