"""BD3LM, MDLM and GIDD: diffusion transformers (DiT) with adaLN, q, k and v in one tensor, and a head with a bias."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jaxsink.nn.config import ModelConfig

from ..table import MOST_LAYERS, Family, From, Settings, split_width

GPT2_IDS = {"eos": 50256, "bos": 50256}  # of the vocabulary that all published ones have, with the mask after it
GPT2_ROWS = 50258
LEAST_UNIFORM = math.exp(-20)  # GIDD's own code takes no less


def third(source: str, number: int) -> From:
    """The number-th of q, k and v, which lie one after the other."""

    def shape(ours: tuple[int, ...]) -> tuple[int, ...]:
        return (3 * ours[0], *ours[1:])

    def take(x: np.ndarray, config: ModelConfig) -> np.ndarray:
        return np.split(x, 3)[number]

    return From(source, shape, take)


TABLE = {
    "embedding": "{prefix}vocab_embed.embedding",
    "time.first.weight": "{prefix}sigma_map.mlp.0.weight",
    "time.first.bias": "{prefix}sigma_map.mlp.0.bias",
    "time.second.weight": "{prefix}sigma_map.mlp.2.weight",
    "time.second.bias": "{prefix}sigma_map.mlp.2.bias",
    "layers.modulation.linear.weight": "{prefix}blocks.{layer}.adaLN_modulation.weight",
    "layers.modulation.linear.bias": "{prefix}blocks.{layer}.adaLN_modulation.bias",
    "layers.attention_norm.weight": "{prefix}blocks.{layer}.norm1.weight",
    "layers.attention.q.weight": third("{prefix}blocks.{layer}.attn_qkv.weight", 0),
    "layers.attention.k.weight": third("{prefix}blocks.{layer}.attn_qkv.weight", 1),
    "layers.attention.v.weight": third("{prefix}blocks.{layer}.attn_qkv.weight", 2),
    "layers.attention.o.weight": "{prefix}blocks.{layer}.attn_out.weight",
    "layers.mlp_norm.weight": "{prefix}blocks.{layer}.norm2.weight",
    "layers.mlp.up.weight": "{prefix}blocks.{layer}.mlp.0.weight",
    "layers.mlp.up.bias": "{prefix}blocks.{layer}.mlp.0.bias",
    "layers.mlp.down.weight": "{prefix}blocks.{layer}.mlp.2.weight",
    "layers.mlp.down.bias": "{prefix}blocks.{layer}.mlp.2.bias",
    "norm.weight": "{prefix}output_layer.norm_final.weight",
    "modulation.linear.weight": "{prefix}output_layer.adaLN_modulation.weight",
    "modulation.linear.bias": "{prefix}output_layer.adaLN_modulation.bias",
    "head.weight": "{prefix}output_layer.linear.weight",
    "head.bias": "{prefix}output_layer.linear.bias",
}


def _dit(settings: Settings, width: int, heads: int) -> dict[str, Any]:
    """What all of them share. The mask is the last row of the vocabulary; no file names it."""
    settings.harmless("tie_word_embeddings")  # the code never ties them
    vocab, mask = settings.size("vocab_size"), settings.id("mask_token_id")
    named = {"eos_ids": settings.ids("eos_token_id"), "bos_id": settings.id("bos_token_id")}
    if vocab == GPT2_ROWS:
        named = {"eos_ids": named["eos_ids"] or (GPT2_IDS["eos"],), "bos_id": named["bos_id"] or GPT2_IDS["bos"]}
    return {
        "width": width,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": split_width(settings, width, heads),
        "mlp_width": 4 * width,
        "vocab": vocab,
        "norm": "layer_weight",
        "norm_eps": 1e-5,
        "mlp": "plain",
        "activation": "gelu_tanh",
        "mlp_bias": True,
        "head_bias": True,
        "mask_id": vocab - 1 if mask is None else mask,
        "pad_id": settings.id("pad_token_id"),
        **named,
    }


def _kuleshov(settings: Settings, adaln: bool) -> dict[str, Any]:
    """BD3LM's and MDLM's names. Without time_conditioning adaLN acts as at level 0."""
    settings.harmless("dropout")
    time = "total" if settings.take("time_conditioning", bool, False) else "constant"
    width = settings.size("cond_dim", 129)
    return {
        **_dit(settings, settings.size("hidden_dim", 768), settings.size("n_heads", 12)),
        "layers": settings.size("n_blocks", 12, most=MOST_LAYERS),
        "max_positions": settings.size("model_length", 1024),
        "time_conditioning": time if adaln else None,
        "time_width": width if adaln else None,
    }


def configure_bd3lm(settings: Settings) -> ModelConfig:
    settings.pin("causal", False)
    settings.harmless("attn_backend", "var_min", "sampling_eps_min", "sampling_eps_max")
    is_blocks, block = settings.take("cross_attn", bool, True), settings.size("block_size", 1)
    return ModelConfig(
        family="bd3lm",
        attention="block_causal" if is_blocks else "bidirectional",
        block_length=block if is_blocks else None,
        **_kuleshov(settings, settings.take("adaln", bool, True)),
    )


def configure_mdlm(settings: Settings) -> ModelConfig:
    return ModelConfig(family="mdlm", attention="bidirectional", **_kuleshov(settings, adaln=True))


def configure_gidd(settings: Settings) -> ModelConfig:
    settings.harmless("t_eps")
    return ModelConfig(
        family="gidd",
        attention="bidirectional",
        layers=settings.size("num_hidden_layers", 12, most=MOST_LAYERS),
        max_positions=settings.size("max_seq_len", 1024),
        time_conditioning="level",
        time_width=settings.size("timestep_cond_dim", 128),
        uniform_noise=max(LEAST_UNIFORM, settings.take("p_uniform", float, 0.0)),
        **_dit(settings, settings.size("hidden_size", 768), settings.size("num_attention_heads", 12)),
    )


BD3LM = Family(
    name="bd3lm",
    architectures=("BD3LM",),
    configure=configure_bd3lm,
    table=TABLE,
    harmless_tensors=("{prefix}rotary_emb.inv_freq", "sampling_eps_min", "sampling_eps_max"),
    prefixes=("backbone.",),
    is_diffusion=True,
)
MDLM = Family(
    name="mdlm",
    architectures=("MDLM",),
    configure=configure_mdlm,
    table=TABLE,
    harmless_tensors=("{prefix}rotary_emb.inv_freq",),
    prefixes=("backbone.",),
    is_diffusion=True,
)
GIDD = Family(
    name="gidd",
    architectures=("DIT",),
    configure=configure_gidd,
    table=TABLE,
    harmless_tensors=("rotary_emb.cos_cached", "rotary_emb.sin_cached"),
    is_diffusion=True,
)
