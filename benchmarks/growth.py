"""How time and memory of a diffusion step grow with the sequence: jaxsink with statistics, and PyTorch with its maps.

    python benchmarks/growth.py                       12 layers x 768, S = 256 … 4096
    python benchmarks/growth.py --lengths 256 512 --plot growth     growth.svg and growth.png

PyTorch "captured" keeps every layer's map until the pass is over, as a model that returns its attentions does; without
capture it uses its fused attention and has no statistics. Every figure is a process of its own, one after the other. The
memory is the peak of the process's resident bytes, compiling included, above what it held before its first step. 64 new
tokens, 2 steps a run, one row, float32. Needs torch (extra `convert`) and Linux.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

NEW, STEPS, BLOCK, VOCAB = 64, 2, 32, 32000
VARIANTS = ("jaxsink, statistics", "PyTorch, captured", "PyTorch, no capture")
MARKS = ("o-", "s--", "^:")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plot", metavar="NAME", help="also draw NAME.svg and NAME.png")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args, args.child[0], int(args.child[1]))))
        return
    rows = []
    for length in args.lengths:
        figures = {variant: in_child(args, variant, length) for variant in VARIANTS}
        ours, theirs = (figures[variant] for variant in VARIANTS[:2])
        ratios = {name: round(ours[name] / theirs[name], 3) for name in ours}
        rows.append({"length": length, **figures, "jaxsink / PyTorch captured": ratios})
        if not args.json:
            times = ", ".join(f"{v}: {f['ms_per_step']:.0f} ms, {f['peak_mib']:.0f} MiB" for v, f in figures.items())
            print(f"S = {length}: {times}; ratios {ratios['ms_per_step']}, {ratios['peak_mib']}", flush=True)
    if args.plot:
        draw(rows, Path(args.plot))
    if args.json:
        print(json.dumps(rows, indent=2))


def in_child(args: argparse.Namespace, variant: str, length: int) -> dict[str, float]:
    sizes = ["--layers", str(args.layers), "--width", str(args.width), "--rounds", str(args.rounds)]
    command = [sys.executable, __file__, *sizes, "--child", variant, str(length)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(args: argparse.Namespace, variant: str, length: int) -> dict[str, float]:
    """Median milliseconds of a step, and MiB of memory at the peak."""
    import jax
    import numpy as np
    from random_model import make_model
    from sampler import timed
    from torch_llada import TorchModel

    import jaxsink

    model = jax.block_until_ready(make_model(VOCAB, args.layers, args.width, causal=False))
    ids = np.random.default_rng(0).integers(0, VOCAB - 1, (1, length - NEW))
    if variant.startswith("jaxsink"):
        unrolled, sampler = jax.block_until_ready(model.unrolled()), jaxsink.LLaDASampler(NEW, STEPS, BLOCK)

        def run() -> Any:
            out = jaxsink.generate(unrolled, ids, sampler, record=jaxsink.record.received())
            return jax.block_until_ready((out.tokens, out.record))
    else:
        theirs = TorchModel(model.config, model.params)

        def run() -> Any:
            return theirs.diffuse(ids, NEW, STEPS, BLOCK, capture=variant.endswith("captured"))

    before = from_here_on()
    run()
    seconds = statistics.median(timed(run) for _ in range(args.rounds))
    return {"ms_per_step": round(1e3 * seconds / STEPS, 1), "peak_mib": round((memory("VmHWM") - before) / 1024, 1)}


def from_here_on() -> int:
    """KiB that this process holds; the peak of earlier work, such as building the model, is forgotten."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def memory(name: str) -> int:
    """KiB of this process, as Linux counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def draw(rows: list[dict[str, Any]], where: Path) -> None:
    from jaxsink.study.plots import canvas, save

    figure, ((time_axis, memory_axis),) = canvas(1, 2, width=8.0)
    lengths = [row["length"] for row in rows]
    for variant, mark in zip(VARIANTS, MARKS, strict=True):
        time_axis.plot(lengths, [row[variant]["ms_per_step"] for row in rows], mark, label=variant)
        memory_axis.plot(lengths, [row[variant]["peak_mib"] for row in rows], mark, label=variant)
    for axis, title, unit in ((time_axis, "time of a step", "ms"), (memory_axis, "memory above the weights", "MiB")):
        axis.set(xscale="log", yscale="log", xlabel="sequence length S", ylabel=unit, title=title)
        axis.set_xticks(lengths, [str(length) for length in lengths])
        axis.minorticks_off()
    time_axis.legend()
    save(figure, where.parent, where.name)


if __name__ == "__main__":
    main()
