"""Detection and tracking of sinks against NumPy: same record, same run, same figures out.

    python benchmarks/sinks.py                 128 steps x 32 layers x 32 heads x 512 tokens, as LLaDA-8B records them
    python benchmarks/sinks.py --json

"plain NumPy" loops over steps, layers and heads; it runs on a share of the layers, and its time is scaled up.
"vectorised NumPy" does the same on whole arrays. Both give all figures of `sinks.Tracks` but the kind of the head, and are
compared with it. The last figure is what detection and tracking add to a step of a 12 x 768 model on this machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxsink
from jaxsink.recording.attention import received
from jaxsink.sinks import Threshold, track
from jaxsink.sinks.track import PER_STEP

EPS = 3.0
Figures = dict[str, np.ndarray]


def plain(scores: np.ndarray) -> Figures:
    """[T,L,H,S], one head of one step at a time."""
    steps, layers, heads, length = scores.shape
    out: Figures = {
        "sinks": np.zeros(scores.shape, bool),
        "position": np.full((steps, layers, heads), -1),
        "centroid": np.full((steps, layers, heads), np.nan),
        "births": np.zeros((layers, heads, length), int),
        "deaths": np.zeros((layers, heads, length), int),
        "longest": np.zeros((layers, heads, length), int),
        "lifetime": np.zeros((layers, heads)),
        "jumps": np.zeros((layers, heads), int),
        "drift": np.zeros((layers, heads)),
        "score": np.zeros((steps, layers, heads)),
        "sink_count": np.zeros((steps, layers, heads), int),
        "absorbed": np.zeros((steps, layers, heads)),
        "steps_as_sink": np.zeros((layers, heads, length), int),
        "temporal_variance": np.zeros((layers, heads)),
        "spatial_variance": np.zeros((layers, heads)),
    }
    for layer in range(layers):
        for head in range(heads):
            before, run, moves, at_before = np.zeros(length, bool), np.zeros(length, int), [], -1
            for step in range(steps):
                score = scores[step, layer, head]
                others = (score.sum() - score) / (length - 1)
                sinks = score > others + EPS
                out["sinks"][step, layer, head] = sinks
                at = -1
                if sinks.any():
                    at = int(np.argmax(np.where(sinks, score, -np.inf)))
                    weight = score[sinks]
                    out["score"][step, layer, head] = score[at]
                    out["sink_count"][step, layer, head] = len(weight)
                    out["absorbed"][step, layer, head] = weight.sum() / score.sum()
                    out["centroid"][step, layer, head] = (weight * np.flatnonzero(sinks)).sum() / weight.sum()
                out["position"][step, layer, head] = at
                out["steps_as_sink"][layer, head] += sinks
                out["births"][layer, head] += sinks & ~before
                out["deaths"][layer, head] += before & ~sinks
                run = np.where(sinks, run + 1, 0)
                out["longest"][layer, head] = np.maximum(out["longest"][layer, head], run)
                if at >= 0 and at_before >= 0:
                    moves.append(at - at_before)
                before, at_before = sinks, at
            out["jumps"][layer, head] = np.count_nonzero(moves)
            out["drift"][layer, head] = np.mean(moves) if moves else 0.0
            centroids = out["centroid"][:, layer, head]
            known = centroids[~np.isnan(centroids)]
            out["temporal_variance"][layer, head] = known.var() if len(known) else 0.0
            out["spatial_variance"][layer, head] = scores[:, layer, head].mean(axis=0).var()
            births = out["births"][layer, head].sum()
            out["lifetime"][layer, head] = out["sinks"][:, layer, head].sum() / max(births, 1)
    return out


def vectorised(scores: np.ndarray) -> Figures:
    """The same on whole arrays."""
    length = scores.shape[-1]
    others = (scores.sum(axis=-1, keepdims=True) - scores) / (length - 1)
    sinks = scores > others + EPS
    present = sinks.any(axis=-1)
    position = np.where(present, np.argmax(np.where(sinks, scores, -np.inf), axis=-1), -1)
    weight = np.where(sinks, scores, 0)
    with np.errstate(invalid="ignore"):
        centroid = (weight @ np.arange(length, dtype=np.float32)) / weight.sum(axis=-1)
    before = np.concatenate([np.zeros_like(sinks[:1]), sinks[:-1]])
    births, deaths = (sinks & ~before).sum(axis=0), (before & ~sinks).sum(axis=0)
    run = longest = np.zeros(scores.shape[1:], np.int32)
    for now in sinks:
        run = np.where(now, run + 1, 0)
        longest = np.maximum(longest, run)
    follow = present[1:] & present[:-1]
    move = np.where(follow, position[1:] - position[:-1], 0)
    return {
        "sinks": sinks,
        "position": position,
        "centroid": centroid,
        "births": births,
        "deaths": deaths,
        "longest": longest,
        "lifetime": sinks.sum(axis=(0, -1)) / np.maximum(births.sum(axis=-1), 1),
        "jumps": (move != 0).sum(axis=0),
        "drift": move.sum(axis=0) / np.maximum(follow.sum(axis=0), 1),
        "score": np.where(present, np.where(sinks, scores, -np.inf).max(axis=-1), 0),
        "sink_count": sinks.sum(axis=-1),
        "absorbed": weight.sum(axis=-1) / scores.sum(axis=-1),
        "steps_as_sink": sinks.sum(axis=0),
        "temporal_variance": np.where(present.any(axis=0), np.nanvar(centroid, axis=0), 0),
        "spatial_variance": scores.mean(axis=0).var(axis=-1),
    }


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    result = run()
    return time.perf_counter() - begun, result


def make_record(steps: int, layers: int, heads: int, length: int) -> np.ndarray:
    """Scores as sinks make them: nearly all near zero, a thin tail, rows of a map summing to the length."""
    raw = np.random.default_rng(0).gamma(0.05, 1.0, (steps, layers, heads, length)).astype(np.float32)
    return raw / raw.sum(axis=-1, keepdims=True) * length


def share_of_a_step() -> dict[str, float]:
    """Time of detection and tracking per step over the time of the step that made the record."""
    base = jaxsink.preset("llada-8b-base")
    config = base.replace(
        layers=12,
        width=768,
        heads=12,
        kv_heads=12,
        head_dim=64,
        mlp_width=2048,
        vocab=32000,
        mask_id=31999,
        eos_ids=(1,),
        bos_id=None,
        pad_id=None,
        eot_id=None,
    )
    model = jaxsink.init(config).unrolled()
    ids = np.random.default_rng(0).integers(0, 31999, (1, 128))
    sampler = jaxsink.LLaDASampler(128, 16, 32)

    def generate() -> Any:
        return jax.block_until_ready(jaxsink.generate(model, ids, sampler, record=received()).record)

    record = generate()
    step = statistics.median(timed(generate)[0] for _ in range(3)) / 16
    jax.block_until_ready(track(record, Threshold(EPS)))
    seconds = statistics.median(
        timed(lambda: jax.block_until_ready(track(record, Threshold(EPS))))[0] for _ in range(9)
    )
    return {"step ms": 1e3 * step, "tracking ms per step": 1e3 * seconds / 16, "share": seconds / 16 / step}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args()
    scores = make_record(args.steps, args.layers, args.heads, args.length)
    on_device = jax.device_put(scores[:, :, None])  # [T,L,B,H,S]

    def ours() -> Any:
        return jax.block_until_ready(track(on_device, Threshold(EPS)))

    first, tracks = timed(ours)
    few = max(1, args.layers // 16)
    times: dict[str, list[float]] = {"plain NumPy": [], "vectorised NumPy": [], "jaxsink": []}
    for _ in range(args.rounds):
        seconds, by_loop = timed(lambda: plain(scores[:, :few]))
        times["plain NumPy"].append(seconds * args.layers / few)
        seconds, by_array = timed(lambda: vectorised(scores))
        times["vectorised NumPy"].append(seconds)
        times["jaxsink"].append(timed(ours)[0])
    for name, value in by_array.items():
        mine = np.asarray(getattr(tracks, name))
        mine = mine.squeeze(2 if name in PER_STEP else 1)
        np.testing.assert_allclose(mine, value, rtol=1e-4, atol=1e-4, err_msg=name)
        cut = value[:, :few] if name in PER_STEP else value[:few]
        np.testing.assert_allclose(by_loop[name], cut, rtol=1e-4, atol=1e-4, err_msg=name)

    def ratio(name: str) -> float:
        return statistics.median(a / b for a, b in zip(times[name], times["jaxsink"], strict=True))

    results = {
        "record": [args.steps, args.layers, args.heads, args.length],
        "seconds": {name: round(statistics.median(taken), 3) for name, taken in times.items()},
        "first call s": round(first, 2),
        "times faster than plain NumPy": round(ratio("plain NumPy"), 1),
        "times faster than vectorised NumPy": round(ratio("vectorised NumPy"), 2),
        "in a generation": {name: round(value, 4) for name, value in share_of_a_step().items()},
    }
    if args.json:
        print(json.dumps(results, indent=2))
    else:
        print(*(f"{name}: {value}" for name, value in results.items()), sep="\n")


if __name__ == "__main__":
    main()
