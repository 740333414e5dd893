"""LLaDA2.0 and 2.1: dense layers before experts, q, k and v in one tensor, and positions that turn a part of each head."""

from __future__ import annotations

import numpy as np

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import Experts, ModelConfig

from ..table import MOST_LAYERS, Family, From, Settings
from .hugging_face import ATTENTION, EXPERTS, MLP, common, dense_mlp, shared_expert

FUSED = "model.layers.{layer}.attention.query_key_value"
BLOCK = 32  # the published models' own; their configs do not say it


def part_of_qkv(source: str, number: int) -> From:
    """The rows of q (0), k (1) or v (2) in the tensor that has all heads of q, then those of k, then those of v."""

    def ends(config: ModelConfig) -> list[int]:
        return np.cumsum(
            [count * config.head_dim for count in (config.heads, config.kv_heads, config.kv_heads)]
        ).tolist()

    def take(x: np.ndarray, config: ModelConfig) -> np.ndarray:
        return np.split(x, ends(config)[:-1])[number]

    return From(source, shape=lambda ours: ours, take=take, rows=lambda config: ends(config)[-1])


TABLE: dict[str, str | From] = {
    **ATTENTION,
    **EXPERTS,
    **shared_expert("mlp.shared_experts"),
    **{f"layers.attention.{name}.weight": part_of_qkv(f"{FUSED}.weight", n) for n, name in enumerate("qkv")},
    **{f"layers.attention.{name}.bias": part_of_qkv(f"{FUSED}.bias", n) for n, name in enumerate("qkv")},
    "embedding": "model.word_embeddings.weight",
    "layers.attention.o.weight": "model.layers.{layer}.attention.dense.weight",
    "layers.attention.o.bias": "model.layers.{layer}.attention.dense.bias",
    "layers.attention.q_norm.weight": "model.layers.{layer}.attention.query_layernorm.weight",
    "layers.attention.k_norm.weight": "model.layers.{layer}.attention.key_layernorm.weight",
    "layers.mlp.bias": "model.layers.{layer}.mlp.gate.expert_bias",
}


def configure_llada2(settings: Settings) -> ModelConfig:
    """`norm_topk_prob` and `moe_router_enable_expert_bias` are not read by the original either: it always does both."""
    for key, value in {
        "norm_head": False,
        "norm_softmax": False,
        "router_dtype": "fp32",
        "score_function": "sigmoid",
        "use_rmsnorm": True,
        "use_sliding_window": False,
        "using_split_qkv_in_self_attention": False,
    }.items():
        settings.pin(key, value)
    settings.harmless(
        "embedding_dropout",
        "max_window_layers",
        "moe_router_enable_expert_bias",
        "norm_topk_prob",
        "output_dropout",
        "output_router_logits",
        "sliding_window",
    )
    shared = common(settings, turns_whole=False)
    shared["eos_ids"] = shared["eos_ids"] or settings.ids("pad_token_id")  # the same token, which only pad names
    dense = settings.take("first_k_dense_replace", int, 0)
    dense_width = dense_mlp(settings)["mlp_width"] if dense else None
    settings.harmless("intermediate_size")
    return ModelConfig(
        family="llada2_moe",
        attention="block_causal",
        block_length=BLOCK,
        qk_norm=settings.take("use_qk_norm", bool, True),
        qkv_bias=settings.take("use_qkv_bias", bool, False),
        out_bias=settings.take("use_bias", bool, True),
        mlp_width=settings.size("moe_intermediate_size"),
        dense_layers=dense,
        dense_width=dense_width,
        experts=read_experts(settings),
        rotary_dim=read_rotary(settings, shared["head_dim"]),
        mask_id=settings.id("mask_token_id"),
        **shared,
    )


def read_experts(settings: Settings) -> Experts:
    per_token = settings.size("num_experts_per_tok")
    shared = settings.take("num_shared_experts", int, None)
    return Experts(
        settings.size("num_experts", most=MOST_LAYERS),
        per_token,
        renormalise=per_token > 1,
        scores="sigmoid",
        bias="choice",
        groups=settings.size("n_group", 8),
        groups_kept=settings.size("topk_group", 4),
        scale=settings.positive("routed_scaling_factor", 2.5),
        shared_width=shared * settings.size("moe_intermediate_size") if shared else None,
    )


def read_rotary(settings: Settings, head_dim: int) -> int | None:
    """How many numbers of each head turn; None = all."""
    factor = settings.positive("partial_rotary_factor", 0.5)
    if factor > 1:
        raise JaxsinkError(f"{settings.where}: 'partial_rotary_factor' must be at most 1, not {factor:g}.")
    turning = int(head_dim * factor)
    settings.pin("rotary_dim", turning, None)
    return turning if turning < head_dim else None


LLADA2 = Family(
    name="llada2_moe",
    architectures=("LLaDA2MoeModelLM", "LLaDA21MoeModelLM"),
    configure=configure_llada2,
    table=TABLE,
    dense=MLP,
    tied_head="lm_head.weight",
    is_diffusion=True,
    published_ids={"mask": 156895, "eos": 156892},
)
