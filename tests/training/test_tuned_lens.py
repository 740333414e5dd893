"""A tuned lens comes nearer to the last layer than the plain one, and is read from its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import jaxsink
from jaxsink import JaxsinkError, record
from jaxsink.cli.main import main
from jaxsink.training.data import TaskData

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.slow
def test_a_fitted_lens_reads_better(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "mini-llada", "--out", str(tmp_path), "--lens", "--steps", "8", "--batch", "8"]) == 0
    assert "KL to the last layer" in capsys.readouterr().out
    model, data = jaxsink.load("mini-llada"), TaskData()
    texts = data.validation(8)
    masked = np.where(np.arange(data.length) < data.prompt, texts.tokens, model.config.mask_id or 0)
    wanted = {"plain": record.lens(1), "tuned": record.lens(1, tuned=tmp_path / "lens.safetensors")}
    seen = jaxsink.forward(model, masked, texts.real, record=wanted).record
    kl = {name: np.asarray(found["kl"])[:, :, data.prompt :].mean(axis=(1, 2)) for name, found in seen.items()}
    assert (kl["tuned"][:-1] < kl["plain"][:-1]).all() and abs(kl["tuned"][-1]) < 0.1


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(JaxsinkError, match="--objective does not apply"):
        jaxsink.train("mini-llada", tmp_path, lens=True, objective="causal")
    with pytest.raises(JaxsinkError, match="train: steps must be"):
        jaxsink.train("mini-llada", tmp_path, lens=True, steps=0)
    with pytest.raises(JaxsinkError, match=r"is not a file; give the lens.safetensors"):
        record.lens(tuned=tmp_path / "nothing")
    save_file({"change": np.zeros((2, 3))}, tmp_path / "other.safetensors")
    with pytest.raises(JaxsinkError, match="is no tuned lens: it holds change"):
        record.lens(tuned=tmp_path / "other.safetensors")
    (tmp_path / "text").write_text("no lens")
    with pytest.raises(JaxsinkError, match="not a readable safetensors file"):
        record.lens(tuned=tmp_path / "text")
