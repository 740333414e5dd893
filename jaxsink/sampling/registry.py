"""The samplers by name, as checkpoints and the command line know them, and the usual one of each family."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.autoregressive import ARSampler
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.dream import DreamSampler
from jaxsink.sampling.llada import LLaDASampler, default_block
from jaxsink.sampling.sdar import SDARSampler

SAMPLERS: dict[str, type[Sampler]] = {
    kind.__name__: kind for kind in (LLaDASampler, DreamSampler, SDARSampler, ARSampler)
}
TOKENS = 256  # of a response, where nobody says anything else


def sampler_kind(config: ModelConfig) -> type[Sampler]:
    """The class of samplers that can run such a model."""
    if config.attention == "causal":
        return ARSampler
    if not config.is_diffusion:
        raise JaxsinkError(
            f"a {config.family} model, with {config.attention} attention and no mask token, cannot write."
        )
    if config.attention == "block_causal":
        return SDARSampler
    return DreamSampler if config.shift_logits else LLaDASampler


def family_sampler(config: ModelConfig) -> Sampler:
    """The usual sampler for such a model."""
    kind = sampler_kind(config)
    if kind is LLaDASampler:
        return LLaDASampler(TOKENS, TOKENS, default_block(TOKENS), text_only=config.text_vocab is not None)
    if kind is DreamSampler:
        return DreamSampler(TOKENS, TOKENS, alg="entropy", temperature=0.1, top_p=0.9)
    return SDARSampler(TOKENS) if kind is SDARSampler else ARSampler(TOKENS)


def to_dict(sampler: Sampler) -> dict[str, object]:
    """As a checkpoint's manifest has it: the class and all fields."""
    if type(sampler) not in SAMPLERS.values():
        raise JaxsinkError(f"a checkpoint can recommend one of {', '.join(SAMPLERS)}, not {type(sampler).__name__}.")
    return {"name": type(sampler).__name__, **dataclasses.asdict(sampler)}  # pyright: ignore[reportArgumentType]


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
