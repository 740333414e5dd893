"""Which sampler a model is made for: what its checkpoint says, what was published, or its family's usual one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jaxsink.errors import JaxsinkError
from jaxsink.evals.settings import SETTINGS
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.transformer import Transformer
from jaxsink.sampling.ancestral import AncestralSampler
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.dllm import BD3LMSampler, MDLMSampler
from jaxsink.sampling.dream import DreamSampler
from jaxsink.sampling.fast_dllm import FastDLLMv2Sampler
from jaxsink.sampling.gidd import GIDDSampler
from jaxsink.sampling.llada import LLaDASampler
from jaxsink.sampling.llada2 import LLaDA2Sampler
from jaxsink.sampling.nemotron import NemotronSampler
from jaxsink.sampling.registry import family_sampler, sampler_kind, to_dict
from jaxsink.zoo.presets import HUB_IDS

# Published by the models' authors; what evals/settings.py has is not repeated here.
PUBLISHED: dict[str, Sampler] = {
    "llada-1.5": LLaDASampler(256, 256, 16),
    "mmada-8b": LLaDASampler(256, 256, 64, text_only=True),
    "nemotron-labs-diffusion-8b": NemotronSampler(512, 8, 0.9),
    "qwen3-0.6b-diffusion-mdlm": MDLMSampler(256, 256, 256),
    "qwen3-0.6b-diffusion-bd3lm": BD3LMSampler(256, 256, 32),
    "dream-coder-7b": DreamSampler(768, 768, alg="entropy", temperature=0.1, top_p=0.95),
    "fast-dllm-v2-1.5b": FastDLLMv2Sampler(256, 32, 8, threshold=0.9),
    "fast-dllm-v2-7b": FastDLLMv2Sampler(256, 32, 8, threshold=0.9),
    "bd3lm-owt-block_size4": AncestralSampler(1024, top_p=0.9),
    "bd3lm-owt-block_size8": AncestralSampler(1024, top_p=0.9),
    "bd3lm-owt-block_size16": AncestralSampler(1024, top_p=0.9),
    "mdlm-owt": AncestralSampler(1024, 128),
    "gidd-small": GIDDSampler(512, 128),
    "gidd-base": GIDDSampler(512, 128),
    "llada2.0-mini": LLaDA2Sampler(512, eos_early_stop=True),
    "llada2.0-flash": LLaDA2Sampler(512, eos_early_stop=True),
    "llada2.1-mini": LLaDA2Sampler(512, threshold=0.7, editing_threshold=0.5, eos_early_stop=True),  # "quality mode"
}


def model_sampler(model: Transformer) -> Sampler:
    """The sampler that a loaded model recommends."""
    return model.origin.sampler or recommended(model.config, model.origin.names)


def recommended(config: ModelConfig, names: Sequence[str] = ()) -> Sampler:
    """What was published for a model of one of these names, if it fits the config; else the family's usual sampler."""
    found = [published(name) for name in names]
    sampler = next((one for one in found if one is not None and _fits(one, config)), None) or family_sampler(config)
    longest = max(1, config.max_positions // 2)  # so that a prompt fits as well
    return sampler.with_length(longest) if sampler.response_length > longest else sampler


def _fits(sampler: Sampler, config: ModelConfig) -> bool:
    """A directory may have the name of another model than the one in it."""
    try:
        sampler.check(config)
    except JaxsinkError:
        return False
    return isinstance(sampler, sampler_kind(config))


def published(name: str) -> Sampler | None:
    """By the name of a model, a directory or a file: "GSAI-ML/LLaDA-8B-Instruct", "llada-8b-instruct.Q8_0.gguf" …"""
    from jaxsink.zoo.builtin import BUILTIN  # reads a tokenizer, which few need

    known: dict[str, Sampler] = {
        setting.name.split("/")[0]: setting.sampler()
        for setting in SETTINGS.values()
        if setting.name.endswith(("/gsm8k/study", "/gsm8k/small"))
    }
    known |= PUBLISHED | {builtin: facts.sampler for builtin, facts in BUILTIN.items()}
    said = _words(re.split("/|--", name)[-1])
    best: tuple[int, Sampler | None] = (0, None)
    for key, sampler in known.items():
        for spelling in (key, HUB_IDS.get(key, key).rsplit("/", 1)[-1]):
            words = _words(spelling)
            if said[: len(words)] == words and len(words) > best[0]:
                best = len(words), sampler
    return best[1]


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[-_ ]|\.(?!\d)", name.lower()) if word]


def recommended_entry(config: ModelConfig, names: Sequence[str] = ()) -> dict[str, object] | None:
    """What a manifest says about a model of these names; nothing about one that cannot write."""
    try:
        return to_dict(recommended(config, names))
    except JaxsinkError:
        return None
