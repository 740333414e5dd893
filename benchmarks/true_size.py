"""LLaDA-8B at its true width: peak memory and time of converting, loading and generating, against `cat` and `cp`.

    python benchmarks/true_size.py --layers 8                      about 5 GB of weights, 12 GB of disk
    python benchmarks/true_size.py --layers 32 --json out.json     the whole model: 16 GB, 34 GB of disk
    python benchmarks/true_size.py --before ~/old/.venv/bin/python the same with another installation of jaxsink beside it

Random bfloat16 weights under the published names, in shards of 5 GB with an index, and the published configuration. Each
figure is one run in a process of its own; the files it reads are taken out of the page cache before (posix_fadvise), and
what it writes ends on the disk (fsync). Seconds of a conversion or a load are those of the work, without the imports;
a step is the median of those after the first, on 32 + 32 tokens, with `record.received()`. Peaks are VmHWM of the process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import machine

WIDTH, MLP, VOCAB, HEADS = 4096, 12288, 126464, 32
SHARD_BYTES = 5_000_000_000
CHUNK = 16 << 20
STEPS = 5
PROMPT = RESPONSE = 32
CONFIG = {
    "activation_type": "silu",
    "architectures": ["LLaDAModelLM"],
    "d_model": WIDTH,
    "embedding_size": VOCAB,
    "eos_token_id": 126081,
    "include_bias": False,
    "layer_norm_type": "rms",
    "mask_token_id": 126336,
    "max_sequence_length": 4096,
    "mlp_hidden_size": MLP,
    "model_type": "llada",
    "n_heads": HEADS,
    "n_kv_heads": HEADS,
    "pad_token_id": 126081,
    "rms_norm_eps": 1e-05,
    "rope": True,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "vocab_size": VOCAB,
    "weight_tying": False,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8, help="of the 32 (default 8)")
    parser.add_argument("--before", metavar="PYTHON", help="a Python with another jaxsink, to measure beside this one")
    parser.add_argument("--only", nargs="+", metavar="RUN", help="only runs whose name holds one of these words")
    parser.add_argument("--folder", help="where to work (default: the system's temporary folder)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        what, *words = args.child
        print(json.dumps(CHILDREN[what](*words)))
        return 0
    pythons = {"after": sys.executable} if args.before is None else {"before": args.before, "after": sys.executable}
    with tempfile.TemporaryDirectory(prefix="jaxsink-true-size-", dir=args.folder) as folder:
        figures = measure(Path(folder), args.layers, pythons, args.only)
    print(table(figures))
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(folder: Path, layers: int, pythons: dict[str, str], only: list[str] | None) -> dict[str, Any]:
    source, result = folder / "source", folder / "converted"
    size = make_checkpoint(source, layers)
    runs: dict[str, tuple[str, ...]] = {
        "cat": ("cat", str(source)),
        "cp + fsync": ("copy", str(source), str(folder / "copy")),
        "convert": ("convert", str(source), str(result)),
        "load converted": ("load", str(result), "bfloat16"),
        "load converted, int8": ("load", str(result), "int8"),
        "load source": ("load", str(source), "bfloat16"),
        "load source, int8": ("load", str(source), "int8"),
        "generate, bfloat16": ("generate", str(result), "bfloat16"),
        "generate, int8": ("generate", str(result), "int8"),
    }
    figures: dict[str, Any] = {"machine": machine.describe(), "layers": layers, "bytes": size, "runs": {}}
    for name, arguments in runs.items():
        if only and name != "convert" and not any(word in name for word in only):
            continue
        figures["runs"][name] = {}
        for label, python in pythons.items():
            forget(source)
            forget(result)
            if name == "convert":
                shutil.rmtree(result, ignore_errors=True)
            figures["runs"][name][label] = in_child(python, *arguments)
            shutil.rmtree(folder / "copy", ignore_errors=True)
    return figures


def table(figures: dict[str, Any]) -> str:
    lines = [f"LLaDA-8B, {figures['layers']} of 32 layers, {figures['bytes'] / 1e9:.1f} GB of bfloat16 weights"]
    lines.append(f"{'':22}{'':8}{'seconds':>9}{'s per step':>12}{'peak GB':>9}")
    for name, by_label in figures["runs"].items():
        for label, run in by_label.items():
            step = f"{run['step']:.2f}" if "step" in run else ""
            lines.append(f"{name:22}{label:8}{run['seconds']:9.1f}{step:>12}{run['peak'] / 1e9:9.2f}")
    return "\n".join(lines)


def in_child(python: str, *arguments: str) -> dict[str, Any]:
    command = [python, __file__, "--child", *arguments]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tempfile.gettempdir())
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def timed(work: Callable[[], Any]) -> dict[str, float]:
    begun = time.perf_counter()
    work()
    return {"seconds": time.perf_counter() - begun, "peak": peak()}


def cat(folder: str) -> dict[str, float]:
    def read() -> None:
        block = memoryview(bytearray(CHUNK))
        for file in sorted(Path(folder).iterdir()):
            with file.open("rb", buffering=0) as opened:
                while opened.readinto(block):
                    pass

    return timed(read)


def copy(source: str, target: str) -> dict[str, float]:
    def both() -> None:
        Path(target).mkdir()
        for file in sorted(Path(source).iterdir()):
            with file.open("rb") as reading, (Path(target) / file.name).open("wb") as writing:
                while chunk := reading.read(CHUNK):
                    writing.write(chunk)
                writing.flush()
                os.fsync(writing.fileno())

    return timed(both)


def convert(source: str, target: str) -> dict[str, float]:
    import jax

    from jaxsink.checkpoints.storage import orbax
    from jaxsink.cli.main import main as command

    orbax()
    jax.device_put(0.0).block_until_ready()
    sys.stdout = sys.stderr
    figures = timed(lambda: command(["convert", source, target, "--json"]))
    sys.stdout = sys.__stdout__
    return figures


def load(path: str, dtype: str) -> dict[str, float]:
    import jax

    import jaxsink
    from jaxsink.checkpoints.storage import orbax

    orbax()
    jax.device_put(0.0).block_until_ready()
    return timed(lambda: jax.block_until_ready(jaxsink.load(path, dtype=dtype)))


def generate(path: str, dtype: str) -> dict[str, float]:
    import numpy as np

    import jaxsink

    begun = time.perf_counter()
    model = jaxsink.load(path, dtype=dtype)
    times: list[float] = []
    jaxsink.generate(
        model,
        np.arange(PROMPT)[None] + 1000,
        jaxsink.LLaDASampler(RESPONSE, STEPS, RESPONSE),
        record=jaxsink.record.received(),
        stream=1,
        listener=lambda *_: times.append(time.perf_counter()),
    )
    steps = [after - before for before, after in itertools.pairwise(times)]
    return {"seconds": time.perf_counter() - begun, "step": statistics.median(steps), "peak": peak()}


CHILDREN: dict[str, Callable[..., dict[str, float]]] = {
    "cat": cat,
    "copy": copy,
    "convert": convert,
    "load": load,
    "generate": generate,
}


def peak() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def forget(folder: Path) -> None:
    """Out of the page cache, so that the next process reads the disk."""
    for file in folder.rglob("*"):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def tensors(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.transformer.wte.weight", (VOCAB, WIDTH)
    for layer in range(layers):
        block = f"model.transformer.blocks.{layer}"
        yield f"{block}.attn_norm.weight", (WIDTH,)
        yield f"{block}.ff_norm.weight", (WIDTH,)
        for name in ("q_proj", "k_proj", "v_proj", "attn_out"):
            yield f"{block}.{name}.weight", (WIDTH, WIDTH)
        yield f"{block}.ff_proj.weight", (MLP, WIDTH)
        yield f"{block}.up_proj.weight", (MLP, WIDTH)
        yield f"{block}.ff_out.weight", (WIDTH, MLP)
    yield "model.transformer.ln_f.weight", (WIDTH,)
    yield "model.transformer.ff_out.weight", (VOCAB, WIDTH)


def make_checkpoint(folder: Path, layers: int) -> int:
    """Write the weights and their configuration; returns how many bytes the weights have."""
    import ml_dtypes
    import numpy as np

    def bytes_of(shape: tuple[int, ...]) -> int:
        return 2 * int(np.prod(shape))

    folder.mkdir(parents=True)
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    for item in tensors(layers):
        if shards[-1] and sum(bytes_of(shape) for _, shape in [*shards[-1], item]) > SHARD_BYTES:
            shards.append([])
        shards[-1].append(item)
    rng = np.random.default_rng(0)
    noise = (np.float32(0.02) * rng.standard_normal(1 << 24, np.float32)).astype(ml_dtypes.bfloat16).view(np.uint16)
    ones = np.ones(WIDTH, ml_dtypes.bfloat16).view(np.uint16)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        weight_map |= dict.fromkeys((tensor for tensor, _ in shard), name)
        with (folder / name).open("wb") as file:
            file.write(header_of(shard, bytes_of))
            for _, shape in shard:
                left = int(np.prod(shape))
                while left:
                    start = int(rng.integers(0, noise.size // 2))
                    part = ones if len(shape) == 1 else noise[start : start + left]
                    file.write(part.tobytes())
                    left -= part.size
            file.flush()
            os.fsync(file.fileno())
    (folder / "config.json").write_text(json.dumps({**CONFIG, "n_layers": layers}))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return sum(bytes_of(shape) for _, shape in tensors(layers))


def header_of(shard: list[tuple[str, tuple[int, ...]]], bytes_of: Callable[[tuple[int, ...]], int]) -> bytes:
    header, offset = {}, 0
    for tensor, shape in shard:
        end = offset + bytes_of(shape)
        header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


if __name__ == "__main__":
    raise SystemExit(main())
