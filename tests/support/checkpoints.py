"""Tiny Hugging Face checkpoints for the converter's tests: random models, written by inverting the family's table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jaxsink_converters.families import FAMILIES, family_of
from jaxsink_converters.plan import rule_of
from jaxsink_converters.table import From
from safetensors.numpy import save_file

import jaxsink
from jaxsink.checkpoints.streaming import is_layered
from jaxsink.cli.main import main
from jaxsink.nn.parameters import named_leaves

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}

# config.json of one tiny model per family; all sizes differ, so that mixed-up axes cannot hide.
_SHARED = {"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 4, "vocab_size": 50, "eos_token_id": 3}
_DECODER = {
    **_SHARED,
    "num_key_value_heads": 2,
    "intermediate_size": 36,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "rope_theta": 500.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
_OLMO = {
    "d_model": 24,
    "n_heads": 4,
    "n_kv_heads": 4,
    "n_layers": 2,
    "mlp_hidden_size": 36,
    "vocab_size": 50,
    "embedding_size": 50,
    "weight_tying": False,
    "rope": True,
    "rope_theta": 500.0,
    "rms_norm_eps": 1e-5,
    "block_type": "llama",
    "layer_norm_type": "rms",
    "activation_type": "silu",
    "include_bias": False,
    "include_qkv_bias": False,
    "max_sequence_length": 64,
    "mask_token_id": 40,
    "eos_token_id": 3,
    "pad_token_id": 3,
}
_DIT = {"n_blocks": 2, "hidden_dim": 24, "n_heads": 4, "vocab_size": 50, "cond_dim": 9, "model_length": 64}
CONFIGS: dict[str, dict[str, Any]] = {
    "llada": {"architectures": ["LLaDAModelLM"], "model_type": "llada", **_OLMO},
    "mmada": {"architectures": ["MMadaModelLM"], "model_type": "mmada", **_OLMO, "llm_vocab_size": 44},
    "llada_moe": {
        "architectures": ["LLaDAMoEModelLM"],
        "model_type": "llada",
        **_DECODER,
        "num_key_value_heads": 4,
        "intermediate_size": ...,
        "num_experts": 3,
        "num_experts_per_tok": 2,
        "expert_intermediate_size": 20,
        "qk_layernorm": True,
        "norm_topk_prob": None,
        "mask_token_id": 40,
        "moe_layer_freq": [1, 1],
        "partial_rotary_factor": 1,
    },
    "llada2_moe": {
        "architectures": ["LLaDA2MoeModelLM"],
        "model_type": "llada2_moe",
        **_DECODER,
        "num_hidden_layers": 3,
        "head_dim": 10,
        "partial_rotary_factor": 0.6,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 20,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 4,
        "topk_group": 2,
        "num_shared_experts": 2,
        "use_bias": True,
        "use_qkv_bias": True,
        "mask_token_id": 40,
    },
    "sdar_moe": {
        "architectures": ["SDARMoeForCausalLM"],
        "model_type": "sdar_moe",
        **_DECODER,
        "head_dim": 10,
        "mask_token_id": 40,
        "num_experts": 3,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 20,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "dream": {
        "architectures": ["DreamModel"],
        "model_type": "Dream",
        **_DECODER,
        "mask_token_id": 40,
        "use_mrope": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 2,
    },
    "sdar": {
        "architectures": ["SDARForCausalLM"],
        "model_type": "sdar",
        **_DECODER,
        "head_dim": 10,
        "block_size": 4,
        "mask_token_id": 40,
        "attention_bias": False,
    },
    "fast_dllm": {
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "model_type": "Fast_dLLM_Qwen",
        **_DECODER,
        "bd_size": 4,
        "mask_token_id": 40,
        "layer_types": ["full_attention", "full_attention"],
    },
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **_DECODER, "bos_token_id": 1},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", **_DECODER, "sliding_window": 5},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **_DECODER, "use_sliding_window": False},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **_DECODER, "head_dim": 10},
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": 24,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 64,
        "n_ctx": 64,
        "vocab_size": 50,
        "activation_function": "gelu_new",
        "eos_token_id": 3,
    },
    "nemotron": {
        "architectures": ["NemotronLabsDiffusionModel"],
        "model_type": "nemotron_labs_diffusion",
        **_DECODER,
        "rope_theta": ...,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 500.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "mscale": 1.0,
            "mscale_all_dim": 0.5,
            "llama_4_scaling_beta": 0.1,
        },
        "head_dim": 10,
        "mask_token_id": 40,
        "dlm_paradigm": "bidirectional",
        "block_size": 8,
    },
    "a2d_qwen3": {
        "architectures": ["A2DQwen3LMHeadModel"],
        "model_type": "a2d-qwen3",
        **_DECODER,
        "head_dim": 10,
        "mask_token_id": 40,
    },
    "a2d_qwen2": {
        "architectures": ["A2DQwen2LMHeadModel"],
        "model_type": "a2d-qwen2",
        **_DECODER,
        "mask_token_id": 40,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
    "a2d_llama": {
        "architectures": ["A2DLlamaLMHeadModel"],
        "model_type": "a2d-llama",
        **_DECODER,
        "mask_token_id": 40,
    },
    "bd3lm": {
        "architectures": ["BD3LM"],
        "model_type": "bd3lm",
        **_DIT,
        "block_size": 4,
        "cross_attn": True,
        "adaln": True,
        "time_conditioning": False,
        "eos_token_id": 3,
    },
    "mdlm": {"architectures": ["MDLM"], "model_type": "mdlm", **_DIT, "time_conditioning": True, "eos_token_id": 3},
    "gidd": {
        "architectures": ["DIT"],
        "model_type": "dit",
        **_SHARED,
        "timestep_cond_dim": 9,
        "max_seq_len": 64,
        "p_uniform": 0.1,
        "t_eps": 1e-4,
    },
}


def config_of(family: str, **changes: Any) -> dict[str, Any]:
    """config.json of a tiny model; a change to `...` removes the key."""
    return {key: value for key, value in (CONFIGS[family] | changes).items() if value is not ...}


def random_model(config: Mapping[str, Any], dtype: str = "float32", seed: int = 0) -> jaxsink.Model:
    """A model for a config.json in which every number is random, norms and biases too."""
    from jaxsink_converters.table import Settings

    family = family_of(config, "test")
    model = jaxsink.abstract(family.configure(Settings(config, "test")), dtype)
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: (rng.standard_normal(leaf.shape) * 0.3).astype(leaf.dtype), model)


def tensors_of(model: jaxsink.Model, prefix: str | None = None) -> dict[str, np.ndarray]:
    """The model's weights under the names and in the layout of its family's files."""
    family = next(family for family in FAMILIES if family.name == model.config.family)
    prefix = family.prefixes[0] if prefix is None else prefix
    tensors: dict[str, np.ndarray] = {}
    in_order = sorted(named_leaves(model)[0], key=lambda item: "qkv".find(item[0].rpartition(".attention.")[2][0]))
    for parameter, leaf in in_order:
        rule, first = rule_of(family, model.config, parameter)
        pattern = rule.source if isinstance(rule, From) else rule
        for layer in range(len(leaf)) if is_layered(parameter) else (None,):
            value, number = np.asarray(leaf if layer is None else leaf[layer]), None if layer is None else first + layer
            for expert in range(len(value)) if "{expert}" in pattern else (None,):
                name = pattern.format(prefix=prefix, layer=number, expert=expert)
                part = value if expert is None else value[expert]
                if ".c_" in name:  # GPT-2's Conv1D is [in, out], with q, k and v side by side
                    part = part.T
                    if ".c_attn." in name and name in tensors:
                        part = np.concatenate([tensors[name], part], axis=-1)
                if (".attn_qkv." in name or ".query_key_value." in name) and name in tensors:
                    part = np.concatenate([tensors[name], part])
                tensors[name] = np.ascontiguousarray(part)
    return tensors


def write(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    shards: int = 1,
    kind: str = "safetensors",
) -> Path:
    """A Hugging Face directory; kind "safetensors" or "bin" (which needs torch)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    stem = "model" if kind == "safetensors" else "pytorch_model"
    save = save_file if kind == "safetensors" else save_torch
    if shards == 1:
        save(dict(tensors), folder / f"{stem}.{kind}")
        return folder
    where = {name: f"{stem}-{number % shards + 1:05d}-of-{shards:05d}.{kind}" for number, name in enumerate(tensors)}
    for file in set(where.values()):
        save({name: value for name, value in tensors.items() if where[name] == file}, folder / file)
    index = {"metadata": {"total_size": 0}, "weight_map": where}
    (folder / f"{stem}.{kind}.index.json").write_text(json.dumps(index))
    return folder


def save_torch(tensors: Mapping[str, np.ndarray], path: Path, **options: Any) -> None:
    import torch

    def tensor(value: np.ndarray) -> Any:
        if value.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(value)

    torch.save({name: tensor(value) for name, value in tensors.items()}, path, **options)


def make(folder: Path, family: str, dtype: str = "float32", **changes: Any) -> tuple[Path, jaxsink.Model]:
    """(directory, the model it holds) of a tiny random checkpoint."""
    config = config_of(family, **changes)
    model = random_model(config, dtype)
    return write(folder, config, tensors_of(model)), model


def tokenizer_files(folder: Path, size: int = 50, mask: int | None = None) -> None:
    """A whole-word tokenizer.json of so many ids, and a tokenizer_config.json that declares eos and perhaps a mask."""
    vocab = {f"w{index}": index for index in range(size)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    declared = {"eos_token": "w3"} | ({} if mask is None else {"mask_token": f"w{mask}"})
    (folder / "tokenizer_config.json").write_text(json.dumps(declared))


def assert_same(one: jaxsink.Model, other: jaxsink.Model) -> None:
    """Same configuration and the same bits in every weight."""
    assert one.config == other.config
    theirs = dict(named_leaves(other)[0])
    for name, leaf in named_leaves(one)[0]:
        ours, expected = np.asarray(leaf), np.asarray(theirs.pop(name))
        assert ours.dtype == expected.dtype, name
        assert ours.shape == expected.shape, name
        assert ours.tobytes() == expected.tobytes(), name
    assert not theirs


def converted(capsys: Any, source: object, target: Path, *options: str) -> dict[str, Any]:
    """The report of a conversion that must succeed, in silence, and leave nothing beside the target."""
    code, out, err = run(capsys, "convert", source, target, "--json", *options)
    assert (code, err) == (0, "")
    assert [path.name for path in target.parent.glob(f".{target.name}.*")] == []
    return json.loads(out)


def run(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of the command line, in this process."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def assert_refused(result: tuple[int, str, str], target: Path, *words: str) -> None:
    """Exit code 2, one sentence on stderr that holds all the words, and nothing left beside or at the target."""
    code, out, err = result
    assert code == 2, (code, err)
    assert re.fullmatch(r"jaxsink: [^\n]+\.\n", err), err
    assert len(err) < 600, err
    for word in words:
        assert word in err, (word, err)
    assert out == ""
    assert not target.exists()
    leftovers = [path.name for path in target.parent.glob(f".{target.name}.*")] if target.parent.is_dir() else []
    assert leftovers == []
