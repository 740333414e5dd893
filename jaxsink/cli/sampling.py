"""Options of the command line that set up a sampler; jaxsink.sampling.options says which apply to which model."""

from __future__ import annotations

import argparse
from typing import Any

from jaxsink.sampling.options import Sampling, of_sampler


def add_sampler_options(
    group: Any, length: str = "--tokens", default: str = "as the model recommends, like all that follows"
) -> None:
    """What is not given stays as the model recommends."""
    switch, flag = argparse.BooleanOptionalAction, "store_const"
    group.add_argument(length, metavar="N", type=positive, help=f"length of the response (default: {default})")
    group.add_argument(
        "--steps",
        metavar="N",
        type=positive,
        help="LLaDA, Dream, MDLM, GIDD, dllm's: steps in all (default: by the length); LLaDA2: per block",
    )
    group.add_argument(
        "--block",
        metavar="N",
        type=positive,
        help="LLaDA, LLaDA2, Dream, Nemotron, Fast-dLLM, dllm's: block length (default: the model's if it fits)",
    )
    group.add_argument("--small-block", metavar="N", type=positive, help="Fast-dLLM: length of the parts of a block")
    group.add_argument("--steps-per-block", metavar="N", type=positive, help="SDAR (default: the block length)")
    group.add_argument("--temperature", metavar="X", type=float, help="0 takes the likeliest token")
    group.add_argument("--top-p", metavar="X", type=float, help="Dream, SDAR, AR: smallest set with this probability")
    group.add_argument("--top-k", metavar="N", type=int, help="Dream, SDAR, AR: the N likeliest tokens only")
    group.add_argument("--cfg", metavar="X", type=float, help="LLaDA, dllm's: classifier-free guidance")
    group.add_argument(
        "--remasking",
        choices=("low_confidence", "random", "left_to_right"),
        help="LLaDA: which positions are committed: the surest, any, or the first ones",
    )
    group.add_argument(
        "--threshold",
        metavar="X",
        type=float,
        help="LLaDA, LLaDA2, SDAR, Nemotron, Fast-dLLM: commit all tokens this sure",
    )
    group.add_argument(
        "--editing-threshold", metavar="X", type=float, help="LLaDA2.1: replace tokens that it is this sure are others"
    )
    group.add_argument("--max-post-steps", metavar="N", type=int, help="LLaDA2.1: steps in a block that is full")
    group.add_argument("--num-to-transfer", metavar="N", type=positive, help="LLaDA2.1: tokens per step at least")
    group.add_argument("--eos-early-stop", action=switch, help="LLaDA2: end a sequence at its end token at once")
    group.add_argument(
        "--alg",
        choices=("origin", "maskgit_plus", "topk_margin", "entropy"),
        help="Dream: which positions are committed",
    )
    group.add_argument("--alg-temp", metavar="X", type=float, help="Dream: randomness of the order")
    group.add_argument("--cache", choices=("prefix", "dual"), help="LLaDA, Dream: approximate, faster (Fast-dLLM)")
    group.add_argument("--use-block-cache", action=flag, const=True, help="Fast-dLLM: approximate, faster")
    group.add_argument("--stop-at-eos", action=switch, help="all but Dream: end a sequence at its end token")
    group.add_argument("--causal-context", action=switch, help="Nemotron: prompt and finished blocks are read causally")
    group.add_argument("--right-shift-logits", action=switch, help="dllm's: logits predict the next position")
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
    if not 1 <= value < 1 << 31:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 2147483647, not {text[:30]!r}")
    return value


def sampler_options(args: argparse.Namespace) -> Sampling:
    """Those that were given."""
    return of_sampler({name: value for name, value in vars(args).items() if value is not None})
