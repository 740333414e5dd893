"""GGUF files of the Llama and Qwen2 families, as a source with Hugging Face names and settings.

Tensors are dequantised to float32 (stored float16 and bfloat16 stay as they are). llama.cpp stores q and k of Llama
models with rows reordered for interleaved rotation; reading undoes that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig, RopeScaling
from jaxsink.text.tokenizer import KNOWN_TOKENS

from .gguf_file import GgufTensor, read_gguf
from .source import Source, TensorInfo, add_tensor

NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "blk.{layer}.attn_norm.weight": "model.layers.{layer}.input_layernorm.weight",
    "blk.{layer}.attn_q.weight": "model.layers.{layer}.self_attn.q_proj.weight",
    "blk.{layer}.attn_k.weight": "model.layers.{layer}.self_attn.k_proj.weight",
    "blk.{layer}.attn_v.weight": "model.layers.{layer}.self_attn.v_proj.weight",
    "blk.{layer}.attn_q.bias": "model.layers.{layer}.self_attn.q_proj.bias",
    "blk.{layer}.attn_k.bias": "model.layers.{layer}.self_attn.k_proj.bias",
    "blk.{layer}.attn_v.bias": "model.layers.{layer}.self_attn.v_proj.bias",
    "blk.{layer}.attn_output.weight": "model.layers.{layer}.self_attn.o_proj.weight",
    "blk.{layer}.ffn_norm.weight": "model.layers.{layer}.post_attention_layernorm.weight",
    "blk.{layer}.ffn_gate.weight": "model.layers.{layer}.mlp.gate_proj.weight",
    "blk.{layer}.ffn_up.weight": "model.layers.{layer}.mlp.up_proj.weight",
    "blk.{layer}.ffn_down.weight": "model.layers.{layer}.mlp.down_proj.weight",
}
ROPE_FACTORS = "rope_freqs.weight"
# GGUF setting (after the architecture's name) -> Hugging Face setting
SETTINGS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
HEAD_SIZES = ("attention.value_length", "rope.dimension_count")  # must equal the head size
HARMLESS_SETTINGS = {*HEAD_SIZES, "rope.scaling.finetuned"}
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
LLAMA3_SCALINGS = tuple(RopeScaling("llama3", factor, 8192) for factor in (8.0, 32.0))


class GgufSource(Source):
    kind = "gguf"

    def __init__(self, path: Path):
        self.path = path
        self.files = [path]
        self.fields, found = read_gguf(path)
        self.generation = {}
        self.tensors = {}
        self._found: dict[str, GgufTensor] = {}
        architecture = self.fields.get("general.architecture")
        if architecture not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise JaxsinkError(f"{path} holds a {architecture!r} model; GGUF files of these are supported: {known}.")
        self.architecture = str(architecture)
        parts = self.fields.get("split.count", 1)
        if parts not in (0, 1):
            raise JaxsinkError(f"{path} is one of {parts} parts; join them with llama-gguf-split --merge first.")
        layers = self._setting("block_count")
        layers = min(layers, len(found)) if isinstance(layers, int) else 0
        ours = {
            theirs.format(layer=layer): name.format(layer=layer)
            for theirs, name in NAMES.items()
            for layer in (range(layers) if "{layer}" in theirs else (0,))
        }
        self._theirs = {name: theirs for theirs, name in ours.items()}
        factors = None
        for tensor in found:
            if tensor.name == ROPE_FACTORS:
                factors = tensor.read(path).astype(np.float32).reshape(-1)
                continue
            name = ours.get(tensor.name, tensor.name)
            add_tensor(self.tensors, name, TensorInfo(tensor.shape, tensor.dtype, path))
            self._found[name] = tensor
        self.config = self._config(factors)

    def shown(self, name: str) -> str:
        return self._theirs.get(name, name)

    def _setting(self, key: str) -> Any:
        return self.fields.get(f"{self.architecture}.{key}")

    def _config(self, factors: np.ndarray | None) -> dict[str, Any]:
        """The same settings under Hugging Face's names; unknown ones are passed on, and refused there."""
        config: dict[str, Any] = {"architectures": [ARCHITECTURES[self.architecture]]}
        for key, value in self.fields.items():
            short = key.removeprefix(f"{self.architecture}.")
            if short != key and short not in HARMLESS_SETTINGS:
                config[SETTINGS.get(short, short)] = value
        if "rope.scaling.type" in config:
            config["rope_scaling"] = self._rope_scaling(config)
        if factors is not None:
            config["rope_scaling"] = llama3_from_factors(factors, config, self.path)
        width, heads = config.get("hidden_size"), config.get("num_attention_heads")
        if isinstance(width, int) and isinstance(heads, int) and heads > 0:
            size = config.get("head_dim", width // heads)
            for key in HEAD_SIZES:
                if self._setting(key) not in (None, size):
                    raise JaxsinkError(
                        f"{self.path}: {key!r} = {self._setting(key)} is not supported (only {size} is)."
                    )
        embedding = self.tensors.get("model.embed_tokens.weight")
        if embedding is None:
            raise JaxsinkError(f"tensor 'token_embd.weight' is missing from {self.path}.")
        config["vocab_size"] = embedding.shape[0]
        config["tie_word_embeddings"] = "lm_head.weight" not in self.tensors
        for ours, theirs in {"bos": "bos", "eos": "eos", "pad": "padding", "eot": "eot"}.items():
            config[f"{ours}_token_id"] = self.fields.get(f"tokenizer.ggml.{theirs}_token_id")
        if config["eot_token_id"] is None:
            tokens = self.fields.get("tokenizer.ggml.tokens") or []
            config["eot_token_id"] = next((tokens.index(t) for t in KNOWN_TOKENS["eot"] if t in tokens), None)
        return config

    def _rope_scaling(self, config: dict[str, Any]) -> dict[str, Any] | None:
        kind = config.pop("rope.scaling.type")
        scaling = {"rope_type": kind, "factor": config.pop("rope.scaling.factor", None)}
        length = config.pop("rope.scaling.original_context_length", None)
        if length is not None:
            scaling["original_max_position_embeddings"] = length
        return None if kind == "none" else scaling

    def read(self, name: str, index: tuple[slice, ...] | None = None) -> np.ndarray:
        value = self._found[name].read(self.path)
        if self.architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = self.config["num_attention_heads"]
            value = undo_interleaving(
                value, heads if ".q_proj." in name else self.config.get("num_key_value_heads", heads)
            )
        return value if index is None else value[index]


def undo_interleaving(value: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from (0, D/2, 1, D/2 + 1, …) back to (0, 1, …): half rotation."""
    rows = value.reshape(heads, value.shape[0] // heads // 2, 2, *value.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(value.shape)


def llama3_from_factors(factors: np.ndarray, config: dict[str, Any], path: Path) -> dict[str, Any]:
    """GGUF stores Llama 3.1's scaling as one divisor per frequency; find the published setting that makes it."""
    from jaxsink.nn.rope import rope_frequencies

    theta = config.get("rope_theta", 10000.0)
    if not isinstance(theta, float) or not theta > 1:
        raise JaxsinkError(f"{path}: 'rope.freq_base' must be a number above 1, not {theta!r}.")
    plain = ModelConfig("llama", 1, 1, 1, 1, 2 * factors.size, 1, 1, rope_theta=theta)
    base = rope_frequencies(plain)[0]
    for scaling in LLAMA3_SCALINGS:
        expected = base / rope_frequencies(plain.replace(rope_scaling=scaling))[0]
        if np.allclose(expected, factors, rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_length,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
            }
    raise JaxsinkError(f"tensor {ROPE_FACTORS!r} of {path} matches no published rope scaling; it cannot be honoured.")
