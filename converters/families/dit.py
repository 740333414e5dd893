"""What BD3LM, MDLM and GIDD share: a diffusion transformer with adaLN, q, k and v in one tensor, and a head with a bias."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxsink.nn.config import ModelConfig

from ..table import From, Settings, split_width

GPT2_IDS = {"eos": 50256, "bos": 50256}  # of the vocabulary that all published ones have, with the mask after it
GPT2_ROWS = 50258


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


def dit_fields(settings: Settings, width: int, heads: int) -> dict[str, Any]:
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
