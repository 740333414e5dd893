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
    group.add_argument(
        length,
        metavar="N",
        type=positive,
        help=f"length of the response (default: {default})",
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
    group.add_argument(
        "--remasking",
        choices=("low_confidence", "random", "left_to_right"),
        help="LLaDA: which positions are committed: the surest, any, or the first ones",
    )
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


def sampler_options(args: argparse.Namespace) -> Sampling:
    """Those that were given."""
    return of_sampler({name: value for name, value in vars(args).items() if value is not None})
