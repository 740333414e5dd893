"""LLaDA-MoE: Hugging Face names, also with dense layers first, an expert that all tokens go through, and biases."""

from __future__ import annotations

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import Experts, ModelConfig

from ..table import MOST_LAYERS, Family, Settings, short
from .hugging_face import ATTENTION, EXPERTS, MLP, common, shared_expert

LLADA_MOE_IDS = {"mask": 156895, "eos": 156892}  # the published config.json names eos alone


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
