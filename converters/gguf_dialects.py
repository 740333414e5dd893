"""How GGUF files of each architecture spell the tensors and settings that the family's own files have.

Facts of llama.cpp's conversion: Llama and LLaDA have the rows of q and k reordered for interleaved rotation, the others have
not; the experts of a layer are one tensor; masks, causality and the shift of logits are settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_LAYER = "model.layers.{layer}"
_AROUND = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_ATTENTION = {
    "blk.{layer}.attn_norm.weight": f"{_LAYER}.input_layernorm.weight",
    "blk.{layer}.attn_q.weight": f"{_LAYER}.self_attn.q_proj.weight",
    "blk.{layer}.attn_k.weight": f"{_LAYER}.self_attn.k_proj.weight",
    "blk.{layer}.attn_v.weight": f"{_LAYER}.self_attn.v_proj.weight",
    "blk.{layer}.attn_q.bias": f"{_LAYER}.self_attn.q_proj.bias",
    "blk.{layer}.attn_k.bias": f"{_LAYER}.self_attn.k_proj.bias",
    "blk.{layer}.attn_v.bias": f"{_LAYER}.self_attn.v_proj.bias",
    "blk.{layer}.attn_output.weight": f"{_LAYER}.self_attn.o_proj.weight",
    "blk.{layer}.ffn_norm.weight": f"{_LAYER}.post_attention_layernorm.weight",
}
_QK_NORM = {
    "blk.{layer}.attn_q_norm.weight": f"{_LAYER}.self_attn.q_norm.weight",
    "blk.{layer}.attn_k_norm.weight": f"{_LAYER}.self_attn.k_norm.weight",
}
_MLP = {
    "blk.{layer}.ffn_gate.weight": f"{_LAYER}.mlp.gate_proj.weight",
    "blk.{layer}.ffn_up.weight": f"{_LAYER}.mlp.up_proj.weight",
    "blk.{layer}.ffn_down.weight": f"{_LAYER}.mlp.down_proj.weight",
}
_EXPERTS = {
    "blk.{layer}.ffn_gate_inp.weight": f"{_LAYER}.mlp.gate.weight",
    "blk.{layer}.ffn_gate_exps.weight": f"{_LAYER}.mlp.experts.{{expert}}.gate_proj.weight",
    "blk.{layer}.ffn_up_exps.weight": f"{_LAYER}.mlp.experts.{{expert}}.up_proj.weight",
    "blk.{layer}.ffn_down_exps.weight": f"{_LAYER}.mlp.experts.{{expert}}.down_proj.weight",
}
_OLMO_LAYER = "model.transformer.blocks.{layer}"
_OLMO = {
    "token_embd.weight": "model.transformer.wte.weight",
    "output_norm.weight": "model.transformer.ln_f.weight",
    "output.weight": "model.transformer.ff_out.weight",
    "blk.{layer}.attn_norm.weight": f"{_OLMO_LAYER}.attn_norm.weight",
    "blk.{layer}.attn_q.weight": f"{_OLMO_LAYER}.q_proj.weight",
    "blk.{layer}.attn_k.weight": f"{_OLMO_LAYER}.k_proj.weight",
    "blk.{layer}.attn_v.weight": f"{_OLMO_LAYER}.v_proj.weight",
    "blk.{layer}.attn_q.bias": f"{_OLMO_LAYER}.q_proj.bias",
    "blk.{layer}.attn_k.bias": f"{_OLMO_LAYER}.k_proj.bias",
    "blk.{layer}.attn_v.bias": f"{_OLMO_LAYER}.v_proj.bias",
    "blk.{layer}.attn_output.weight": f"{_OLMO_LAYER}.attn_out.weight",
    "blk.{layer}.ffn_norm.weight": f"{_OLMO_LAYER}.ff_norm.weight",
    "blk.{layer}.ffn_gate.weight": f"{_OLMO_LAYER}.ff_proj.weight",
    "blk.{layer}.ffn_up.weight": f"{_OLMO_LAYER}.up_proj.weight",
    "blk.{layer}.ffn_down.weight": f"{_OLMO_LAYER}.ff_out.weight",
}
# GGUF setting (after the architecture's name) -> setting of config.json
_SETTINGS = {
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
_EXPERT_SETTINGS = _SETTINGS | {
    "feed_forward_length": "dense_intermediate_size",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "expert_intermediate_size",
}
_OLMO_SETTINGS = {
    "block_count": "n_layers",
    "context_length": "max_sequence_length",
    "embedding_length": "d_model",
    "feed_forward_length": "mlp_hidden_size",
    "attention.head_count": "n_heads",
    "attention.head_count_kv": "n_kv_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}


@dataclass(frozen=True)
class Dialect:
    """One architecture of GGUF files."""

    model_class: str  # of the family's own files
    names: Mapping[str, str]
    settings: Mapping[str, str] = field(default_factory=lambda: _SETTINGS)
    tied: str = "tie_word_embeddings"
    interleaved: bool = False  # rows of q and k lie as interleaved rotation needs them
    shifted: bool | None = None  # of diffusion models: do the logits at a position predict the next one


_DECODER = {**_AROUND, **_ATTENTION, **_MLP}
DIALECTS = {
    "llama": Dialect("LlamaForCausalLM", _DECODER, interleaved=True),
    "qwen2": Dialect("Qwen2ForCausalLM", _DECODER),
    "qwen3": Dialect("Qwen3ForCausalLM", {**_DECODER, **_QK_NORM}),
    "dream": Dialect("DreamModel", _DECODER, shifted=True),
    "llada": Dialect("LLaDAModelLM", _OLMO, _OLMO_SETTINGS, "weight_tying", interleaved=True, shifted=False),
    "llada-moe": Dialect(
        "LLaDAMoEModelLM", {**_AROUND, **_ATTENTION, **_QK_NORM, **_EXPERTS}, _EXPERT_SETTINGS, shifted=False
    ),
}
