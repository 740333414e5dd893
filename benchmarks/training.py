"""How fast a training step is, against the machine's own matrix products in the same run.

    python benchmarks/training.py                 models of about 1M, 10M and 135M parameters, AdamW, float32
    python benchmarks/training.py --only 10M      one of them

Operations are counted as 6 for each weight of a product and token, plus those of attention (jaxsink/training/flops.py).
Peak: the best of float32 products of 2048 x 2048 matrices. Rounds of both alternate; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsink.nn.config import ModelConfig
from jaxsink.tasks.batches import Batch
from jaxsink.training.flops import flops_per_token
from jaxsink.training.recipe import llama_like
from jaxsink.training.settings import Settings
from jaxsink.training.start import small_model
from jaxsink.training.step import Lesson, data_mesh, make_step, start
from jaxsink.zoo.presets import preset

# name: (configuration, sequences per step, their length)
CASES: dict[str, tuple[ModelConfig, int, int]] = {
    "1M": (llama_like(4, 144, 4).replace(vocab=65), 32, 128),
    "10M": (llama_like(6, 384, 6).replace(vocab=65), 16, 256),
    "135M": (preset("smollm2-135m"), 4, 160),
}
SIZE = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args()
    figures = {name: measured(*CASES[name], rounds=args.rounds) for name in args.only}
    if args.json:
        print(json.dumps(figures, indent=2))
        return
    for name, found in figures.items():
        print(f"{name}: {found['gflops']:.0f} GFLOP/s of {found['peak']:.0f}, {found['share']:.0%}", flush=True)


def measured(config: ModelConfig, batch: int, length: int, rounds: int) -> dict[str, Any]:
    """A causal step's speed beside that of a plain product."""
    settings = Settings("causal", steps=1000, batch=batch, optimizer="adamw", predict="all")
    state, model = start(small_model(config, 0), settings, data_mesh(jax.devices()[:1]))
    step = make_step(Lesson(config, settings), None, data_mesh(jax.devices()[:1]))
    tokens = np.random.default_rng(0).integers(0, config.vocab, (batch, length)).astype(np.int32)
    shown = Batch(tokens, np.ones(tokens.shape, bool))
    square = jnp.ones((SIZE, SIZE))
    product = jax.jit(lambda x: x @ x)
    state, _ = step(state, shown, 0)
    seconds(partial(product, square))
    steps, products = [], []
    for number in range(1, rounds + 1):
        products.append(seconds(partial(product, square)))
        begin = time.perf_counter()
        state, _ = jax.block_until_ready(step(state, shown, number))
        steps.append(time.perf_counter() - begin)
    peak = 2 * SIZE**3 / min(products) / 1e9
    found = flops_per_token(config, length) * batch * length / statistics.median(steps) / 1e9
    weights = sum(leaf.size for leaf in jax.tree.leaves(model))
    return {"parameters": weights, "tokens": batch * length, "gflops": found, "peak": peak, "share": found / peak}


def seconds(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
