"""Compile the real samplers for TPU topologies on a machine without a TPU, and report the compiler's memory estimate.

    python benchmarks/tpu_compile.py                       a table of models and topologies
    python benchmarks/tpu_compile.py --check               small set with memory budgets, for CI; exit code 1 if exceeded
    python benchmarks/tpu_compile.py --model dream-7b-instruct --topology v5e:2x4 --batch 8 --json
    python benchmarks/tpu_compile.py --model llada-8b-instruct --prompt 4096 --gen 4096 --batch 1 --backend blocked

Needs the extra `tpu` (for its compiler, libtpu). Nothing is allocated: weights are shapes. Figures are compiler
estimates, not measurements.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from typing import Any

os.environ.update(
    TPU_SKIP_MDS_QUERY="1", TPU_ACCELERATOR_TYPE="v5litepod-4", TPU_WORKER_HOSTNAMES="localhost",
    TPU_STDERR_LOG_LEVEL="3", TPU_MIN_LOG_LEVEL="3", JAX_PLATFORMS="cpu",
)  # fmt: skip

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

import jaxsink
from jaxsink.attention import choose_backend
from jaxsink.checkpoint import named_leaves
from jaxsink.parallel import DATA, make_mesh, sharding_of
from jaxsink.record import received
from jaxsink.reduce import top
from jaxsink.sampling import diffusion, noise
from jaxsink.sampling.records import make_plan

GIB = 1 << 30
# (model, topology, batch, budget in GiB per device): what a change must not exceed
BUDGETS = [
    ("llada-8b-instruct", "v5e:2x4", 8, 2.5),
    ("dream-7b-instruct", "v5e:2x4", 8, 3.0),
]


def sampler_for(config: jaxsink.ModelConfig, gen: int, steps: int) -> Any:
    if config.shift_logits:
        return jaxsink.DreamSampler(gen, steps)
    return jaxsink.LLaDASampler(gen, steps, block_length=32)


def compile_sampler(
    name: str, topology: str, batch: int, prompt: int = 256, gen: int = 256, backend: str | None = None
) -> dict[str, Any]:
    """Compile the whole sampler run (all steps, reduced statistics) with bfloat16 weights sharded over the chips."""
    config = jaxsink.preset(name)
    bounds = {"chips_per_host_bounds": (1, 1, 1)} if topology.endswith("1x1") else {}
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology, **bounds).devices
    mesh = make_mesh(1, len(devices), devices)
    leaves, treedef = named_leaves(jaxsink.abstract(config, "bfloat16"))
    model = jax.tree.unflatten(
        treedef,
        [
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding_of(path, len(leaf.shape), config, mesh))
            for path, leaf in leaves
        ],
    )
    sampler = sampler_for(config, gen, gen)
    plan = make_plan(received().then(top(8)), None, 1, config)
    backend = choose_backend(backend, prompt + gen, prompt + gen, mesh)
    settings = diffusion.Settings(sampler, plan, None, prompt, False, backend, sampler.total_steps(gen), mesh=mesh)
    whole, rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(DATA))

    def placed(x: Any) -> Any:
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=rows if s.ndim else whole), x)

    tokens = jax.ShapeDtypeStruct((batch, prompt + gen), jnp.int32)
    real = jax.ShapeDtypeStruct(tokens.shape, bool)
    keys = jax.eval_shape(lambda: noise.row_keys(jnp.zeros(batch, jnp.uint32)))
    given = placed(diffusion.Given(real, real, noise.Draws(keys)))
    carry = placed(jax.eval_shape(lambda m, t, g: diffusion.start(m, t, g, settings), model, tokens, given))
    begun = time.perf_counter()
    with jax.set_mesh(mesh):
        compiled = diffusion.advance.lower(model, carry, given, settings, settings.total, True).compile()
    seconds = time.perf_counter() - begun
    memory = compiled.memory_analysis()
    used = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes
    return {
        "model": name, "topology": topology, "batch": batch, "sequence": prompt + gen,
        "backend": backend,
        "GiB per device": round((used - memory.alias_size_in_bytes) / GIB, 2),
        "temporaries GiB": round(memory.temp_size_in_bytes / GIB, 2),
        "maps": maps_in(compiled.as_text(), prompt + gen, config.heads * config.head_dim // len(devices)),
        "compile seconds": round(seconds, 1),
    }  # fmt: skip


def maps_in(text: str, length: int, heads_width: int) -> int | None:
    """How many shapes of an HLO program end in S x S: attention maps. None where a device's heads are S wide as well."""
    return None if length == heads_width else len(set(re.findall(rf"\w+\[(?:\d+,)+{length},{length}\]", text)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a preset, see jaxsink.PRESETS")
    parser.add_argument("--topology", default="v5e:2x4")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--gen", type=int, default=256)
    parser.add_argument("--backend", help="attention backend (default: as the sampler chooses)")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cases = [(args.model, args.topology, args.batch, np.inf)] if args.model else BUDGETS
    results, failed = [], False
    for name, topology, batch, budget in cases:
        result = compile_sampler(name, topology, batch, args.prompt, args.gen, args.backend)
        results.append(result)
        over = args.check and result["GiB per device"] > budget
        failed |= over
        if not args.json:
            print(
                *(f"{key}: {value}" for key, value in result.items()),
                "OVER BUDGET" if over else "",
                sep="  ",
                flush=True,
            )
    if args.json:
        print(json.dumps(results, indent=2))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
