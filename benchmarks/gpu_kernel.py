"""Compile the GPU attention kernel on a machine without a GPU: registers, shared memory, temporaries, shapes of S x S.

    python benchmarks/gpu_kernel.py               chips x head sizes x types, and what XLA's own attention holds (a while)
    python benchmarks/gpu_kernel.py --check       three of them, for CI; exit code 1 if one spills or has a map
    python benchmarks/gpu_kernel.py --out FILE    as JSON, written after every case

Needs the extra `cuda` (for XLA's GPU compiler and its ptxas). Registers and what of them was spilled are ptxas's, for the
code that XLA gave it; shared memory is that of the launch as XLA plans it; temporaries are XLA's. Nothing was run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsink.nn import attention
from jaxsink.nn.batch import Execution, Keys
from jaxsink.nn.context import LayerContext, Queries, Visibility
from jaxsink.nn.kernels.gpu_blocks import choose_blocks
from jaxsink.nn.taps import Tap
from jaxsink.parallel import make_mesh
from jaxsink.planner.gpu import CHIPS, GPU, MULTIPROCESSORS, REGISTERS, has_compiler, parse_gpus
from jaxsink.recording.attention import received, received_by_query

LENGTH, HEADS, KV_HEADS = 4096, 4, 2
RECORDS = {"by kind": (received_by_query(),), "all": (received(),), "none": ()}
MIB = 1 << 20
CASES = [  # GPU, head size, type, backend, record
    *(
        (gpu, 128, "bfloat16", "pallas", "by kind")
        for gpu in ("a100-80g", "l40s", "h100", "b200", "rtx5090", "rtx3090")
    ),
    *(("h100", 128, "bfloat16", "pallas", record) for record in ("all", "none")),
    *(("h100", 128, "bfloat16", backend, "none") for backend in ("xla", "cudnn")),
    *(("h100", 128, "bfloat16", backend, "by kind") for backend in ("blocked", "naive")),
    *((gpu, size, "bfloat16", "pallas", "by kind") for gpu in ("l40s", "h100", "a100-80g") for size in (64, 256)),
    *((gpu, size, "float32", "pallas", "by kind") for gpu in ("l40s", "h100", "a100-80g") for size in (64, 128, 256)),
    *(
        (gpu, size, dtype, "pallas", "by kind")
        for gpu in ("b200",)
        for size in (64, 256)
        for dtype in ("bfloat16", "float32")
    ),
]


def layer(size: int, length: int, dtype: str, causal: bool, mesh: Mesh, backend: str, record: str) -> Tap:
    """A layer as shapes, one sequence, every option that costs something on."""
    whole = NamedSharding(mesh, PartitionSpec())

    def of(shape: tuple[int, ...], kind: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, kind, sharding=whole)

    mask, number = of((1, length), bool), of((1, length), jnp.int32)
    context = LayerContext(
        Keys(mask, number, number),
        Queries(mask, of((length,), jnp.int32), number, number),
        Visibility(mask, number, causal=causal),
        layer=of((), jnp.int32),
        drop=of((1, HEADS, length), bool),
        recorders=RECORDS[record],
        execution=Execution(backend, mesh),
    )
    q, k = (of((1, length, heads, size), dtype) for heads in (HEADS, KV_HEADS))
    return Tap(context, q, k, k, of((1, length, 8), dtype))


def compile_layer(
    name: str, size: int, dtype: str, backend: str = "pallas", record: str = "by kind", length: int = LENGTH
) -> dict[str, Any]:
    topology = parse_gpus(name)
    mesh = make_mesh(1, 1, topology.chip.describe(topology))
    tap = layer(size, length, dtype, True, mesh, backend, record)
    with tempfile.TemporaryDirectory() as dump, jax.set_mesh(mesh):
        options = {**topology.chip.compiler_options, "xla_dump_to": dump}
        compiled = jax.jit(attention.attend).lower(tap).compile(compiler_options=options)
        programs = launches(Path(dump)) if backend == "pallas" else {}
    found = describe(compiled, length)
    blocks = choose_blocks(length, size, jnp.dtype(dtype).itemsize)
    case = {"gpu": name, "capability": CHIPS[name].capability, "head size": size, "length": length, "type": dtype}
    cut = f"{blocks.queries} x {blocks.keys}" if backend == "pallas" else None
    return {**case, "backend": backend, "record": record, "blocks": cut, **found, "programs": programs}


def describe(compiled: jax.stages.Compiled, length: int) -> dict[str, Any]:
    sizes = compiled.memory_analysis()
    assert sizes is not None
    maps = set(re.findall(rf"\w+\[(?:\d+,)*{length},{length}\]", compiled.as_text() or ""))
    return {"temporaries MiB": round(sizes.temp_size_in_bytes / MIB, 2), "maps": len(maps)}


def launches(dump: Path) -> dict[str, dict[str, int]]:
    """Of the kernel's programs: threads and bytes of shared memory by XLA's plan, registers and spilled bytes by ptxas."""
    (plan,) = dump.glob("*thunk_sequence.txt")
    planned = plan.read_text()
    found = {}
    for code in dump.glob("*.ptx"):
        text = code.read_text()
        entry = re.search(r"\.entry (attention_\w+)\(", text)
        target = re.search(r"\.target (\w+)", text)
        if entry is None or target is None:
            continue
        launch = re.search(rf"{entry[1]} grid: .* threads: \[(\d+).*shared_memory: (\d+)", planned)
        assert launch is not None, planned
        said = subprocess.run(
            [str(ptxas()), "-v", f"-arch={target[1]}", str(code), "-o", os.devnull],
            capture_output=True, text=True, check=True,
        ).stderr  # fmt: skip
        registers, spilled = re.search(r"Used (\d+) registers", said), re.search(r"(\d+) bytes spill stores", said)
        assert registers is not None and spilled is not None, said
        numbers = (int(found[1]) for found in (registers, spilled))
        threads, shared = int(launch[1]), int(launch[2])
        found[entry[1]] = dict(zip(("registers", "spilled bytes"), numbers, strict=True))
        found[entry[1]] |= {"threads": threads, "shared bytes": shared}
    return dict(sorted(found.items(), reverse=True))


def ptxas() -> Path:
    """That of the wheels which the extra brings."""
    spec = find_spec("nvidia")
    assert spec is not None and spec.submodule_search_locations is not None
    return next(file for folder in spec.submodule_search_locations for file in Path(folder).glob("**/bin/ptxas"))


def xlas_own(name: str, implementation: str, length: int = LENGTH) -> dict[str, Any]:
    """JAX's attention of the same layer, which reports nothing of what keys receive."""
    topology = parse_gpus(name)
    mesh = make_mesh(1, 1, topology.chip.describe(topology))
    whole = NamedSharding(mesh, PartitionSpec())
    q, k = (jax.ShapeDtypeStruct((1, length, heads, 128), jnp.bfloat16, sharding=whole) for heads in (HEADS, KV_HEADS))
    attend: Callable[..., Any] = jax.jit(
        lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=implementation)
    )
    compiled = attend.lower(q, k, k).compile(compiler_options=dict(topology.chip.compiler_options))
    case = {"gpu": name, "capability": CHIPS[name].capability, "head size": 128, "length": length, "type": "bfloat16"}
    return {
        **case,
        "backend": f"jax.nn, {implementation}",
        "record": "none",
        **describe(compiled, length),
        "programs": {},
    }


def wrong(result: dict[str, Any]) -> bool:
    """A map of all pairs of tokens, or a program that does not fit the chip's registers and shared memory, or spills."""
    if result["backend"] != "pallas":
        return False
    chip: GPU = CHIPS[result["gpu"]]
    room = MULTIPROCESSORS[chip.capability].shared_of_block
    fits = all(
        one["shared bytes"] <= room and one["registers"] * one["threads"] <= REGISTERS and not one["spilled bytes"]
        for one in result["programs"].values()
    )
    return bool(result["maps"]) or not fits or not result["programs"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path, metavar="FILE")
    args = parser.parse_args()
    if not has_compiler():
        print("skipped: the extra `cuda` is not installed, and with it XLA's GPU compiler")
        return 0
    results = []
    for gpu, size, dtype, backend, record in CASES[:3] if args.check else CASES:
        own = backend in ("xla", "cudnn")
        results.append(result := xlas_own(gpu, backend) if own else compile_layer(gpu, size, dtype, backend, record))
        print(
            *(f"{key}: {value}" for key, value in result.items()),
            "WRONG" if wrong(result) else "",
            sep="  ",
            flush=True,
        )
        if args.out is not None:
            args.out.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(wrong(result) for result in results))


if __name__ == "__main__":
    sys.exit(main())
