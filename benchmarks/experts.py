"""A mixture of experts on this machine against PyTorch's loop over experts: the same weights, tokens and results.

    python benchmarks/experts.py                   64 experts, 8 of them per token, width 512, mlp width 256
    python benchmarks/experts.py --tokens 256 1024 --rounds 20 --json

Needs PyTorch. The loop is that of the models' own code: for each expert the tokens that chose it are gathered, multiplied,
weighed and added to the result. Both sides take turns, so that other work on the machine slows both, and the fastest of
their rounds are compared. "even" tokens choose their experts at random; of "alike" ones half are copies of one token, as
the masks of a canvas are at first, so that eight experts get half of all tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

import machine

import jaxsink
from jaxsink.nn.experts import MixtureOfExperts
from jaxsink.nn.linear import random_maker

EXPERTS, PER_TOKEN, WIDTH, MLP_WIDTH = 64, 8, 512, 256
TOKENS = (256, 1024)


def layer() -> MixtureOfExperts:
    config = jaxsink.preset("llada-moe-7b-a1b").replace(
        width=WIDTH, mlp_width=MLP_WIDTH, experts=jaxsink.Experts(EXPERTS, PER_TOKEN)
    )
    return MixtureOfExperts(random_maker(0, "float32", 0.05), (), config)


def inputs(tokens: int, kind: str) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((tokens, WIDTH)).astype(np.float32)
    if kind == "alike":
        x[: tokens // 2] = x[0]
    return x


def torch_loop(experts: MixtureOfExperts) -> Callable[[torch.Tensor], torch.Tensor]:
    """The loop over experts, with our weights."""
    router, gate, up, down = (
        torch.from_numpy(np.array(linear.weight[...]))
        for linear in (experts.router, experts.gate, experts.up, experts.down)
    )

    @torch.inference_mode()
    def run(x: torch.Tensor) -> torch.Tensor:
        weight, chosen = torch.topk(torch.softmax(x @ router.T, dim=-1), PER_TOKEN, dim=-1)
        is_chosen = torch.nn.functional.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        total = torch.zeros_like(x)
        for expert in range(EXPERTS):
            rank, token = torch.where(is_chosen[expert])
            own = x[token]
            hidden = torch.nn.functional.silu(own @ gate[expert].T) * (own @ up[expert].T)
            total.index_add_(0, token, (hidden @ down[expert].T) * weight[token, rank, None])
        return total

    return run


def measure(tokens: int, kind: str, rounds: int) -> dict[str, Any]:
    experts, x = layer(), inputs(tokens, kind)
    theirs, run = torch_loop(experts), jax.jit(lambda layer, x: layer(x))
    ours_x, theirs_x = jnp.asarray(x), torch.from_numpy(x)
    difference = float(np.abs(np.asarray(run(experts, ours_x)) - theirs(theirs_x).numpy()).max())
    assert difference < 1e-4, difference
    calls: dict[str, Callable[[], object]] = {
        "torch": lambda: theirs(theirs_x),
        "jaxsink": lambda: jax.block_until_ready(run(experts, ours_x)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begin)
    best = {name: min(times) for name, times in seconds.items()}
    return {
        "tokens": tokens,
        "choices": kind,
        **best,
        "faster": best["torch"] / best["jaxsink"],
        "difference": difference,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = [measure(tokens, kind, args.rounds) for tokens in args.tokens for kind in ("even", "alike")]
    if args.json:
        print(json.dumps({"machine": machine.describe(), "results": results}, indent=2))
        return 0
    for result in results:
        ours, theirs = (result[name] * 1e3 for name in ("jaxsink", "torch"))
        what = f"{result['tokens']} tokens, {result['choices']} choices"
        print(f"{what}: jaxsink {ours:.1f} ms, PyTorch's loop {theirs:.1f} ms, {result['faster']:.1f} times as fast")
    return 0


if __name__ == "__main__":
    sys.exit(main())
