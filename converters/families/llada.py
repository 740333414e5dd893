"""LLaDA (Base, Instruct, 1.5) and MMaDA: OLMo-style names and settings; and LLaDA-MoE, with Hugging Face names."""

from __future__ import annotations

from typing import Any

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import Experts, ModelConfig

from ..table import MOST_LAYERS, Family, Settings, short, split_width
from .hugging_face import ATTENTION, EXPERTS, MLP, common, shared_expert

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
# The published config.json of LLaDA and MMaDA names mask and eos, that of LLaDA-MoE only eos; the tokenizers name the rest.
LLADA_IDS = {"mask": 126336, "eos": 126081, "bos": 126080, "eot": 126348}
LLADA_MOE_IDS = {"mask": 156895, "eos": 156892}


def _llada(settings: Settings) -> dict[str, Any]:
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
    settings.pin("multi_query_attention", None, False)
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
        "kv_heads": settings.size("n_kv_heads", heads),
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


def configure_llada(settings: Settings) -> ModelConfig:
    return ModelConfig(family="llada", **_llada(settings))


def configure_mmada(settings: Settings) -> ModelConfig:
    settings.harmless(
        "codebook_size",
        "new_vocab_size",
        "num_new_special_tokens",
        "num_vq_tokens",
        "pretrained_model_path",
        "tokenizer_path",
        "w_clip_vit",
    )
    return ModelConfig(family="mmada", text_vocab=settings.size("llm_vocab_size", None), **_llada(settings))


def configure_llada_moe(settings: Settings) -> ModelConfig:
    for key, value in {
        "clip_qkv": None,
        "moe_router_score_function": "softmax",
        "partial_rotary_factor": 1,
        "qk_layernorm": True,
        "routed_scaling_factor": 1,  # the original ignores it, so nobody knows what another value would mean
    }.items():
        settings.pin(key, value, *([None] if value is not None else []))
    settings.pin("norm_topk_prob", None, False)  # the original ignores the setting: it never renormalises
    settings.pin("router_num_group", None, 0)
    settings.pin("router_topk_group", None, 0)
    settings.harmless("output_router_logits", "router_aux_loss_coef", "num_key_value_heads")
    bias = settings.take("attention_bias", bool, False)
    shared = common(settings)
    dense, width = dense_layers(settings, shared["layers"]), settings.size("dense_intermediate_size", None)
    is_biased = settings.take("moe_router_enable_expert_bias", bool, False)
    return ModelConfig(
        family="llada_moe",
        attention="bidirectional",
        skip_gaps=False,
        qk_norm=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_width=settings.size("expert_intermediate_size"),
        dense_layers=dense,
        dense_width=width if dense else None,
        experts=Experts(
            settings.size("num_experts", most=MOST_LAYERS),
            settings.size("num_experts_per_tok"),
            bias="weight" if is_biased else None,
            shared_width=settings.size("shared_expert_intermediate_size", None),
        ),
        mask_id=settings.id("mask_token_id"),
        **shared,
    )


def dense_layers(settings: Settings, layers: int) -> int:
    """How many layers at the beginning have no experts, where `moe_layer_freq` has 1 for each that has some."""
    kinds = settings.take("moe_layer_freq", list, [1] * layers)
    dense = next((index for index, kind in enumerate(kinds) if kind), layers)
    if kinds != [0] * dense + [1] * (layers - dense) or dense == layers:
        raise JaxsinkError(
            f"{settings.where}: 'moe_layer_freq' = {short(kinds)} is not supported: it must have {layers} entries, 0 for "
            "dense layers at the beginning, and 1 for all others, with experts."
        )
    return dense


LLADA = Family(
    name="llada",
    architectures=("LLaDAModelLM",),
    configure=configure_llada,
    table=TABLE,
    tied_head="model.transformer.ff_out.weight",
    is_diffusion=True,
    published_ids=LLADA_IDS,
)
MMADA = Family(
    name="mmada",
    architectures=("MMadaModelLM",),
    configure=configure_mmada,
    table=TABLE,
    tied_head="model.transformer.ff_out.weight",
    is_diffusion=True,
    published_ids=LLADA_IDS,
)
LLADA_MOE = Family(
    name="llada_moe",
    architectures=("LLaDAMoEModelLM", "LLaDAMoEModel"),
    configure=configure_llada_moe,
    table=ATTENTION
    | EXPERTS
    | shared_expert("shared_expert")
    | {"layers.mlp.bias": "model.layers.{layer}.mlp.expert_bias"},
    dense=MLP,
    tied_head="lm_head.weight",
    is_diffusion=True,
    published_ids=LLADA_MOE_IDS,
)
