"""Qwen2 and Qwen2.5, Qwen3, and what was made from them: Dream (Dream-Coder, DiffuCoder) and SDAR, also with experts."""

from __future__ import annotations

from typing import Any

from jaxsink.nn.config import Experts, ModelConfig

from ..table import MOST_LAYERS, Family, Settings
from .hugging_face import ATTENTION, DECODER, EXPERTS, ROTARY_BUFFERS, common, dense_mlp, sliding_window


def _qwen2(settings: Settings) -> dict[str, Any]:
    settings.pin("use_mrope", False)
    settings.pin("attention_bias", True)
    shared = common(settings)
    return {"qkv_bias": True, **shared, **dense_mlp(settings), **sliding_window(settings, shared["layers"])}


def _qwen3(settings: Settings) -> dict[str, Any]:
    bias = settings.take("attention_bias", bool, False)
    shared = common(settings, head_dim=128)
    window = sliding_window(settings, shared["layers"])
    return {"qk_norm": True, "qkv_bias": bias, "out_bias": bias, **shared, **dense_mlp(settings), **window}


def configure_qwen2(settings: Settings) -> ModelConfig:
    return ModelConfig(family="qwen2", **_qwen2(settings))


def configure_qwen3(settings: Settings) -> ModelConfig:
    return ModelConfig(family="qwen3", **_qwen3(settings))


def configure_dream(settings: Settings) -> ModelConfig:
    return ModelConfig(
        family="dream",
        attention="bidirectional",
        shift_logits=True,
        mask_id=settings.id("mask_token_id"),
        **_qwen2(settings),
    )


def _sdar(settings: Settings) -> dict[str, Any]:
    settings.harmless("debug", "ep_size", "fuse_cross_entropy", "micro_forward", "skip_checkpoint", "use_deepep")
    return {
        "attention": "block_causal",
        "block_length": settings.size("block_size", 4),
        "mask_id": settings.id("mask_token_id"),
        **_qwen3(settings),
    }


def configure_sdar(settings: Settings) -> ModelConfig:
    return ModelConfig(family="sdar", **_sdar(settings))


def configure_sdar_moe(settings: Settings) -> ModelConfig:
    """Experts in every layer, as in Qwen3-MoE; `intermediate_size` is that of dense layers, of which there are none."""
    settings.pin("decoder_sparse_step", 1)
    settings.pin("mlp_only_layers", [])
    settings.harmless("output_router_logits", "router_aux_loss_coef")
    experts = Experts(
        settings.size("num_experts", most=MOST_LAYERS),
        settings.size("num_experts_per_tok"),
        renormalise=settings.take("norm_topk_prob", bool, False),
    )
    width = settings.size("moe_intermediate_size")
    return ModelConfig(family="sdar_moe", experts=experts, **_sdar(settings) | {"mlp_width": width})


QWEN2 = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    configure=configure_qwen2,
    table=DECODER,
    harmless_tensors=ROTARY_BUFFERS,
    tied_head="lm_head.weight",
    gguf="qwen2",
    transformers_class="Qwen2ForCausalLM",
)
QWEN3 = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    configure=configure_qwen3,
    table=DECODER,
    tied_head="lm_head.weight",
    transformers_class="Qwen3ForCausalLM",
)
DREAM = Family(
    name="dream",
    architectures=("DreamModel",),
    configure=configure_dream,
    table=DECODER,
    harmless_tensors=ROTARY_BUFFERS,
    tied_head="lm_head.weight",
    is_diffusion=True,
)
SDAR = Family(
    name="sdar",
    architectures=("SDARForCausalLM",),
    configure=configure_sdar,
    table=DECODER,
    tied_head="lm_head.weight",
    is_diffusion=True,
    published_ids={"mask": 151669, "eos": 151643},  # older files name no mask
)
SDAR_MOE = Family(
    name="sdar_moe",
    architectures=("SDARMoeForCausalLM",),
    configure=configure_sdar_moe,
    table=ATTENTION | EXPERTS,
    tied_head="lm_head.weight",
    is_diffusion=True,
    published_ids=SDAR.published_ids,
)
