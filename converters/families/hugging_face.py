"""What the Hugging Face decoders share: the usual parameter names, and the usual settings."""

from __future__ import annotations

from typing import Any

from jaxsink.errors import JaxsinkError

from ..table import MOST_LAYERS, Settings, read_rope, short, split_width

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
EXPERTS = {
    "layers.mlp.router.weight": "model.layers.{layer}.mlp.gate.weight",
    "layers.mlp.gate.weight": "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
    "layers.mlp.up.weight": "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
    "layers.mlp.down.weight": "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",
}
ROTARY_BUFFERS = ("model.rotary_emb.inv_freq", "model.layers.{layer}.self_attn.rotary_emb.inv_freq")


def shared_expert(name: str) -> dict[str, str]:
    """The table of an mlp beside the experts; `name` is what the layer calls it."""
    parts = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    return {
        f"layers.mlp.shared.{ours}.weight": f"model.layers.{{layer}}.{name}.{theirs}.weight"
        for ours, theirs in parts.items()
    }


def common(
    settings: Settings, head_dim: int | None = None, turns_whole: bool = True, scaled_queries: bool = False
) -> dict[str, Any]:
    """Fields of ModelConfig that all these decoders name alike; `head_dim` where a family has a size of its own.

    turns_whole: positions turn whole heads; a family in which they turn a part of them says how much itself.
    scaled_queries: as `read_rope` has it.
    """
    heads, width = settings.size("num_attention_heads"), settings.size("hidden_size")
    settings.pin("hidden_act", "silu")
    if turns_whole:
        settings.pin("partial_rotary_factor", 1.0, None)
    return {
        "layers": settings.size("num_hidden_layers", most=MOST_LAYERS),
        "width": width,
        "heads": heads,
        "kv_heads": settings.size("num_key_value_heads", heads),
        "head_dim": settings.size("head_dim", head_dim) or split_width(settings, width, heads),
        "vocab": settings.size("vocab_size"),
        "norm_eps": settings.positive("rms_norm_eps", 1e-6),
        "max_positions": settings.size("max_position_embeddings", 4096),
        "tied": settings.take("tie_word_embeddings", bool, False),
        "eos_ids": settings.ids("eos_token_id"),
        "bos_id": settings.id("bos_token_id"),
        "pad_id": settings.id("pad_token_id"),
        "eot_id": settings.id("eot_token_id"),
        **read_rope(settings, scaled_queries=scaled_queries),
    }


def dense_mlp(settings: Settings) -> dict[str, Any]:
    return {"mlp_width": settings.size("intermediate_size")}


def sliding_window(settings: Settings, layers: int) -> dict[str, Any]:
    """Qwen's switch: off by default; on, the layers from `max_window_layers` on use the window."""
    window = settings.size("sliding_window", None)
    first = settings.take("max_window_layers", int, 28)
    kinds = settings.take("layer_types", list, None)
    used = settings.take("use_sliding_window", bool, False) and window is not None
    if kinds is None:
        kinds = ["sliding_attention" if used and layer >= first else "full_attention" for layer in range(layers)]
    known = ("full_attention", "sliding_attention") if used else ("full_attention",)
    if len(kinds) != layers or not all(kind in known for kind in kinds):
        raise JaxsinkError(
            f"{settings.where}: 'layer_types' must name one of {' and '.join(known)} for each of {layers} layers here, "
            f"not {short(kinds)}."
        )
    if "sliding_attention" not in kinds:
        return {}
    return {"window": window, "window_layers": tuple(kind == "sliding_attention" for kind in kinds)}
