"""A2D: Qwen3, Qwen2 and Llama checkpoints that were trained on to fill masks (dllm); the names are those of the originals.

Every token sees every other, whatever sliding window the config names. The mask token stands in the tokenizer's files.
"""

from __future__ import annotations

from dataclasses import replace

from jaxsink.nn.config import ModelConfig

from ..table import Family, Settings
from .llama import LLAMA
from .qwen import QWEN2, QWEN3


def opened(base: Family, name: str, architecture: str) -> Family:
    """The causal family with bidirectional attention."""

    def configure(settings: Settings) -> ModelConfig:
        config = base.configure(settings)
        return config.replace(
            family=name,
            attention="bidirectional",
            window=None,
            window_layers=None,
            mask_id=settings.id("mask_token_id"),
        )

    return replace(
        base,
        name=name,
        architectures=(architecture,),
        configure=configure,
        gguf=None,
        transformers_class=None,
        is_diffusion=True,
    )


A2D_QWEN3 = opened(QWEN3, "a2d_qwen3", "A2DQwen3LMHeadModel")
A2D_QWEN2 = opened(QWEN2, "a2d_qwen2", "A2DQwen2LMHeadModel")
A2D_LLAMA = opened(LLAMA, "a2d_llama", "A2DLlamaLMHeadModel")
