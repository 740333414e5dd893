"""Live parity with PyTorch: models that `transformers` itself saved, through `jaxsink convert --verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import converted

import jaxsink

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 5e-6  # on float32 logits of about 2; a norm's epsilon that is wrong by 1e-5 shows as 1e-4
SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, biases, head size": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 10}),
    "llama, linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "llama, llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama, yarn, all settings": (
        "Llama",
        {"rope_parameters": {**YARN, "beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 1.3}},
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral, window": ("Mistral", {"sliding_window": 7}),
    "qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2, yarn": ("Qwen2", {"rope_parameters": YARN}),
    "qwen2, window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen2, window, types": (
        "Qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen3, tied, biases": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True}),
    "qwen3, window": (
        "Qwen3",
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2},
    ),
    "gpt2": ("GPT2", {"activation_function": "gelu_new"}),
    "gpt2, untied": ("GPT2", {"activation_function": "gelu", "tie_word_embeddings": False, "n_inner": 60}),
}


def reference(kind: str, changes: dict[str, Any]) -> Any:
    """A PyTorch model with random norms and biases too."""
    torch.manual_seed(0)
    if kind == "GPT2":
        sizes = {"vocab_size": 97, "n_embd": 48, "n_head": 6, "n_layer": 3, "n_positions": 64, "initializer_range": 0.1}
        config = transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2, **changes)
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = getattr(transformers, f"{kind}Config")(**SIZES | changes)
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.add_(0.2 * torch.randn_like(weight))
            assert weight.ndim == 1 or float(weight.std()) > 0.03, name
    return model.eval()


@pytest.mark.parametrize("case", CASES)
def test_models_that_transformers_saved(case: str, tmp_path: Path, capsys: Any) -> None:
    reference(*CASES[case]).save_pretrained(tmp_path / "source")
    report = converted(capsys, tmp_path / "source", tmp_path / "out", "--verify")
    assert report["verified"]["difference"] < TOLERANCE, report


def test_longer_than_what_verify_compares(tmp_path: Path, capsys: Any) -> None:
    """The comparison itself, done here and not by --verify."""
    model = reference("Mistral", {"sliding_window": 7, "rope_parameters": YARN})
    model.save_pretrained(tmp_path / "source")
    converted(capsys, tmp_path / "source", tmp_path / "out")
    tokens = np.random.default_rng(1).integers(0, 97, (2, 90))
    with torch.no_grad():
        theirs = model(torch.from_numpy(tokens)).logits.numpy()
    ours = np.asarray(jaxsink.forward(jaxsink.load(tmp_path / "out"), tokens).logits)
    assert np.abs(theirs).max() > 1  # logits that say something
    np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, rtol=0)


def test_files_of_older_transformers(tmp_path: Path, capsys: Any) -> None:
    """rope_theta and rope_scaling as keys of their own, `torch_dtype`, and shards."""
    model = reference("Llama", {"rope_parameters": LLAMA3})
    model.save_pretrained(tmp_path / "source", max_shard_size="20KB")
    path = tmp_path / "source" / "config.json"
    config = json.loads(path.read_text())
    config["rope_scaling"] = {key: value for key, value in config.pop("rope_parameters").items() if key != "rope_theta"}
    config["rope_theta"] = 500.0
    config["torch_dtype"] = config.pop("dtype", "float32")
    path.write_text(json.dumps(config))
    assert len(list(path.parent.glob("*.safetensors"))) > 3
    report = converted(capsys, path.parent, tmp_path / "out", "--verify")
    assert report["verified"]["difference"] < TOLERANCE


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounded_weights_are_compared_with_rounded_weights(dtype: str, tmp_path: Path, capsys: Any) -> None:
    model = reference("Qwen2", {}).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path / "source")
    report = converted(capsys, tmp_path / "source", tmp_path / "out", "--verify")
    assert report["dtype"] == dtype
    assert report["verified"]["difference"] < TOLERANCE


def test_a_wrong_reading_of_a_setting_is_found(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """If our table misread the rotary base, --verify says so and nothing is left."""
    import dataclasses

    import jaxsink_converters.plan as plan
    from support.checkpoints import assert_refused, run

    reference("Llama", {}).save_pretrained(tmp_path / "source")
    original = plan.family_of

    def misread(config: Any, where: str) -> Any:
        family = original(config, where)
        return dataclasses.replace(family, configure=lambda s: family.configure(s).replace(rope_theta=9000.0))

    monkeypatch.setattr(plan, "family_of", misread)
    result = run(capsys, "convert", tmp_path / "source", tmp_path / "out", "--verify")
    assert_refused(result, tmp_path / "out", "logits differ from PyTorch's")


def test_what_transformers_cannot_run_is_said(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    import jaxsink_converters.verify as verify

    reference("Llama", {}).save_pretrained(tmp_path / "source")
    monkeypatch.setattr(verify, "free_memory", lambda: 1000.0)
    report = converted(capsys, tmp_path / "source", tmp_path / "out", "--verify")
    assert "memory" in report["verified"]["logits"]

    def refuse(*arguments: object) -> None:
        raise ValueError("no such thing\nand more")

    monkeypatch.undo()
    monkeypatch.setattr(verify, "torch_logits", refuse)
    report = converted(capsys, tmp_path / "source", tmp_path / "out2", "--verify")
    assert report["verified"] == {
        "tensors": 30,
        "logits": "not compared: transformers does not run this checkpoint (no such thing)",
    }
