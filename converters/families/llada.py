"""LLaDA (Base, Instruct, 1.5): OLMo-style names and settings."""

from __future__ import annotations

from typing import Any

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig

from ..table import MOST_LAYERS, Family, Settings, split_width

TABLE = {
    "embedding": "model.transformer.wte.weight",
    "layers.attention_norm.weight": "model.transformer.blocks.{layer}.attn_norm.weight",
    "layers.attention.q.weight": "model.transformer.blocks.{layer}.q_proj.weight",
    "layers.attention.k.weight": "model.transformer.blocks.{layer}.k_proj.weight",
    "layers.attention.v.weight": "model.transformer.blocks.{layer}.v_proj.weight",
    "layers.attention.q.bias": "model.transformer.blocks.{layer}.q_proj.bias",
    "layers.attention.k.bias": "model.transformer.blocks.{layer}.k_proj.bias",
    "layers.attention.v.bias": "model.transformer.blocks.{layer}.v_proj.bias",
    "layers.attention.o.weight": "model.transformer.blocks.{layer}.attn_out.weight",
    "layers.mlp_norm.weight": "model.transformer.blocks.{layer}.ff_norm.weight",
    "layers.mlp.gate.weight": "model.transformer.blocks.{layer}.ff_proj.weight",
    "layers.mlp.up.weight": "model.transformer.blocks.{layer}.up_proj.weight",
    "layers.mlp.down.weight": "model.transformer.blocks.{layer}.ff_out.weight",
    "norm.weight": "model.transformer.ln_f.weight",
    "head.weight": "model.transformer.ff_out.weight",
}
# The published config.json names mask and eos; the tokenizers name the rest.
LLADA_IDS = {"mask": 126336, "eos": 126081, "bos": 126080, "eot": 126348}


def olmo_fields(settings: Settings) -> dict[str, Any]:
    for key, value in {
        "activation_type": "silu",
        "alibi": False,
        "attention_layer_norm": False,
        "bias_for_layer_norm": False,
        "block_group_size": 1,
        "block_type": "llama",
        "include_bias": False,
        "input_emb_norm": False,
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "rope": True,
        "scale_logits": False,
    }.items():
        settings.pin(key, value)
    settings.harmless(
        "alibi_bias_max",
        "attention_layer_norm_with_affine",
        "embedding_dropout",
        "flash_attention",
        "flash_attn_varlen",
        "init_cutoff_factor",
        "init_device",
        "init_fn",
        "init_std",
        "mlp_ratio",
        "precision",
        "residual_dropout",
        "rope_full_precision",
        "tie_word_embeddings",
    )
    width, heads = settings.size("d_model"), settings.size("n_heads")
    rows = settings.size("embedding_size", settings.size("vocab_size"))
    return {
        "layers": settings.size("n_layers", most=MOST_LAYERS),
        "width": width,
        "heads": heads,
        "kv_heads": kv_heads(settings, heads),
        "head_dim": split_width(settings, width, heads),
        "mlp_width": settings.size("mlp_hidden_size", None) or settings.size("mlp_ratio", 4) * width,
        "vocab": rows,
        "attention": "bidirectional",
        "qkv_bias": settings.take("include_qkv_bias", bool, False),
        "norm_eps": settings.positive("rms_norm_eps", 1e-5),
        "rope_theta": settings.positive("rope_theta", 10000.0, least=1.01),
        "max_positions": settings.size("max_sequence_length", 4096),
        "skip_gaps": False,
        "tied": settings.take("weight_tying", bool, False),
        "mask_id": settings.id("mask_token_id"),
        "eos_ids": settings.ids("eos_token_id"),
        "pad_id": settings.id("pad_token_id"),
        "bos_id": settings.id("bos_token_id"),
        "eot_id": settings.id("eot_token_id"),
    }


def kv_heads(settings: Settings, heads: int) -> int:
    """`n_kv_heads`; or one if `multi_query_attention`, an older name for that, is on, and all if it is off."""
    count, shares_one = settings.size("n_kv_heads", None), settings.take("multi_query_attention", bool, None)
    usual = 1 if shares_one else heads
    if None not in (count, shares_one) and count != usual:
        raise JaxsinkError(
            f"{settings.where}: 'multi_query_attention' = {shares_one} stands for {usual} kv heads, but 'n_kv_heads' is "
            f"{count}."
        )
    return usual if count is None else count


def configure_llada(settings: Settings) -> ModelConfig:
    return ModelConfig(family="llada", **olmo_fields(settings))


LLADA = Family(
    name="llada",
    architectures=("LLaDAModelLM",),
    configure=configure_llada,
    table=TABLE,
    tied_head="model.transformer.ff_out.weight",
    is_diffusion=True,
    published_ids=LLADA_IDS,
)
