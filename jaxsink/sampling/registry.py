"""The samplers by name, as checkpoints and the command line know them, and the usual one of each family."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jaxsink.errors import JaxsinkError, a_model
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.ancestral import AncestralSampler
from jaxsink.sampling.autoregressive import ARSampler
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.dllm import BD3LMSampler, MDLMSampler
from jaxsink.sampling.dream import DreamSampler
from jaxsink.sampling.fast_dllm import FastDLLMv2Sampler
from jaxsink.sampling.gidd import GIDDSampler
from jaxsink.sampling.llada import LLaDASampler, default_block
from jaxsink.sampling.llada2 import LLaDA2Sampler
from jaxsink.sampling.nemotron import NemotronSampler
from jaxsink.sampling.sdar import SDARSampler
from jaxsink.sampling.speculation import SpeculativeSampler

SAMPLERS: dict[str, type[Sampler]] = {
    kind.__name__: kind
    for kind in (
        *(LLaDASampler, LLaDA2Sampler, DreamSampler, SDARSampler, ARSampler, FastDLLMv2Sampler),
        *(NemotronSampler, SpeculativeSampler, MDLMSampler, BD3LMSampler, AncestralSampler, GIDDSampler),
    )
}
USUAL: dict[str, type[Sampler]] = {  # of families that have one of their own
    "bd3lm": AncestralSampler,
    "mdlm": AncestralSampler,
    "llada2_moe": LLaDA2Sampler,
    "nemotron": NemotronSampler,
    "a2d_qwen3": MDLMSampler,
    "a2d_qwen2": MDLMSampler,
    "a2d_llama": MDLMSampler,
}
TOKENS = 256  # of a response, where nobody says anything else


def sampler_kind(config: ModelConfig) -> type[Sampler]:
    """The class of samplers that can run such a model."""
    if config.attention == "causal":
        return ARSampler
    if not config.is_diffusion:
        raise JaxsinkError(
            f"{a_model(config.family)}, with {config.attention} attention and no mask token, cannot write."
        )
    if config.uniform_noise:
        return GIDDSampler
    if config.family in USUAL:
        return USUAL[config.family]
    if config.attention == "block_causal":
        return FastDLLMv2Sampler if config.shift_logits else SDARSampler
    return DreamSampler if config.shift_logits else LLaDASampler


def family_sampler(config: ModelConfig) -> Sampler:
    """The usual sampler for such a model."""
    kind = sampler_kind(config)
    if kind is LLaDASampler:
        return LLaDASampler(TOKENS, TOKENS, default_block(TOKENS), text_only=config.text_vocab is not None)
    if kind is GIDDSampler:
        return GIDDSampler(TOKENS)
    if kind is AncestralSampler:
        return AncestralSampler(TOKENS, None if config.time_conditioning in (None, "constant") else TOKENS, top_p=0.9)
    if kind is DreamSampler:
        return DreamSampler(TOKENS, TOKENS, alg="entropy", temperature=0.1, top_p=0.9)
    if kind is MDLMSampler:
        return MDLMSampler(TOKENS, TOKENS, TOKENS)
    if kind is NemotronSampler:
        return NemotronSampler(TOKENS)
    if kind is FastDLLMv2Sampler:
        assert config.block_length is not None
        return FastDLLMv2Sampler(TOKENS, config.block_length, math.gcd(8, config.block_length))
    if kind is LLaDA2Sampler:
        return LLaDA2Sampler(TOKENS, eos_early_stop=True)
    return SDARSampler(TOKENS) if kind is SDARSampler else ARSampler(TOKENS)


def to_dict(sampler: Sampler) -> dict[str, object]:
    """As a checkpoint's manifest has it: the class and all fields."""
    if type(sampler) not in SAMPLERS.values():
        raise JaxsinkError(f"a checkpoint can recommend one of {', '.join(SAMPLERS)}, not {type(sampler).__name__}.")
    return {"name": type(sampler).__name__, **sampler.stated()}


def from_dict(values: Mapping[str, object], config: ModelConfig) -> Sampler:
    """What `to_dict` wrote, checked against the model."""
    fields = dict(values)
    name = str(fields.pop("name", None))
    if name not in SAMPLERS:
        raise JaxsinkError(f"unknown sampler {name!r}")
    try:
        sampler = SAMPLERS[name](**fields)
        sampler.check(config)
    except TypeError as error:
        raise JaxsinkError(f"the sampler {name} has wrong settings ({error})") from error
    return sampler
