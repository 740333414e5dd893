"""One process of a run over several, for test_hosts.py: python two_hosts.py FOLDER PORT COUNT NUMBER [die-at NAME]."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import jax
import numpy as np

import jaxsink
from jaxsink import parallel
from jaxsink.recording.attention import received
from jaxsink.runs import arrays
from jaxsink.sinks import MaskSinks, Threshold, track

folder, port, count, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
die_at = sys.argv[5] if len(sys.argv) > 5 else None
jax.config.update("jax_num_cpu_devices", 8 // count)
jax.config.update("jax_platforms", "cpu")

if count > 1:
    parallel.start(f"localhost:{port}", count, number)
mesh = parallel.make_mesh(4, 2)
model = jaxsink.load(folder / "model", mesh=mesh)
sampler = jaxsink.LLaDASampler(8, 8, 4, temperature=0.5)
results = folder / f"results-{sys.argv[6] if len(sys.argv) > 6 else count}"


def batch(start: int) -> dict[str, object]:
    prompts = np.random.default_rng(start).integers(4, 70, (6, 5))
    out = jaxsink.generate(model, prompts, sampler, record=received(), intervene=MaskSinks(1), seed=start)
    tracks = track(out.record, Threshold(1.0), out.mask)
    return {"tokens": out.tokens, "record": out.record, "sinks": tracks.sinks, "position": tracks.position}


def main() -> int:
    try:
        with parallel.together():
            for start in range(4):
                if die_at == str(start) and number == count - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                done = arrays.keep(results / f"batch-{start}.npz", lambda start=start: batch(start))
                print(f"batch-{start} {'computed' if done else 'kept'}", flush=True)
    except jaxsink.JaxsinkError as error:
        print(f"stopped: {error}", flush=True)
        os._exit(3)
    return 0


sys.exit(main())
