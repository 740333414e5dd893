"""The logit lens over a diffusion run: ours inside the compiled loop, TransformerLens's, and an eager PyTorch loop.

    python benchmarks/lens.py                       6 layers x 256, prompt 32 + 32 new, vocabulary 8192
    python benchmarks/lens.py --layers 12 --width 768 --vocab 32000 --new 128 --json

All have LLaDA's canvases of the same random weights in float32 and keep, of every step, layer and position, the five best
tokens with their log-probabilities, the entropy and the divergence from the last layer. Ours writes the text as well; the
others only read the canvases of that run (`torch_lens.py`). Each is a process of its own that waits while another one runs;
rounds take turns, ratios are medians of the rounds' own, and peak memory is that of each process, compilation included.
Needs torch (extra `convert`); TransformerLens is left out where it is not installed (`pip install transformer-lens`).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from memory import peak
from random_model import make_model

import jaxsink
from jaxsink.nn.parameters import named_leaves

TOP = 5
HERE = Path(__file__).parent
SIZES = {"layers": 6, "width": 256, "vocab": 8192, "prompt": 32, "new": 32, "batch": 2}
OURS, OTHERS = ("plain", "ours"), ("torch", "transformer_lens")
FIELDS = ("layers", "width", "heads", "kv_heads", "head_dim", "vocab", "mlp_width", "rope_theta", "norm_eps", "mask_id")


def made(args: argparse.Namespace) -> tuple[jaxsink.Model, np.ndarray]:
    model = make_model(args.vocab, args.layers, args.width, causal=False)
    return model, np.random.default_rng(0).integers(2, args.vocab - 2, (args.batch, args.prompt))


def keep_run(args: argparse.Namespace, path: Path) -> None:
    """Weights and canvases, for the others."""
    model, prompt = made(args)
    plain = jaxsink.generate(model, prompt, jaxsink.LLaDASampler(args.new, args.new, args.new)).on_host()
    assert model.config.mask_id is not None
    canvases = [plain.canvas(step, model.config.mask_id) for step in range(args.new)]
    config = {name: getattr(model.config, name) for name in FIELDS}
    weights: dict[str, Any] = {f"params.{name}": np.asarray(leaf) for name, leaf in named_leaves(model)[0]}
    np.savez(path, config=json.dumps(config), canvases=np.stack(canvases).astype(np.int64), **weights)


def alone(kind: str, args: argparse.Namespace) -> None:
    """A round for each line on standard input, as the others have it; without the lens if plain."""
    model, prompt = made(args)
    sampler, found = jaxsink.LLaDASampler(args.new, args.new, args.new), dict[str, Any]()
    record, before = jaxsink.record.lens(TOP) if kind == "ours" else None, peak()
    for _ in sys.stdin:
        begun = time.perf_counter()
        out = jaxsink.generate(model, prompt, sampler, record=record)
        found = jax.tree.map(np.asarray, out.record or {})
        np.asarray(out.tokens)
        print(time.perf_counter() - begun, flush=True)
    np.savez(args.run.with_name(f"{kind}.npz"), **found)
    print(before, peak(), flush=True)


def process(kind: str, args: argparse.Namespace, run: Path) -> subprocess.Popen[str]:
    options = [f"--{name}={getattr(args, name)}" for name in SIZES]
    ours = [str(HERE / "lens.py"), *options, "--alone", kind, "--run", str(run)]
    command = ours if kind in OURS else [str(HERE / "torch_lens.py"), kind, str(run)]
    return subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answer(one: subprocess.Popen[str], asked: str = "go\n") -> list[float]:
    assert one.stdin is not None and one.stdout is not None
    one.stdin.write(asked)
    one.stdin.flush() if asked else one.stdin.close()
    return [float(value) for value in one.stdout.readline().split()]


def compare(args: argparse.Namespace) -> dict[str, Any]:
    kinds = [*OURS, *(kind for kind in OTHERS if importlib.util.find_spec(kind))]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run.npz"
        keep_run(args, run)
        running = {kind: process(kind, args, run) for kind in kinds}
        for one in running.values():
            answer(one)  # it compiles, or warms up
        rounds = [{kind: answer(one)[0] for kind, one in running.items()} for _ in range(args.rounds)]
        memory = {kind: answer(one, "") for kind, one in running.items()}
        for one in running.values():
            one.wait()
        seen = {kind: dict(np.load(run.with_name(f"{kind}.npz"))) for kind in kinds if kind != "plain"}
    others = [kind for kind in kinds if kind not in OURS]

    def ratio(a: str, b: str) -> float:
        return statistics.median(one[a] / one[b] for one in rounds)

    return {
        "shape": {name: getattr(args, name) for name in SIZES},
        "rounds": args.rounds,
        "versions": {name: version(name) for name in ("jax", "torch", *(["transformer-lens"] * (len(others) > 1)))},
        "seconds": {kind: statistics.median(one[kind] for one in rounds) for kind in kinds},
        "over_ours": {kind: ratio(kind, "ours") for kind in others},
        "lens_over_plain": ratio("ours", "plain"),
        "same_best_token": {
            kind: float((seen["ours"]["token"][..., 0] == seen[kind]["token"][..., 0]).mean()) for kind in others
        },
        "peak_mib": {kind: {"before": before, "peak": most} for kind, (before, most) in memory.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--alone", choices=OURS, help=argparse.SUPPRESS)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        return alone(args.alone, args)
    result = compare(args)
    if args.json:
        print(json.dumps(result, indent=2))
        return None
    print(f"a run with the lens takes {result['lens_over_plain']:.2f} times one without")
    for kind, memory in result["peak_mib"].items():
        time_of = f"{result['over_ours'][kind]:.2f} times ours, " if kind in result["over_ours"] else ""
        print(f"{kind}: {time_of}{memory['peak']:.0f} MiB, {memory['before']:.0f} before the first round")
    return None


if __name__ == "__main__":
    main()
