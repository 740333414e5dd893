"""Options of the command line that choose and set up a sampler; which ones apply follows from the model."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxsink.errors import JaxsinkError

if TYPE_CHECKING:
    from jaxsink.nn.config import ModelConfig
    from jaxsink.sampling.base import Sampler

# Options of the command line, and what each sampler calls them.
_FILTERS = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k"}
SAMPLERS: dict[str, dict[str, str]] = {
    "LLaDASampler": {
        "steps": "steps",
        "block": "block_length",
        "temperature": "temperature",
        "cfg": "cfg_scale",
        "remasking": "remasking",
        "threshold": "threshold",
        "stop_at_eos": "stop_at_eos",
        "cache": "cache",
        "logits_eos_inf": "logits_eos_inf",
        "confidence_eos_eot_inf": "confidence_eos_eot_inf",
    },
    "DreamSampler": {"steps": "steps", "alg": "alg", "alg_temp": "alg_temp", **_FILTERS},
    "SDARSampler": {
        "steps_per_block": "steps_per_block",
        "threshold": "threshold",
        "stop_at_eos": "stop_at_eos",
        **_FILTERS,
    },
    "ARSampler": {"stop_at_eos": "stop_at_eos", "whole_map": "whole_map", **_FILTERS},
}
SAMPLER_OPTIONS = tuple(dict.fromkeys(option for table in SAMPLERS.values() for option in table))


def add_sampler_options(group: Any, length: str = "--tokens", default: int | None = None) -> None:
    """All default to None but, where a default is given, the length: what is not set stays as the model recommends."""
    switch, flag = argparse.BooleanOptionalAction, "store_const"
    group.add_argument(
        length,
        dest="tokens",
        metavar="N",
        type=positive,
        default=default,
        help=f"length of the response (default: {default or 'as the model recommends, like all that follows'})",
    )
    group.add_argument(
        "--steps", metavar="N", type=positive, help="LLaDA, Dream: steps in all (default: by the length)"
    )
    group.add_argument(
        "--block", metavar="N", type=positive, help="LLaDA: block length (default: the model's if it fits)"
    )
    group.add_argument("--steps-per-block", metavar="N", type=positive, help="SDAR (default: the block length)")
    group.add_argument("--temperature", metavar="X", type=float, help="0 takes the likeliest token")
    group.add_argument("--top-p", metavar="X", type=float, help="Dream, SDAR, AR: smallest set with this probability")
    group.add_argument("--top-k", metavar="N", type=int, help="Dream, SDAR, AR: the N likeliest tokens only")
    group.add_argument("--cfg", metavar="X", type=float, help="LLaDA: classifier-free guidance")
    group.add_argument("--remasking", choices=("low_confidence", "random"), help="LLaDA: which positions are committed")
    group.add_argument("--threshold", metavar="X", type=float, help="LLaDA, SDAR: commit all tokens at least this sure")
    group.add_argument(
        "--alg",
        choices=("origin", "maskgit_plus", "topk_margin", "entropy"),
        help="Dream: which positions are committed",
    )
    group.add_argument("--alg-temp", metavar="X", type=float, help="Dream: randomness of the order")
    group.add_argument("--cache", choices=("prefix", "dual"), help="LLaDA: approximate, faster (Fast-dLLM)")
    group.add_argument("--stop-at-eos", action=switch, help="LLaDA, SDAR, AR: end a sequence at its end token")
    group.add_argument("--logits-eos-inf", action=flag, const=True, help="LLaDA: never choose the end token")
    group.add_argument("--confidence-eos-eot-inf", action=flag, const=True, help="LLaDA: commit end tokens last")
    group.add_argument(
        "--whole-map", action=flag, const=True, help="AR: record all queries so far, not the newest alone"
    )


def positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text!r}")
    return value


def make_sampler(args: argparse.Namespace, config: ModelConfig, base: Sampler | None = None) -> Any:
    """The recommended sampler `base`, or the family's usual one, with the given fields replaced."""
    from jaxsink.sampling.registry import family_sampler

    base = base or family_sampler(config)
    known = SAMPLERS[type(base).__name__]
    given = {key: getattr(args, key) for key in SAMPLER_OPTIONS if getattr(args, key) is not None}
    for key in given:
        if key not in known:
            options = ", ".join(map(option, known))
            raise JaxsinkError(f"{option(key)} is not for a {config.family} model: its sampler has {options}.")
    sampler = base if args.tokens is None else base.with_length(args.tokens)
    if "block" in known:
        sampler = with_blocks(args, sampler)
    sampler = sampler.with_settings({known[key]: value for key, value in given.items()})
    chosen = vars(sampler)
    filters = [chosen[name] for name in ("top_p", "top_k") if chosen.get(name) is not None]
    if sampler.is_autoregressive and filters and not chosen.get("temperature"):
        raise JaxsinkError("--top-p and --top-k choose among tokens to draw from, and need a --temperature above 0.")
    sampler.check(config)
    return sampler


def with_blocks(args: argparse.Namespace, sampler: Any) -> Any:
    """LLaDA's sampler with the blocks that were asked for; what it checks too, in the words of the command line."""
    block, length = args.block or sampler.block_length, sampler.gen_length
    if args.threshold is not None and args.steps is not None:
        raise JaxsinkError("--threshold lets the model decide how many steps it takes; give it or --steps, not both.")
    if length % block:
        raise JaxsinkError(f"--tokens {length} is not a multiple of --block {block}.")
    blocks = length // block
    if args.steps is not None and args.steps % blocks:
        raise JaxsinkError(f"--steps {args.steps} cannot be shared evenly by the {blocks} blocks of --block {block}.")
    return replace(sampler, block_length=block, steps=max(1, sampler.steps // blocks) * blocks)


def option(key: str) -> str:
    return "--" + key.replace("_", "-")
