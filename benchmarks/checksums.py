"""What verifying the checksums of a checkpoint costs: loads with and without, in turns, from memory (the page cache).

python benchmarks/checksums.py --json benchmarks/results/checksums.json

Models of several sizes. A round loads with and without, the one after the other, in turns; the share is that of the two of a
round, and what is given is the median of all rounds and the quarters around it, of the seconds and of the processor time,
which does not count waiting for others. A disk is slower than memory, so that there the share is smaller. On a busy
machine seconds say little, so the file is not written where others are at work. The speed of sums that could be checksums is
measured too: what is used (xxh3-64), what was before, and what would need no package.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

import jax
import numpy as np
from jaxtyping import UInt8
from machine import describe

import jaxsink
from jaxsink.checkpoints.checksums import KINDS

CHUNK = 1 << 18  # bytes that stay in a core's cache between two looks
BUSY = 1.5  # processes that wait for the processor, from which on seconds are not those of a load
Bytes = UInt8[np.ndarray, " bytes"]
Quarters = dict[str, float]
"""low, median, high: a quarter of the rounds is below the first, a quarter above the last."""


class Size(TypedDict):
    """Loads of a model of one size: what each took, by verified or not, and what verifying added, as a share."""

    layers: int
    bytes: int
    loads: dict[str, dict[str, Quarters]]
    added: dict[str, Quarters]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = "of the width of an 8B model, 0.44 GB each (default 1 2 4)"
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2, 4], help=words)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    if args.json and before > BUSY:
        parser.error(f"the machine is busy (load {before:.1f}, more than {BUSY}): {args.json} is not written; wait")
    sizes = [measure(layers, args.rounds) for layers in sorted(args.layers)]
    added = {what: share["median"] for what, share in sizes[-1]["added"].items()}
    figures = {
        "machine": {**describe(), "load before": f"{before:.1f}"},
        "rounds": args.rounds,
        "sizes": sizes,
        "bytes": sizes[-1]["bytes"],
        "added": added,
        "speed": speeds(args.rounds),
    }
    print(json.dumps(figures, indent=1))
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(layers: int, rounds: int) -> Size:
    """In each round both; the first round fills caches, and does not count."""
    config = jaxsink.PRESETS["llada-8b-instruct"].replace(
        layers=layers, vocab=1024, mask_id=1023, eos_ids=(1022,), pad_id=1022, eot_id=None, bos_id=None
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        jaxsink.save(jaxsink.init(config, dtype="bfloat16"), path)
        times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for number in range(rounds + 1):
            for verify in (True, False) if number % 2 else (False, True):
                took = one_load(path, verify)
                if number:
                    times[verify].append(took)
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    both = {"verified": np.array(times[True]), "unverified": np.array(times[False])}
    shares = both["verified"] / both["unverified"] - 1
    return {
        "layers": layers,
        "bytes": size,
        "loads": {name: by_clock(values) for name, values in both.items()},
        "added": by_clock(shares),
    }


def one_load(path: Path, verify: bool) -> tuple[float, float]:
    """(seconds, seconds of processor time)."""
    wall, processor = time.perf_counter(), time.process_time()
    jax.block_until_ready(jaxsink.load(path, verify=verify))
    return time.perf_counter() - wall, time.process_time() - processor


def by_clock(rounds: np.ndarray) -> dict[str, Quarters]:
    """Of both columns, the median and the quarters."""
    found = np.quantile(rounds, [0.25, 0.5, 0.75], axis=0)
    return {
        clock: dict(zip(("low", "median", "high"), map(float, found[:, column]), strict=True))
        for column, clock in enumerate(("seconds", "processor"))
    }


def rows_and_columns(stored: Bytes) -> None:
    """Sums of every 4 KB, and of what lies 4 KB apart."""
    for begin in range(0, stored.size, CHUNK):
        table = stored[begin : begin + CHUNK].view("<u8").reshape(-1, 512)
        table.sum(axis=1), table.sum(axis=0)


def speeds(rounds: int) -> dict[str, float]:
    """Bytes per second of processor time, of each way to sum up 256 MB; the best of all rounds, in turns."""
    stored = np.random.default_rng(0).integers(0, 256, 1 << 28, np.uint8)
    ways: dict[str, Callable[[Bytes], object]] = {name: kind.of for name, kind in KINDS.items()}
    ways |= {"sums of rows and columns": rows_and_columns, "crc32": lambda stored: zlib.crc32(stored.data)}
    found = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            begun = time.process_time()
            way(stored)
            found[name] = min(found[name], time.process_time() - begun)
    return {name: stored.size / seconds for name, seconds in found.items()}


if __name__ == "__main__":
    raise SystemExit(main())
