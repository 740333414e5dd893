"""Checkpoints with experts: layers of two kinds, tensors that hold several parameters, and numbers that stay float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.checkpoints import (
    assert_refused,
    assert_same,
    config_of,
    converted,
    make,
    random_model,
    run,
    tensors_of,
    write,
)

import jaxsink
from jaxsink.nn.parameters import named_leaves

pytestmark = pytest.mark.usefixtures("quick_compilation")

DENSE_FIRST = {
    "num_hidden_layers": 3,
    "moe_layer_freq": [0, 0, 1],
    "dense_intermediate_size": 28,
    "shared_expert_intermediate_size": 16,
    "moe_router_enable_expert_bias": True,
}


def test_llada_moe_with_dense_layers_shared_expert_and_bias(tmp_path: Path, capsys: Any) -> None:
    source, model = make(tmp_path / "source", "llada_moe", **DENSE_FIRST)
    config = jaxsink.load(source).config
    assert (config.dense_layers, config.dense_width) == (2, 28)
    assert config.experts == jaxsink.Experts(3, 2, bias="weight", shared_width=16)
    converted(capsys, source, tmp_path / "out", "--verify")
    assert_same(jaxsink.load(tmp_path / "out"), jaxsink.load(source))
    names = set(tensors_of(model))
    assert {
        "model.layers.1.mlp.gate_proj.weight",
        "model.layers.2.mlp.gate.weight",
        "model.layers.2.mlp.experts.2.down_proj.weight",
        "model.layers.2.mlp.expert_bias",
        "model.layers.2.shared_expert.up_proj.weight",
    } <= names
    assert "model.layers.2.mlp.gate_proj.weight" not in names and "model.layers.1.mlp.gate.weight" not in names


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("llada_moe", {"moe_layer_freq": [1, 0]}, "'moe_layer_freq' = [1, 0] is not supported"),
        ("llada_moe", {"moe_layer_freq": [0, 0]}, "'moe_layer_freq' = [0, 0] is not supported"),
        ("llada_moe", {"moe_layer_freq": [1, 1, 1]}, "must have 2 entries"),
        ("llada_moe", {"routed_scaling_factor": 2.5}, "'routed_scaling_factor' = 2.5"),
        ("llada_moe", {"moe_router_score_function": "sigmoid"}, "'moe_router_score_function' = 'sigmoid'"),
        ("llada2_moe", {"score_function": "softmax"}, "'score_function' = 'softmax'"),
        ("llada2_moe", {"partial_rotary_factor": 1.5}, "at most 1"),
        ("llada2_moe", {"rotary_dim": 4}, "'rotary_dim' = 4"),
        ("llada2_moe", {"n_group": 3}, "8 experts cannot be chosen from 2 of 3 groups"),
        ("llada2_moe", {"first_k_dense_replace": 3}, "dense_layers 3 must leave"),
        ("llada2_moe", {"use_sliding_window": True}, "'use_sliding_window' = True"),
        ("sdar_moe", {"decoder_sparse_step": 2}, "'decoder_sparse_step' = 2"),
        ("sdar_moe", {"mlp_only_layers": [0]}, "'mlp_only_layers' = [0]"),
    ],
)
def test_what_is_not_computed_is_refused(
    family: str, changes: dict[str, Any], words: str, tmp_path: Path, capsys: Any
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config_of(family, **changes)))
    assert_refused(run(capsys, "inspect", source), tmp_path / "out", words)


def test_the_settings_of_llada2(tmp_path: Path) -> None:
    source, _ = make(tmp_path / "source", "llada2_moe")
    config = jaxsink.load(source).config
    assert (config.attention, config.block_length, config.rotary_dim, config.dense_width) == ("block_causal", 32, 6, 36)
    assert config.experts == jaxsink.Experts(8, 2, True, "sigmoid", "choice", 4, 2, 2.5, shared_width=40)
    assert config.qkv_bias and config.out_bias and config.qk_norm
    single, _ = make(tmp_path / "single", "llada2_moe", num_experts_per_tok=1, num_shared_experts=None)
    experts = jaxsink.load(single).config.experts
    assert experts is not None and not experts.renormalise and experts.shared_width is None
    no_eos, _ = make(tmp_path / "no_eos", "llada2_moe", eos_token_id=None, pad_token_id=7)
    assert jaxsink.load(no_eos).config.eos_ids == (7,)


def test_q_k_and_v_come_from_one_tensor(tmp_path: Path) -> None:
    """All heads of q, then those of k, then those of v; a tensor of another length is named."""
    config = config_of("llada2_moe")
    model = random_model(config)
    tensors = tensors_of(model)
    fused = tensors["model.layers.0.attention.query_key_value.weight"]
    leaves = {name: np.asarray(leaf) for name, leaf in named_leaves(model)[0]}
    parts = [leaves[f"layers.0.attention.{name}.weight"][0] for name in "qkv"]
    assert [len(part) for part in parts] == [40, 20, 20]
    np.testing.assert_array_equal(fused, np.concatenate(parts))
    assert_same(jaxsink.load(write(tmp_path / "good", config, tensors)), model)
    short = tensors | {"model.layers.0.attention.query_key_value.weight": np.ascontiguousarray(fused[:-1])}
    with pytest.raises(jaxsink.JaxsinkError, match=r"\[79, 24\], where the config asks for \[80, 24\]"):
        jaxsink.load(write(tmp_path / "short", config, short))


def test_biases_of_experts_stay_float32(tmp_path: Path, capsys: Any) -> None:
    """They are float32 among bfloat16 weights in the published files; the model is a bfloat16 one all the same."""
    config = config_of("llada2_moe")
    model = random_model(config, "bfloat16")
    tensors = tensors_of(model)
    kinds = {name: value.dtype for name, value in tensors.items() if value.dtype != ml_dtypes.bfloat16}
    assert set(kinds) == {f"model.layers.{n}.mlp.gate.expert_bias" for n in (1, 2)}
    source = write(tmp_path / "source", config, tensors)
    report = converted(capsys, source, tmp_path / "out", "--verify")
    assert report["dtype"] == "bfloat16"
    for path in (source, tmp_path / "out"):
        assert_same(jaxsink.load(path), model)
    assert_same(jaxsink.load(tmp_path / "out", "float32"), model.astype("float32"))
