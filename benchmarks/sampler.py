"""Samplers against PyTorch: same weights, same run, float32 on this machine's CPU.

    python benchmarks/sampler.py                    12 layers x 768, prompt 128 + 128 new, vocabulary 32k
    python benchmarks/sampler.py --sweep            sequence lengths and vocabularies as well
    python benchmarks/sampler.py --json results.json

Every round runs each variant once, in turn, so that a change of the machine's speed hits all of them; a variant's figure
is its median over the rounds, and the ratios are the result. Needs torch (extra `convert`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from torch_llada import TorchModel

import jaxsink
from jaxsink.record import last_row, received
from jaxsink.reduce import top


def make_model(vocab: int, layers: int, width: int, causal: bool) -> jaxsink.Model:
    base = jaxsink.preset("llama-2-7b" if causal else "llada-8b-base")
    config = base.replace(
        layers=layers, width=width, heads=width // 64, kv_heads=width // 64, head_dim=64, mlp_width=width * 8 // 3,
        vocab=vocab, eos_ids=(1,), bos_id=None, pad_id=None, eot_id=None, max_positions=8192,
        **({} if causal else {"mask_id": vocab - 1}),
    )  # fmt: skip
    return jaxsink.init(config)


def timed(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def compare(variants: dict[str, Callable[[], Any]], steps: int, rounds: int) -> dict[str, dict[str, float]]:
    """{"variant": {"first": seconds, "ms": per step}}; the first call of each compiles or warms up."""
    first = {name: timed(run) for name, run in variants.items()}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            times[name].append(timed(run))
    return {
        name: {"first_s": round(first[name], 2), "ms_per_step": round(1e3 * statistics.median(times[name]) / steps, 2)}
        for name in variants
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
        "PyTorch SDPA, no capture": lambda: theirs.diffuse(ids, *settings, capture=False),
    }
    result = compare(variants, args.steps, args.rounds)
    tokens, record = theirs.diffuse(ids, *settings, capture=True)
    out = jaxsink.generate(unrolled, ids, sampler, record=received())
    ms = {name: values["ms_per_step"] for name, values in result.items()}
    return {
        "case": f"diffusion, prompt {prompt} + {gen}, vocabulary {vocab}, {args.steps} steps",
        "same tokens": bool((np.asarray(out.tokens) == tokens.numpy()).all()),
        "largest difference of received": float(np.abs(np.asarray(out.record) - record.numpy()).max()),
        "variants": result,
        "ratios": {
            "statistics / PyTorch captured": round(ms["jaxsink, statistics"] / ms["PyTorch eager, captured"], 3),
            "scanned statistics / PyTorch captured": round(
                ms["jaxsink scanned, statistics"] / ms["PyTorch eager, captured"], 3
            ),
            "statistics / PyTorch SDPA": round(ms["jaxsink, statistics"] / ms["PyTorch SDPA, no capture"], 3),
            "statistics / none": round(ms["jaxsink, statistics"] / ms["jaxsink, no statistics"], 3),
        },
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
    result = compare(variants, new, args.rounds)
    ms = {name: values["ms_per_step"] for name, values in result.items()}
    same = np.asarray(variants["jaxsink, no statistics"]()[0]) == theirs.decode(ids, new, capture=False).numpy()
    return {
        "case": f"decoding, prompt {prompt} + {new}, vocabulary {vocab}",
        "same tokens": bool(same.all()),
        "variants": result,
        "ratios": {
            "last row / PyTorch captured": round(ms["jaxsink, last row"] / ms["PyTorch, captured"], 3),
            "no statistics / PyTorch SDPA": round(ms["jaxsink, no statistics"] / ms["PyTorch SDPA"], 3),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--steps", type=int, default=16, help="diffusion steps; time per step does not depend on it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sweep", action="store_true", help="also other lengths and vocabularies")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)

    shapes = [(128, 128, 32000)]
    if args.sweep:
        shapes += [(384, 128, 32000), (896, 128, 32000), (128, 128, 126464), (128, 128, 4096)]
    results = [diffusion_case(args, *shape) for shape in shapes[:1]] + [decoding_case(args, 128, 64, 32000)]
    results += [diffusion_case(args, *shape) for shape in shapes[1:]]
    for result in results:
        print(f"\n{result['case']} (same tokens: {result['same tokens']})")
        for name, values in result["variants"].items():
            print(f"  {name:32s} {values['ms_per_step']:9.2f} ms/step   first call {values['first_s']:6.2f} s")
        for name, ratio in result["ratios"].items():
            print(f"  {name:40s} {ratio:.3f}")
    if args.json:
        machine = {
            "cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "jax": jax.__version__,
            "torch": torch.__version__, "python": platform.python_version(), "jaxsink": jaxsink.__version__,
        }  # fmt: skip
        with open(args.json, "w") as file:
            json.dump({"machine": machine, "results": results}, file, indent=2)


if __name__ == "__main__":
    main()
