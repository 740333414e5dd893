"""Samplers against PyTorch: same weights, same run, float32 on this machine's CPU.

    python benchmarks/sampler.py                    12 layers x 768, prompt 128 + 128 new, vocabulary 32k
    python benchmarks/sampler.py --sweep            sequence lengths and vocabularies as well
    python benchmarks/sampler.py --json

Every round runs each variant once, in turn, so that a change of the machine's speed hits all of them. The results are
the ratios: each is the median of the rounds' own ratios. "captured" keeps all attention maps of a pass, with the head on the
current block only, as ours; "as published" has it on all positions, as LLaDA's own script does. "products alone" runs only
the matrix products of the layers, which bound what either framework can reach. Needs torch (extra `convert`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from random_model import make_model
from torch_llada import TorchModel

import jaxsink
from jaxsink.recording.attention import last_row, received
from jaxsink.recording.reductions import top


def timed(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def compare(
    variants: dict[str, Callable[[], Any]], ratios: dict[str, tuple[str, str]], steps: int, rounds: int
) -> dict[str, Any]:
    """Median time per step of every variant, its first call (which compiles or warms up), and the paired ratios."""
    first = {name: timed(run) for name, run in variants.items()}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            times[name].append(timed(run))
    return {
        "variants": {
            name: {"first_s": round(first[name], 2), "ms_per_step": round(1e3 * statistics.median(taken) / steps, 2)}
            for name, taken in times.items()
        },
        "ratios": {
            name: round(statistics.median(a / b for a, b in zip(times[one], times[other], strict=True)), 3)
            for name, (one, other) in ratios.items()
        },
    }


def products(model: jaxsink.Model, length: int, steps: int) -> dict[str, Callable[[], Any]]:
    """`steps` times the products of all layers with [length, width] activations, and nothing else, in both frameworks."""
    names = ("q", "k", "v", "o", "gate", "up", "down")
    stacked = {**model.params["layers"]["attention"], **model.params["layers"]["mlp"]}
    layers = [{name: stacked[name]["weight"][i] for name in names} for i in range(model.config.layers)]
    theirs = [{name: torch.from_numpy(np.array(w)) for name, w in layer.items()} for layer in layers]
    x = np.random.default_rng(0).normal(size=(length, model.config.width)).astype(np.float32)

    def chain(x: Any, layers: Any) -> Any:
        for w in layers:
            x = x + (x @ w["q"].T + x @ w["k"].T + x @ w["v"].T) @ w["o"].T
            x = x + (x @ w["gate"].T + x @ w["up"].T) @ w["down"].T
        return x

    compiled, start, tensor = jax.jit(chain), jax.numpy.asarray(x), torch.from_numpy(x)
    return {
        "jaxsink, products alone": lambda: [jax.block_until_ready(compiled(start, layers)) for _ in range(steps)],
        "PyTorch, products alone": lambda: [chain(tensor, theirs) for _ in range(steps)],
    }


def diffusion_case(args: argparse.Namespace, prompt: int, gen: int, vocab: int) -> dict[str, Any]:
    model = make_model(vocab, args.layers, args.width, causal=False)
    theirs, unrolled = TorchModel(model.config, model.params), model.unrolled()
    ids = np.random.default_rng(0).integers(0, vocab - 1, (1, prompt))
    sampler = jaxsink.LLaDASampler(gen_length=gen, steps=args.steps, block_length=min(32, gen))

    def ours(which: jaxsink.Model, record: Any) -> Callable[[], Any]:
        def run() -> Any:
            out = jaxsink.generate(which, ids, sampler, record=record)
            return jax.block_until_ready((out.tokens, out.record))

        return run

    settings = (gen, args.steps, sampler.block_length)
    variants = {
        "jaxsink scanned, statistics": ours(model, received()),
        "jaxsink, statistics": ours(unrolled, received()),
        "jaxsink, top-8 statistics": ours(unrolled, received().then(top(8))),
        "jaxsink, no statistics": ours(unrolled, None),
        "PyTorch eager, captured": lambda: theirs.diffuse(ids, *settings, capture=True),
        "PyTorch as published, captured": lambda: theirs.diffuse(ids, *settings, capture=True, whole_head=True),
        "PyTorch SDPA, no capture": lambda: theirs.diffuse(ids, *settings, capture=False),
        **products(model, prompt + gen, args.steps),
    }
    ratios = {
        "statistics / PyTorch captured": ("jaxsink, statistics", "PyTorch eager, captured"),
        "statistics / PyTorch as published": ("jaxsink, statistics", "PyTorch as published, captured"),
        "scanned statistics / PyTorch captured": ("jaxsink scanned, statistics", "PyTorch eager, captured"),
        "statistics / PyTorch SDPA": ("jaxsink, statistics", "PyTorch SDPA, no capture"),
        "statistics / none": ("jaxsink, statistics", "jaxsink, no statistics"),
        "products alone / PyTorch's": ("jaxsink, products alone", "PyTorch, products alone"),
        "products alone / step": ("jaxsink, products alone", "jaxsink, statistics"),
    }
    result = compare(variants, ratios, args.steps, args.rounds)
    tokens, record = theirs.diffuse(ids, *settings, capture=True)
    published, _ = theirs.diffuse(ids, *settings, capture=True, whole_head=True)
    out = jaxsink.generate(unrolled, ids, sampler, record=received())
    return {
        "case": f"diffusion, prompt {prompt} + {gen}, vocabulary {vocab}, {args.steps} steps",
        "same tokens": bool((np.asarray(out.tokens) == tokens.numpy()).all() and (published == tokens).all()),
        "largest difference of received": float(np.abs(np.asarray(out.record) - record.numpy()).max()),
        **result,
    }


def decoding_case(args: argparse.Namespace, prompt: int, new: int, vocab: int) -> dict[str, Any]:
    model = make_model(vocab, args.layers, args.width, causal=True)
    theirs, unrolled = TorchModel(model.config, model.params), model.unrolled()
    ids = np.random.default_rng(0).integers(0, vocab, (1, prompt))
    sampler = jaxsink.ARSampler(new, stop_at_eos=False)

    def ours(which: jaxsink.Model, record: Any) -> Callable[[], Any]:
        def run() -> Any:
            out = jaxsink.generate(which, ids, sampler, record=record)
            return jax.block_until_ready((out.tokens, out.record))

        return run

    variants = {
        "jaxsink scanned, last row": ours(model, last_row()),
        "jaxsink, last row": ours(unrolled, last_row()),
        "jaxsink, no statistics": ours(unrolled, None),
        "PyTorch, captured": lambda: theirs.decode(ids, new, capture=True),
        "PyTorch SDPA": lambda: theirs.decode(ids, new, capture=False),
    }
    ratios = {
        "last row / PyTorch captured": ("jaxsink, last row", "PyTorch, captured"),
        "no statistics / PyTorch SDPA": ("jaxsink, no statistics", "PyTorch SDPA"),
    }
    result = compare(variants, ratios, new, args.rounds)
    same = np.asarray(variants["jaxsink, no statistics"]()[0]) == theirs.decode(ids, new, capture=False).numpy()
    return {
        "case": f"decoding, prompt {prompt} + {new}, vocabulary {vocab}",
        "same tokens": bool(same.all()),
        **result,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--steps", type=int, default=4, help="diffusion steps; time per step does not depend on it")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sweep", action="store_true", help="also other lengths and vocabularies")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)

    shapes = [(128, 128, 32000)]
    if args.sweep:
        shapes += [(384, 128, 32000), (896, 128, 32000), (128, 128, 126464), (128, 128, 4096)]
    cases = [partial(diffusion_case, args, *shape) for shape in shapes]
    cases.insert(1, partial(decoding_case, args, 128, 64, 32000))
    results = []
    for case in cases:
        results.append(result := case())
        if args.json:
            continue
        print(f"\n{result['case']} (same tokens: {result['same tokens']})")
        for name, values in result["variants"].items():
            print(f"  {name:32s} {values['ms_per_step']:9.2f} ms/step   first call {values['first_s']:6.2f} s")
        for name, ratio in result["ratios"].items():
            print(f"  {name:40s} {ratio:.3f}", flush=True)
    if args.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
