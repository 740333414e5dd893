"""Configurations of published checkpoints by name, for planning, tests and training without any weights."""

from __future__ import annotations

import dataclasses
import math

from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError, near
from jaxsink.nn.config import Experts, ModelConfig, RopeScaling

# fmt: off
_LLADA = ModelConfig(
    family="llada", layers=32, width=4096, heads=32, kv_heads=32, head_dim=128, mlp_width=12288, vocab=126464,
    attention="bidirectional", norm_eps=1e-5, rope_theta=5e5, max_positions=4096, skip_gaps=False,
    mask_id=126336, eos_ids=(126081,), bos_id=126080, pad_id=126081, eot_id=126348,
)
_LLADA_MOE = ModelConfig(
    family="llada_moe", layers=16, width=2048, heads=16, kv_heads=16, head_dim=128, mlp_width=1024, vocab=157184,
    attention="bidirectional", norm_eps=1e-5, rope_theta=5e4, max_positions=8192, skip_gaps=False, qk_norm=True,
    experts=Experts(count=64, per_token=8), mask_id=156895, eos_ids=(156892,), pad_id=156892,
)
_LLADA2 = ModelConfig(
    family="llada2_moe", layers=20, width=2048, heads=16, kv_heads=4, head_dim=128, mlp_width=512, vocab=157184,
    attention="block_causal", block_length=32, norm_eps=1e-6, qk_norm=True, dense_layers=1, dense_width=5120,
    experts=Experts(256, 8, True, "sigmoid", "choice", groups=8, groups_kept=4, scale=2.5, shared_width=512),
    rope_theta=6e5, rotary_dim=64, max_positions=16384, mask_id=156895, eos_ids=(156892,), pad_id=156892,
)
_DREAM = ModelConfig(
    family="dream", layers=28, width=3584, heads=28, kv_heads=4, head_dim=128, mlp_width=18944, vocab=152064,
    attention="bidirectional", shift_logits=True, norm_eps=1e-6, qkv_bias=True, rope_theta=1e6, max_positions=131072,
    mask_id=151666, eos_ids=(151643,), bos_id=151643, pad_id=151643,
)
_LLAMA2 = ModelConfig(
    family="llama", layers=32, width=4096, heads=32, kv_heads=32, head_dim=128, mlp_width=11008, vocab=32000,
    norm_eps=1e-5, rope_theta=1e4, max_positions=4096, eos_ids=(2,), bos_id=1,
)
_LLAMA3 = ModelConfig(
    family="llama", layers=32, width=4096, heads=32, kv_heads=8, head_dim=128, mlp_width=14336, vocab=128256,
    norm_eps=1e-5, rope_theta=5e5, max_positions=8192, eos_ids=(128001, 128009), bos_id=128000, eot_id=128009,
)
_LLAMA31 = _LLAMA3.replace(
    max_positions=131072, rope_scaling=RopeScaling("llama3", 8.0, 8192), eos_ids=(128001, 128008, 128009)
)
_LLAMA32 = _LLAMA31.replace(rope_scaling=RopeScaling("llama3", 32.0, 8192), tied=True)
_QWEN2 = ModelConfig(
    family="qwen2", layers=28, width=3584, heads=28, kv_heads=4, head_dim=128, mlp_width=18944, vocab=152064,
    norm_eps=1e-6, qkv_bias=True, rope_theta=1e6, max_positions=32768, eos_ids=(151645, 151643), bos_id=151643,
    pad_id=151643,
)
_QWEN3 = ModelConfig(
    family="qwen3", layers=36, width=4096, heads=32, kv_heads=8, head_dim=128, mlp_width=12288, vocab=151936,
    norm_eps=1e-6, qk_norm=True, rope_theta=1e6, max_positions=40960, eos_ids=(151645, 151643), bos_id=151643,
    pad_id=151643,
)
_MISTRAL = ModelConfig(
    family="mistral", layers=32, width=4096, heads=32, kv_heads=8, head_dim=128, mlp_width=14336, vocab=32768,
    norm_eps=1e-5, rope_theta=1e6, max_positions=32768, eos_ids=(2,), bos_id=1,
)
_SMOLLM2 = ModelConfig(
    family="llama", layers=30, width=576, heads=9, kv_heads=3, head_dim=64, mlp_width=1536, vocab=49152,
    norm_eps=1e-5, rope_theta=1e5, max_positions=8192, tied=True, eos_ids=(2,), bos_id=1, pad_id=2,
)
_GPT2 = ModelConfig(
    family="gpt2", layers=12, width=768, heads=12, kv_heads=12, head_dim=64, mlp_width=3072, vocab=50257,
    norm="layer", norm_eps=1e-5, mlp="plain", activation="gelu_tanh", qkv_bias=True, out_bias=True, mlp_bias=True,
    positions="learned", max_positions=1024, tied=True, eos_ids=(50256,), bos_id=50256,
)
_NEMOTRON = ModelConfig(
    family="nemotron", layers=34, width=4096, heads=32, kv_heads=8, head_dim=128, mlp_width=14336, vocab=131072,
    attention="bidirectional", norm_eps=1e-5, rope_theta=1e6, max_positions=262144,
    rope_scaling=RopeScaling("yarn", 16.0, 16384, attention_factor=1.0), query_scale_beta=0.1, query_scale_length=16384,
    mask_id=100, eos_ids=(11,), bos_id=1, writes_causally=True, usual_block=32,
)
_DIT = ModelConfig(
    family="mdlm", layers=12, width=768, heads=12, kv_heads=12, head_dim=64, mlp_width=3072, vocab=50258,
    attention="bidirectional", norm="layer_weight", norm_eps=1e-5, mlp="plain", activation="gelu_tanh", mlp_bias=True,
    head_bias=True, time_conditioning="constant", time_width=128, max_positions=1024, mask_id=50257, eos_ids=(50256,),
    bos_id=50256,
)
# fmt: on


def _bd3lm(block: int) -> ModelConfig:
    return _DIT.replace(family="bd3lm", attention="block_causal", block_length=block)


def _gidd(uniform: float, layers: int = 12, width: int = 768, heads: int = 12) -> ModelConfig:
    return _DIT.replace(
        family="gidd",
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=heads,
        mlp_width=4 * width,
        time_conditioning="level",
        max_positions=512,
        uniform_noise=max(math.exp(-20), uniform),  # none at all would leave the posterior undefined
    )


def _sdar(base: ModelConfig) -> ModelConfig:
    return base.replace(
        family="sdar",
        attention="block_causal",
        block_length=4,
        mask_id=151669,
        eos_ids=(151643, 151645),
        max_positions=32768,
    )


def _fast_dllm(base: ModelConfig) -> ModelConfig:
    return base.replace(
        family="fast_dllm",
        attention="block_causal",
        block_length=32,
        shift_logits=True,
        mask_id=151665,
        pad_id=151645,
    )


def _gpt2(layers: int, width: int, heads: int) -> ModelConfig:
    return _GPT2.replace(layers=layers, width=width, heads=heads, kv_heads=heads, mlp_width=4 * width)


def _qwen3(layers: int, width: int, heads: int, mlp_width: int, tied: bool) -> ModelConfig:
    return _QWEN3.replace(layers=layers, width=width, heads=heads, mlp_width=mlp_width, tied=tied)


def _qwen2(
    layers: int, width: int, heads: int, kv_heads: int, head_dim: int, mlp_width: int, tied: bool
) -> ModelConfig:
    return _QWEN2.replace(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp_width=mlp_width,
        vocab=151936,
        tied=tied,
    )


def _a2d(base: ModelConfig) -> ModelConfig:
    """The mask token is one that dllm adds to the tokenizer, after the others."""
    return base.replace(family=f"a2d_{base.family}", attention="bidirectional", mask_id=151669)


_QWEN3_0_6B = _qwen3(28, 1024, 16, 3072, tied=True)
_QWEN3_1_7B = _qwen3(28, 2048, 16, 6144, tied=True)
_QWEN3_4B = _qwen3(36, 2560, 32, 9728, tied=True)
_QWEN2_0_5B = _qwen2(24, 896, 14, 2, 64, 4864, tied=True)
_QWEN2_1_5B = _qwen2(28, 1536, 12, 2, 128, 8960, tied=True)

_MMADA = _LLADA.replace(family="mmada", vocab=134656, text_vocab=126464)

PRESETS: dict[str, ModelConfig] = {
    "llada-8b-base": _LLADA,
    "llada-8b-instruct": _LLADA,
    "llada-1.5": _LLADA,
    "llada-moe-7b-a1b": _LLADA_MOE,
    "mmada-8b": _MMADA,
    "mmada-8b-mixcot": _MMADA,
    "dream-7b-base": _DREAM,
    "dream-7b-instruct": _DREAM,
    "dream-coder-7b": _DREAM.replace(bos_id=151665),
    "diffucoder-7b": _DREAM.replace(pad_id=151667),
    "sdar-1.7b": _sdar(_QWEN3_1_7B.replace(tied=False)),
    "sdar-4b": _sdar(_QWEN3_4B.replace(tied=False)),
    "sdar-8b": _sdar(_QWEN3),
    "fast-dllm-v2-1.5b": _fast_dllm(_QWEN2_1_5B),
    "fast-dllm-v2-7b": _fast_dllm(_QWEN2),
    "sdar-30b-a3b": _sdar(_QWEN3.replace(layers=48, width=2048, kv_heads=4, mlp_width=768)).replace(
        family="sdar_moe", experts=Experts(128, 8, renormalise=True)
    ),
    "llada2.0-mini": _LLADA2,
    "llada2.0-flash": _LLADA2.replace(
        layers=32,
        width=4096,
        heads=32,
        mlp_width=1024,
        dense_width=9216,
        experts=dataclasses.replace(_LLADA2.experts, shared_width=1024),  # pyright: ignore[reportArgumentType]
    ),
    "llada2.1-mini": _LLADA2.replace(max_positions=32768),
    "llama-2-7b": _LLAMA2,
    "llama-2-13b": _LLAMA2.replace(layers=40, width=5120, heads=40, kv_heads=40, mlp_width=13824),
    "llama-3-8b": _LLAMA3,
    "llama-3.1-8b": _LLAMA31,
    "llama-3.1-8b-instruct": _LLAMA31,
    "llama-3.2-1b": _LLAMA32.replace(layers=16, width=2048, head_dim=64, mlp_width=8192),
    "llama-3.2-3b": _LLAMA32.replace(layers=28, width=3072, heads=24, mlp_width=8192),
    "qwen2-0.5b": _QWEN2_0_5B,
    "qwen2-1.5b": _QWEN2_1_5B,
    "qwen2-7b": _QWEN2,
    "qwen2.5-0.5b": _QWEN2_0_5B,
    "qwen2.5-1.5b": _QWEN2_1_5B,
    "qwen2.5-3b": _qwen2(36, 2048, 16, 2, 128, 11008, tied=True),
    "qwen2.5-7b": _QWEN2,
    "qwen3-0.6b": _QWEN3_0_6B,
    "qwen3-1.7b": _QWEN3_1_7B,
    "qwen3-4b": _QWEN3_4B,
    "qwen3-8b": _QWEN3,
    "mistral-7b-v0.1": _MISTRAL.replace(vocab=32000, rope_theta=1e4, window=4096),
    "mistral-7b-v0.3": _MISTRAL,
    "smollm2-135m": _SMOLLM2,
    "smollm2-360m": _SMOLLM2.replace(layers=32, width=960, heads=15, kv_heads=5, mlp_width=2560),
    "smollm2-1.7b": _SMOLLM2.replace(layers=24, width=2048, heads=32, kv_heads=32, mlp_width=8192, rope_theta=1.3e5),
    "gpt2": _GPT2,
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
    "nemotron-labs-diffusion-8b": _NEMOTRON,
    "qwen3-0.6b-diffusion-mdlm": _a2d(_QWEN3_0_6B),
    "qwen3-0.6b-diffusion-bd3lm": _a2d(_QWEN3_0_6B),
    "mdlm-owt": _DIT,
    "bd3lm-owt-block_size4": _bd3lm(4),
    "bd3lm-owt-block_size8": _bd3lm(8),
    "bd3lm-owt-block_size16": _bd3lm(16),
    "gidd-small-p_unif-0.0": _gidd(0.0),
    "gidd-small-p_unif-0.1": _gidd(0.1),
    "gidd-small-p_unif-0.2": _gidd(0.2),
    "gidd-base-p_unif-0.0": _gidd(0.0, 24, 1024, 16),
    "gidd-base-p_unif-0.1": _gidd(0.1, 24, 1024, 16),
    "gidd-base-p_unif-0.2": _gidd(0.2, 24, 1024, 16),
}
"""Configurations of published models by name."""

# Where the weights are published; for a name that stands for several variants, the one that answers questions.
HUB_IDS: dict[str, str] = {
    "llada-8b-base": "GSAI-ML/LLaDA-8B-Base",
    "llada-8b-instruct": "GSAI-ML/LLaDA-8B-Instruct",
    "llada-1.5": "GSAI-ML/LLaDA-1.5",
    "llada-moe-7b-a1b": "inclusionAI/LLaDA-MoE-7B-A1B-Instruct",
    "mmada-8b": "Gen-Verse/MMaDA-8B-Base",
    "mmada-8b-mixcot": "Gen-Verse/MMaDA-8B-MixCoT",
    "dream-7b-base": "Dream-org/Dream-v0-Base-7B",
    "dream-7b-instruct": "Dream-org/Dream-v0-Instruct-7B",
    "dream-coder-7b": "Dream-org/Dream-Coder-v0-Instruct-7B",
    "diffucoder-7b": "apple/DiffuCoder-7B-Instruct",
    "sdar-1.7b": "JetLM/SDAR-1.7B-Chat",
    "sdar-4b": "JetLM/SDAR-4B-Chat",
    "sdar-8b": "JetLM/SDAR-8B-Chat",
    "fast-dllm-v2-1.5b": "Efficient-Large-Model/Fast_dLLM_v2_1.5B",
    "fast-dllm-v2-7b": "Efficient-Large-Model/Fast_dLLM_v2_7B",
    "sdar-30b-a3b": "JetLM/SDAR-30B-A3B-Chat",
    "llada2.0-mini": "inclusionAI/LLaDA2.0-mini",
    "llada2.0-flash": "inclusionAI/LLaDA2.0-flash",
    "llada2.1-mini": "inclusionAI/LLaDA2.1-mini",
    "llama-2-7b": "meta-llama/Llama-2-7b-hf",
    "llama-2-13b": "meta-llama/Llama-2-13b-hf",
    "llama-3-8b": "meta-llama/Meta-Llama-3-8B",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "llama-3.1-8b-instruct": "meta-llama/Llama-3.1-8B-Instruct",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B",
    "llama-3.2-3b": "meta-llama/Llama-3.2-3B",
    "qwen2-0.5b": "Qwen/Qwen2-0.5B",
    "qwen2-1.5b": "Qwen/Qwen2-1.5B",
    "qwen2-7b": "Qwen/Qwen2-7B",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B",
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B",
    "qwen2.5-3b": "Qwen/Qwen2.5-3B",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B",
    "qwen3-4b": "Qwen/Qwen3-4B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "mistral-7b-v0.1": "mistralai/Mistral-7B-v0.1",
    "mistral-7b-v0.3": "mistralai/Mistral-7B-v0.3",
    "smollm2-135m": "HuggingFaceTB/SmolLM2-135M",
    "smollm2-360m": "HuggingFaceTB/SmolLM2-360M",
    "smollm2-1.7b": "HuggingFaceTB/SmolLM2-1.7B",
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "nemotron-labs-diffusion-8b": "nvidia/Nemotron-Labs-Diffusion-8B",
    "qwen3-0.6b-diffusion-mdlm": "dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1",
    "qwen3-0.6b-diffusion-bd3lm": "dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1",
    "mdlm-owt": "kuleshov-group/mdlm-owt",
    "bd3lm-owt-block_size4": "kuleshov-group/bd3lm-owt-block_size4",
    "bd3lm-owt-block_size8": "kuleshov-group/bd3lm-owt-block_size8",
    "bd3lm-owt-block_size16": "kuleshov-group/bd3lm-owt-block_size16",
    "gidd-small-p_unif-0.0": "dvruette/gidd-small-p_unif-0.0",
    "gidd-small-p_unif-0.1": "dvruette/gidd-small-p_unif-0.1",
    "gidd-small-p_unif-0.2": "dvruette/gidd-small-p_unif-0.2",
    "gidd-base-p_unif-0.0": "dvruette/gidd-base-p_unif-0.0",
    "gidd-base-p_unif-0.1": "dvruette/gidd-base-p_unif-0.1",
    "gidd-base-p_unif-0.2": "dvruette/gidd-base-p_unif-0.2",
}


@checked()
def preset(name: str) -> ModelConfig:
    """The configuration of a published model, one of `jaxsink.PRESETS`.

    Examples:
        >>> jaxsink.preset("llada-8b-instruct").layers
        32
    """
    if name not in PRESETS:
        hint = near(name, PRESETS, 3) or "`jaxsink models` lists all"
        raise JaxsinkError(f"there is no preset {name!r}; {hint}.")
    return PRESETS[name]
