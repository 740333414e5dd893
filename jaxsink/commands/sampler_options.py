"""Options of the command line that choose and set up a sampler; which ones apply follows from the model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from jaxsink.errors import JaxsinkError

if TYPE_CHECKING:
    from jaxsink.config import ModelConfig

# Options of the command line, and what each sampler calls them.
_FILTERS = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k"}
SAMPLERS: dict[str, dict[str, str]] = {
    "LLaDASampler": {
        "steps": "steps", "block": "block_length", "temperature": "temperature", "cfg": "cfg_scale",
        "remasking": "remasking", "threshold": "threshold", "stop_at_eos": "stop_at_eos", "cache": "cache",
        "logits_eos_inf": "logits_eos_inf", "confidence_eos_eot_inf": "confidence_eos_eot_inf",
    },
    "DreamSampler": {"steps": "steps", "alg": "alg", "alg_temp": "alg_temp", **_FILTERS},
    "SDARSampler": {
        "steps_per_block": "steps_per_block", "threshold": "threshold", "stop_at_eos": "stop_at_eos", **_FILTERS,
    },
    "ARSampler": {"stop_at_eos": "stop_at_eos", "whole_map": "whole_map", **_FILTERS},
}  # fmt: skip
SAMPLER_OPTIONS = tuple(dict.fromkeys(option for table in SAMPLERS.values() for option in table))


def add_sampler_options(group: Any, length: str = "--tokens", default: int = 128) -> None:
    """All but the length default to None, so that an option the model's sampler does not have can be told apart."""
    switch, flag = argparse.BooleanOptionalAction, "store_const"
    group.add_argument(
        length, dest="tokens", metavar="N", type=positive, default=default,
        help="length of the response (default: %(default)s)",
    )  # fmt: skip
    group.add_argument("--steps", metavar="N", type=positive, help=f"LLaDA, Dream: steps in all (default: {length})")
    group.add_argument("--block", metavar="N", type=positive, help="LLaDA: block length (default: 32, or what fits)")
    group.add_argument("--steps-per-block", metavar="N", type=positive, help="SDAR (default: the block length)")
    group.add_argument("--temperature", metavar="X", type=float, help="0 takes the likeliest token (default: 0)")
    group.add_argument("--top-p", metavar="X", type=float, help="Dream, SDAR, AR: smallest set with this probability")
    group.add_argument("--top-k", metavar="N", type=int, help="Dream, SDAR, AR: the N likeliest tokens only")
    group.add_argument("--cfg", metavar="X", type=float, help="LLaDA: classifier-free guidance (default: 0)")
    group.add_argument("--remasking", choices=("low_confidence", "random"), help="LLaDA (default: low_confidence)")
    group.add_argument("--threshold", metavar="X", type=float, help="LLaDA, SDAR: commit all tokens at least this sure")
    group.add_argument(
        "--alg", choices=("origin", "maskgit_plus", "topk_margin", "entropy"), help="Dream (default: entropy)"
    )
    group.add_argument("--alg-temp", metavar="X", type=float, help="Dream: randomness of the order (default: none)")
    group.add_argument("--cache", choices=("prefix", "dual"), help="LLaDA: approximate, faster (Fast-dLLM)")
    group.add_argument("--stop-at-eos", action=switch, help="LLaDA, SDAR (default: no), AR (default: yes)")
    group.add_argument("--logits-eos-inf", action=flag, const=True, help="LLaDA: never choose the end token")
    group.add_argument("--confidence-eos-eot-inf", action=flag, const=True, help="LLaDA: commit end tokens last")
    group.add_argument("--whole-map", action=flag, const=True, help="AR: record all rows so far, not the last alone")


def positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text!r}")
    return value


def make_sampler(args: argparse.Namespace, config: ModelConfig) -> Any:
    """The sampler of the model's kind, with the options that were given."""
    from jaxsink.sampling import samplers

    name = sampler_name(config)
    known = SAMPLERS[name]
    given = {key: getattr(args, key) for key in SAMPLER_OPTIONS if getattr(args, key) is not None}
    for key in given:
        if key not in known:
            options = ", ".join(map(option, known))
            raise JaxsinkError(f"{option(key)} is not for a {config.family} model: its sampler has {options}.")
    values = {known[key]: value for key, value in given.items()}
    values["max_new_tokens" if name in ("DreamSampler", "ARSampler") else "gen_length"] = args.tokens
    if "steps" in known:
        values.setdefault("steps", args.tokens)
    if name == "LLaDASampler":
        values.setdefault("block_length", default_block(args.tokens))
        values["text_only"] = config.text_vocab is not None
        check_blocks(args, values["block_length"])
    if name == "ARSampler" and not args.temperature and (args.top_p is not None or args.top_k is not None):
        raise JaxsinkError("--top-p and --top-k choose among tokens to draw from, and need a --temperature above 0.")
    sampler = getattr(samplers, name)(**values)
    sampler.check(config)
    return sampler


def check_blocks(args: argparse.Namespace, block: int) -> None:
    """What LLaDASampler checks too, in the words of the command line."""
    if args.threshold is not None and args.steps is not None:
        raise JaxsinkError("--threshold lets the model decide how many steps it takes; give it or --steps, not both.")
    if args.tokens % block:
        raise JaxsinkError(f"--tokens {args.tokens} is not a multiple of --block {block}.")
    if args.steps is not None and args.steps % (args.tokens // block):
        blocks = args.tokens // block
        raise JaxsinkError(f"--steps {args.steps} cannot be shared evenly by the {blocks} blocks of --block {block}.")


def sampler_name(config: ModelConfig) -> str:
    if config.attention == "causal":
        return "ARSampler"
    if not config.is_diffusion:
        raise JaxsinkError(
            f"a {config.family} model, with {config.attention} attention and no mask token, cannot write."
        )
    if config.attention == "block_causal":
        return "SDARSampler"
    return "DreamSampler" if config.shift_logits else "LLaDASampler"


def option(key: str) -> str:
    return "--" + key.replace("_", "-")


def default_block(tokens: int) -> int:
    """32; or the largest length from 8 on that divides the response; or all of it."""
    return next((n for n in range(min(32, tokens), 7, -1) if tokens % n == 0), tokens)
