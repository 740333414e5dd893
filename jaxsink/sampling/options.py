"""The settings of all samplers under one set of names, as the command line has them; which apply follows from the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from jaxsink.errors import JaxsinkError, a_model, option

if TYPE_CHECKING:
    from jaxsink.nn.config import ModelConfig
    from jaxsink.sampling.base import Sampler


class Sampling(TypedDict, total=False):
    """What may be changed of a sampler; what is None or not given stays as the model recommends.

    block: the block length of all that have blocks; small_block: of Fast-dLLM v2's small blocks; cfg: classifier-free
    guidance of LLaDA's and dllm's. All others have the names of the samplers' own fields.
    """

    steps: int | None
    block: int | None
    small_block: int | None
    steps_per_block: int | None
    threshold: float | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    cfg: float | None
    remasking: Literal["low_confidence", "random", "left_to_right"] | None
    alg: Literal["origin", "maskgit_plus", "topk_margin", "entropy"] | None
    alg_temp: float | None
    cache: Literal["prefix", "dual"] | None
    use_block_cache: bool | None
    stop_at_eos: bool | None
    causal_context: bool | None
    right_shift_logits: bool | None
    logits_eos_inf: bool | None
    confidence_eos_eot_inf: bool | None
    whole_map: bool | None
    editing_threshold: float | None
    max_post_steps: int | None
    num_to_transfer: int | None
    eos_early_stop: bool | None


RENAMED = {"block": "block_length", "small_block": "small_block_size", "cfg": "cfg_scale"}
FIELDS = {name: name for name in Sampling.__annotations__} | RENAMED


def with_options(config: ModelConfig, base: Sampler, tokens: int | None = None, **options: Unpack[Sampling]) -> Sampler:
    """The sampler `base` for a response of so many tokens, with what is given changed, checked for the model."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    fields = FIELDS | ({"block": "block_size"} if "block_size" in base.settings() else {})
    known = {name: field for name, field in fields.items() if field in base.settings()}
    for name in given:
        if name not in known:
            has = ", ".join(map(option, known))
            raise JaxsinkError(f"{option(name)} is not for {a_model(config.family)}: its sampler has {has}.")
    sampler = base if tokens is None else base.with_length(tokens)
    if {"block", "steps", "remasking", "cache"} <= known.keys():
        sampler = with_blocks(sampler, given)
    sampler = sampler.with_settings({known[name]: value for name, value in given.items()})
    chosen = vars(sampler)
    filters = [chosen[name] for name in ("top_p", "top_k") if chosen.get(name) is not None]
    if sampler.is_autoregressive and filters and not chosen.get("temperature"):
        raise JaxsinkError("--top-p and --top-k choose among tokens to draw from, and need a --temperature above 0.")
    sampler.check(config)
    return sampler


def of_sampler(options: Mapping[str, Any]) -> Sampling:
    """Those among a function's options."""
    return {name: value for name, value in options.items() if name in FIELDS}  # pyright: ignore[reportReturnType]


def with_blocks(sampler: Any, given: dict[str, Any]) -> Any:
    """LLaDA's sampler with the blocks that were asked for; what it checks too, in the words of the options."""
    block, length, steps = given.get("block", sampler.block_length), sampler.gen_length, given.get("steps")
    if "threshold" in given and steps is not None:
        raise JaxsinkError("--threshold lets the model decide how many steps it takes; give it or --steps, not both.")
    if length % block:
        raise JaxsinkError(f"--tokens {length} is not a multiple of --block {block}.")
    blocks = length // block
    if steps is not None and steps % blocks:
        raise JaxsinkError(f"--steps {steps} cannot be shared evenly by the {blocks} blocks of --block {block}.")
    return replace(sampler, block_length=block, steps=max(1, sampler.steps // blocks) * blocks)
