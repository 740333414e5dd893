"""Compile the attention kernel with the real TPU compiler, on a machine without a TPU, and count its instructions.

    python benchmarks/kernel.py                    chips x head sizes x lengths, and the other backends beside it
    python benchmarks/kernel.py --check            a small set for CI; exit code 1 if one does not compile or holds a map
    python benchmarks/kernel.py --topology v5e:1x1 --size 128 --length 8192 --json

Needs the extra `tpu` (for its compiler, libtpu). All figures are the compiler's, none is measured on a TPU:
kernel cycles     instruction bundles of the kernel as scheduled, times the steps of its grid; the compiler has no estimate
                  of its own for Pallas. Memory traffic is not in it, which the kernel overlaps with its work.
backend cycles    the sum of the compiler's `estimated_cycles`, loop bodies times their trips.
                  Neither is given for causal layers, where the kernel chooses per tile which of its parts runs, if any.
peak share        the two products' multiplications at the bfloat16 peak of v4, v5e and v5p, over these cycles.
record            what keys receive is added up by kind of query, for all together, or not at all.
temporaries       bytes outside the kernel's VMEM; maps: shapes in the program that end in S x S.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(KERNEL_BUNDLES=tempfile.mkdtemp(prefix="kernel-bundles-"))
os.environ.update(
    TPU_SKIP_MDS_QUERY="1",
    TPU_ACCELERATOR_TYPE="v5litepod-4",
    TPU_WORKER_HOSTNAMES="localhost",
    TPU_STDERR_LOG_LEVEL="3",
    TPU_MIN_LOG_LEVEL="3",
    JAX_PLATFORMS="cpu",
    LIBTPU_INIT_ARGS=f"--xla_jf_dump_to={os.environ['KERNEL_BUNDLES']} --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_llo_pass_label_regex=.*final_bundles.*",
)

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from jaxsink.nn import attention
from jaxsink.nn.batch import Execution, Keys
from jaxsink.nn.context import LayerContext, Queries, Visibility
from jaxsink.nn.kernels import tiles
from jaxsink.nn.taps import Tap
from jaxsink.parallel import make_mesh
from jaxsink.recording.attention import received, received_by_query

DUMPS = Path(os.environ["KERNEL_BUNDLES"])  # where the compiler writes its schedules
TOPOLOGIES = ("v4:2x2x1", "v5e:1x1", "v5p:2x2x1", "v6e:1x1", "tpu7x:2x2x1")
SIZES, LENGTHS = (64, 80, 96, 128, 256), (512, 4096, 8192, 32768)
COMPARED = (("v5e:1x1", 128, 512), ("v5e:1x1", 128, 4096), ("v5e:1x1", 128, 8192), ("v6e:1x1", 128, 4096))
MACS_PER_CYCLE = 4 * 128 * 128  # of v4, v5e and v5p: times two and the clock, this is their published peak
RECORDS = {"by kind": (received_by_query(),), "all": (received(),), "none": ()}  # what keys receive: from whom
HEADS = 4  # as many as one of eight chips has of an 8B model


def layer(size: int, length: int, dtype: str, causal: bool, mesh: Any, backend: str, record: str) -> Tap:
    """A layer as shapes, one sequence, every option that costs something on."""
    whole = NamedSharding(mesh, PartitionSpec())

    def of(shape: tuple[int, ...], kind: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, kind, sharding=whole)

    q = of((1, length, HEADS, size), dtype)
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
    return Tap(context, q, q, q, of((1, length, 8), dtype))


def compile_layer(
    topology: str, size: int, length: int, name: str, dtype: str, causal: bool, record: str = "by kind"
) -> dict[str, Any]:
    bounds = {"chips_per_host_bounds": (1, 1, 1)} if topology.endswith("1x1") else {}
    device = topologies.get_topology_desc(platform="tpu", topology_name=topology, **bounds).devices[0]
    mesh = make_mesh(1, 1, [device])
    tap = layer(size, length, dtype, causal, mesh, name, record)
    before, begun = set(DUMPS.iterdir()), time.perf_counter()
    with jax.set_mesh(mesh):
        compiled = jax.jit(attention.attend).lower(tap).compile()
    text = compiled.as_text()
    cycles = estimated_cycles(text)
    cut, wide, item = None, tiles.up_to(size, 128), jnp.dtype(dtype).itemsize
    if name == "pallas":
        budget = tiles.vmem_budget(device.device_kind)
        cut = tiles.choose_tiles(length, length, wide, item, budget, record != "none")
        steps = HEADS * cut.query_blocks * cut.key_tiles
        cycles = kernel_bundles(set(DUMPS.iterdir()) - before) * steps
    macs = 2 * HEADS * length * length * size
    known = not causal and topology.startswith(("v4", "v5"))
    return {
        "topology": topology,
        "head size": size,
        "length": length,
        "type": dtype,
        "causal": causal,
        "backend": name,
        "record": record,
        "block x tile": None if cut is None else f"{cut.query_block} x {cut.key_tile}",
        "VMEM MiB": None
        if cut is None
        else round(
            tiles.vmem_bytes(cut.query_block, cut.key_tile, cut.key_tiles, wide, item, record != "none") / tiles.MIB, 1
        ),
        "maps": len(set(re.findall(rf"\w+\[(?:\d+,)*{length},{length}\]", text))) if length != HEADS * wide else None,
        "temporaries MiB": round(compiled.memory_analysis().temp_size_in_bytes / tiles.MIB, 2),
        "cycles": None if causal else cycles,
        "peak share": round(macs / MACS_PER_CYCLE / cycles, 3) if known else None,
        "compile seconds": round(time.perf_counter() - begun, 1),
    }


def kernel_bundles(files: set[Path]) -> int:
    """Instruction bundles of the kernel, from what the compiler wrote about its schedule."""
    (report,) = (f for f in files if "attention_" in f.name and "schedule-analysis" in f.name)
    found = re.search(r"total scheduled bundles:\s+(\d+)", report.read_text())
    assert found is not None
    return int(found[1])


def estimated_cycles(text: str) -> int:
    """Of a whole HLO program: computations called by a loop count as often as it turns."""
    computations: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        if header := re.match(r"(ENTRY )?%([\w.\-]+) .*\{$", line):
            name = header[2]
            entry = name if header[1] else entry
            computations[name] = []
        elif name:
            computations[name].append(line)

    def total(name: str) -> int:
        cycles = 0
        for line in computations[name]:
            if own := re.search(r'"estimated_cycles":"(\d+)"', line):
                cycles += int(own[1]) if len(own[1]) < 18 else 0  # the largest whole number stands for "unknown"
            if loop := re.search(r" while\(.*condition=%([\w.\-]+), body=%([\w.\-]+)", line):
                trips = re.search(r" constant\((\d+)\)", "\n".join(computations[loop[1]]))
                assert trips is not None, "a loop of unknown length has no estimate"
                cycles += int(trips[1]) * total(loop[2])
        return cycles

    return total(entry)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", choices=TOPOLOGIES)
    parser.add_argument("--size", type=int, help="of a head")
    parser.add_argument("--length", type=int, help="of the sequence")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    chosen = [
        (args.topology,) if args.topology else TOPOLOGIES,
        (args.size,) if args.size else SIZES,
        (args.length,) if args.length else LENGTHS,
    ]
    cases: list[Any] = [(t, s, n, "pallas", "bfloat16", False) for t in chosen[0] for s in chosen[1] for n in chosen[2]]
    if args.check:
        cases = [(t, 128, 8192, "pallas", "bfloat16", True) for t in TOPOLOGIES]
        cases += [("v4:2x2x1", 256, 32768, "pallas", "float32", True), ("v5e:1x1", 80, 512, "pallas", "float32", False)]
    else:
        compared = [case for case in COMPARED if case in {other[:3] for other in cases}]
        cases += [(*case, name, "bfloat16", False) for case in compared for name in ("naive", "blocked")]
        cases += [(*case, "pallas", "bfloat16", False, record) for case in compared for record in ("all", "none")]
    results, failed = [], False
    for case in cases:
        try:
            result = compile_layer(*case)
            wrong = case[3] == "pallas" and bool(result["maps"])
        except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError) as error:
            result, wrong = {"case": case, "error": str(error).splitlines()[0][:200]}, True
        failed |= wrong
        results.append(result)
        if not args.json:
            print(*(f"{key}: {value}" for key, value in result.items()), "WRONG" if wrong else "", sep="  ", flush=True)
    shutil.rmtree(DUMPS)
    if args.json:
        print(json.dumps(results, indent=2))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
