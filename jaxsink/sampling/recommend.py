"""Which sampler a model is made for: what its checkpoint says, what was published, or its family's usual one."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.samplers import ARSampler, DreamSampler, LLaDASampler, SDARSampler

if TYPE_CHECKING:
    from jaxsink.nn.transformer import Model

AnySampler = LLaDASampler | DreamSampler | SDARSampler | ARSampler
KINDS: dict[str, type[AnySampler]] = {
    kind.__name__: kind for kind in (LLaDASampler, DreamSampler, SDARSampler, ARSampler)
}
TOKENS = 256  # of a response, where nobody says anything else
# Published by the models' authors; what evals/settings.py has is not repeated here.
PUBLISHED: dict[str, AnySampler] = {
    "llada-1.5": LLaDASampler(256, 256, 16),
    "mmada-8b": LLaDASampler(256, 256, 64, text_only=True),
    "dream-coder-7b": DreamSampler(768, 768, alg="entropy", temperature=0.1, top_p=0.95),
}


def sampler_for(model: Model | str | os.PathLike[str]) -> Any:
    """The sampler that a model recommends: a loaded model, or the name or path of one, whose weights are not read.

    It comes from the checkpoint (built-in models, models that `jaxsink train` or `convert` wrote, and what
    `save(model, path, sampler=…)` says), from what was published for a model of that name, or from its family.
    """
    from jaxsink.nn.transformer import Model

    if isinstance(model, Model):
        return model.origin.sampler or recommended(model.config, model.origin.names)
    if not isinstance(model, (str, os.PathLike)):
        raise JaxsinkError(f"sampler_for takes a model, or the name or path of one, not {type(model).__name__}.")
    from jaxsink.checkpoints.load import describe  # which knows samplers

    config, origin = describe(model)
    return origin.sampler or recommended(config, origin.names)


def recommended(config: ModelConfig, names: Sequence[str] = ()) -> AnySampler:
    """What was published for a model of one of these names, if it fits the config; else the family's usual sampler."""
    found = [published(name) for name in names]
    sampler = next((one for one in found if one is not None and _fits(one, config)), None) or family_sampler(config)
    if sampler.length > config.max_positions // 2:  # so that a prompt fits as well
        sampler = with_length(sampler, max(1, config.max_positions // 2))
    return sampler


def _fits(sampler: AnySampler, config: ModelConfig) -> bool:
    """A directory may have the name of another model than the one in it."""
    try:
        sampler.check(config)
    except JaxsinkError:
        return False
    return isinstance(sampler, sampler_kind(config))


def sampler_kind(config: ModelConfig) -> type[AnySampler]:
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


def family_sampler(config: ModelConfig) -> AnySampler:
    kind = sampler_kind(config)
    if kind is LLaDASampler:
        return LLaDASampler(TOKENS, TOKENS, default_block(TOKENS), text_only=config.text_vocab is not None)
    if kind is DreamSampler:
        return DreamSampler(TOKENS, TOKENS, alg="entropy", temperature=0.1, top_p=0.9)
    return SDARSampler(TOKENS) if kind is SDARSampler else ARSampler(TOKENS)


def published(name: str) -> AnySampler | None:
    """By the name of a model, a directory or a file: "GSAI-ML/LLaDA-8B-Instruct", "llada-8b-instruct.Q8_0.gguf" …"""
    from jaxsink.evals.settings import SETTINGS
    from jaxsink.zoo.builtin import BUILTIN
    from jaxsink.zoo.presets import HUB_IDS

    known: dict[str, AnySampler] = {
        setting.name.split("/")[0]: setting.sampler()
        for setting in SETTINGS.values()
        if setting.name.endswith(("/gsm8k/study", "/gsm8k/small"))
    }
    known |= PUBLISHED | {builtin: facts.sampler for builtin, facts in BUILTIN.items()}
    said = _words(re.split("/|--", name)[-1])
    best: tuple[int, AnySampler | None] = (0, None)
    for key, sampler in known.items():
        for spelling in (key, HUB_IDS.get(key, key).rsplit("/", 1)[-1]):
            words = _words(spelling)
            if said[: len(words)] == words and len(words) > best[0]:
                best = len(words), sampler
    return best[1]


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[-_ ]|\.(?!\d)", name.lower()) if word]


def with_length(sampler: Any, length: int) -> Any:
    """The sampler for a response of another length: as many tokens per step, in blocks that fit."""
    if isinstance(sampler, LLaDASampler):
        whole, fits = sampler.block_length == sampler.gen_length, length % sampler.block_length == 0
        block = length if whole else sampler.block_length if fits else default_block(length)
        blocks = length // block
        steps = max(1, length * sampler.steps // sampler.gen_length // blocks) * blocks
        return replace(sampler, gen_length=length, block_length=block, steps=steps)
    if isinstance(sampler, DreamSampler):
        return replace(sampler, max_new_tokens=length, steps=max(1, length * sampler.steps // sampler.max_new_tokens))
    return replace(sampler, **{length_field(type(sampler)): length})


def length_field(kind: type[Any]) -> str:
    """What this class of samplers calls the length of a response."""
    return "max_new_tokens" if "max_new_tokens" in {field.name for field in dataclasses.fields(kind)} else "gen_length"


def default_block(tokens: int) -> int:
    """32; or the largest length from 8 on that divides the response; or all of it."""
    return next((n for n in range(min(32, tokens), 7, -1) if tokens % n == 0), tokens)


def recommended_entry(config: ModelConfig, names: Sequence[str] = ()) -> dict[str, Any] | None:
    """What a manifest says about a model of these names; nothing about one that cannot write."""
    try:
        return to_dict(recommended(config, names))
    except JaxsinkError:
        return None


def to_dict(sampler: AnySampler) -> dict[str, Any]:
    """As a checkpoint's manifest has it: the class and all fields."""
    if type(sampler) not in KINDS.values():
        raise JaxsinkError(f"a checkpoint can recommend one of {', '.join(KINDS)}, not {type(sampler).__name__}.")
    return {"name": type(sampler).__name__, **dataclasses.asdict(sampler)}


def from_dict(values: Mapping[str, Any], config: ModelConfig) -> AnySampler:
    """What `to_dict` wrote, checked against the model."""
    fields = dict(values)
    name = fields.pop("name", None)
    if name not in KINDS:
        raise JaxsinkError(f"unknown sampler {name!r}")
    try:
        sampler = KINDS[name](**fields)
        sampler.check(config)
    except TypeError as error:
        raise JaxsinkError(f"the sampler {name} has wrong settings ({error})") from error
    return sampler
