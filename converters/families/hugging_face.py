"""What the Hugging Face decoders share: the usual parameter names, and the usual settings."""

from __future__ import annotations

from typing import Any

from ..table import Settings, read_rope

ATTENTION = {
    "embedding": "model.embed_tokens.weight",
    "layers.attention_norm.weight": "model.layers.{layer}.input_layernorm.weight",
    "layers.attention.q.weight": "model.layers.{layer}.self_attn.q_proj.weight",
    "layers.attention.k.weight": "model.layers.{layer}.self_attn.k_proj.weight",
    "layers.attention.v.weight": "model.layers.{layer}.self_attn.v_proj.weight",
    "layers.attention.o.weight": "model.layers.{layer}.self_attn.o_proj.weight",
    "layers.attention.q.bias": "model.layers.{layer}.self_attn.q_proj.bias",
    "layers.attention.k.bias": "model.layers.{layer}.self_attn.k_proj.bias",
    "layers.attention.v.bias": "model.layers.{layer}.self_attn.v_proj.bias",
    "layers.attention.o.bias": "model.layers.{layer}.self_attn.o_proj.bias",
    "layers.attention.q_norm.weight": "model.layers.{layer}.self_attn.q_norm.weight",
    "layers.attention.k_norm.weight": "model.layers.{layer}.self_attn.k_norm.weight",
    "layers.mlp_norm.weight": "model.layers.{layer}.post_attention_layernorm.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
MLP = {
    "layers.mlp.gate.weight": "model.layers.{layer}.mlp.gate_proj.weight",
    "layers.mlp.up.weight": "model.layers.{layer}.mlp.up_proj.weight",
    "layers.mlp.down.weight": "model.layers.{layer}.mlp.down_proj.weight",
    "layers.mlp.gate.bias": "model.layers.{layer}.mlp.gate_proj.bias",
    "layers.mlp.up.bias": "model.layers.{layer}.mlp.up_proj.bias",
    "layers.mlp.down.bias": "model.layers.{layer}.mlp.down_proj.bias",
}
DECODER = ATTENTION | MLP
ROTARY_BUFFERS = ("model.rotary_emb.inv_freq", "model.layers.{layer}.self_attn.rotary_emb.inv_freq")


def common(settings: Settings) -> dict[str, Any]:
    """Fields of ModelConfig that all these decoders name alike."""
    heads, width = settings.take("num_attention_heads", int), settings.take("hidden_size", int)
    settings.pin("hidden_act", "silu")
    settings.pin("partial_rotary_factor", 1.0, None)
    eos = settings.ids("eos_token_id")
    return {
        "layers": settings.take("num_hidden_layers", int),
        "width": width,
        "heads": heads,
        "kv_heads": settings.take("num_key_value_heads", int, heads),
        "head_dim": settings.take("head_dim", int, width // max(heads, 1)),
        "vocab": settings.take("vocab_size", int),
        "norm_eps": settings.take("rms_norm_eps", float, 1e-6),
        "max_positions": settings.take("max_position_embeddings", int, 4096),
        "tied": settings.take("tie_word_embeddings", bool, False),
        "eos_ids": eos,
        "bos_id": settings.id("bos_token_id"),
        "pad_id": settings.id("pad_token_id"),
        **read_rope(settings),
    }


def dense_mlp(settings: Settings) -> dict[str, Any]:
    return {"mlp_width": settings.take("intermediate_size", int)}


def sliding_window(settings: Settings, layers: int) -> dict[str, Any]:
    """Qwen's switch: off by default; on, the layers from `max_window_layers` on use the window."""
    window = settings.take("sliding_window", int, None)
    first = settings.take("max_window_layers", int, 0)
    kinds = settings.take("layer_types", list, None)
    if not settings.take("use_sliding_window", bool, False) or window is None:
        if kinds is not None:
            settings.pin("layer_types", ["full_attention"] * layers)
        return {}
    if kinds is None:
        return {"window": window, "window_layers": tuple(layer >= first for layer in range(layers))}
    settings.pin("layer_types", [k if k == "full_attention" else "sliding_attention" for k in kinds])
    return {"window": window, "window_layers": tuple(kind == "sliding_attention" for kind in kinds)}
