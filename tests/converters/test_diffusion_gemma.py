"""DiffusionGemma is refused; what docs/diffusion-gemma.md says of it gives the original's numbers and texts."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.checkpoints import assert_refused, run
from support.golden import golden
from support.paths import GOLDEN
from support.reference.diffusion_gemma import SlowGemma, slow_generate

import jaxsink
from jaxsink import JaxsinkError

FOLDER = GOLDEN / "diffusion_gemma_tiny"


@pytest.mark.parametrize("command", ["convert", "inspect"])
def test_it_is_refused_with_a_place_to_read_on(command: str, tmp_path: Path, capsys: Any) -> None:
    target = [tmp_path / "out"] if command == "convert" else []
    result = run(capsys, command, FOLDER, *target)
    assert_refused(result, tmp_path / "out", "DiffusionGemmaForBlockDiffusion", "docs/diffusion-gemma.md")
    with pytest.raises(JaxsinkError, match=r"no mask token.*docs/diffusion-gemma\.md"):
        jaxsink.load(FOLDER)


@cache
def slow() -> SlowGemma:
    config = json.loads((FOLDER / "config.json").read_text())["text_config"]
    return SlowGemma(config, load_file(FOLDER / "model.safetensors"))


@pytest.mark.parametrize("case", ["fwd", "fwd_selfcond", "fwd_pad_left"])
def test_one_pass_is_encoder_and_decoder(case: str) -> None:
    expected = golden("diffusion_gemma_tiny").case(case)
    for n, (prompt, canvas) in enumerate(zip(expected["input_ids"], expected["canvas_ids"], strict=True)):
        before = expected["self_conditioning_logits"][n] if "self_conditioning_logits" in expected else None
        real = expected["attention_mask"][n].astype(bool) if "attention_mask" in expected else None
        logits, maps, hidden = slow().run(prompt, canvas, before, real)
        np.testing.assert_allclose(logits, expected["logits"][n], atol=1e-4, rtol=0)
        if case != "fwd":
            continue
        start = len(prompt)
        np.testing.assert_allclose(maps[:, :, :start, :start], expected["encoder_attn_probs"][:, n], atol=1e-5)
        np.testing.assert_allclose(hidden[:start], expected["encoder_last_hidden_state"][n], atol=1e-4)
        for layer in range(3):
            theirs = expected[f"decoder_attn_probs_layer{layer}"][n]  # without the keys that its cache has lost
            ours = maps[layer, :, start:]
            np.testing.assert_allclose(ours[..., -theirs.shape[-1] :], theirs, atol=1e-5)
            assert (ours[..., : -theirs.shape[-1]] == 0).all()


@pytest.mark.parametrize("case", ["gen_bound2", "gen_greedy"])
def test_texts_of_the_original(case: str) -> None:
    fixture = golden("diffusion_gemma_tiny")
    expected = fixture.case(case)
    text, canvases = slow_generate(
        slow(), expected["prompt"][0].tolist(), fixture.meta["cases"][case], list(expected["random_canvases"][:, 0])
    )
    np.testing.assert_array_equal(canvases, expected["step_canvases"][:, 0])
    assert text == expected["output"][0].tolist()
