"""How fast and in how much memory `jaxsink convert` works, against a plain copy of the same bytes in the same run.

    python benchmarks/convert.py --gib 2            about two minutes and 7 GiB of disk on two cores
    python benchmarks/convert.py --gib 2 --json

A synthetic Llama-shaped checkpoint (float32, safetensors shards of 512 MiB) is made in a temporary folder. Every figure
is one run in a process of its own: seconds of the work alone, without the imports; bytes of the source over these
seconds; and the peak of resident memory (VmHWM) above what the process held after the imports. The source is in the
page cache throughout (it was just written); copy and conversions end with their files on the disk (fsync). --verify
compares all tensors, and no logits. The bar: a conversion stays under 1.2 GiB above its imports.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WIDTH, HEADS, MLP, VOCAB = 2048, 16, 5632, 32000
SHARD_BYTES = 512 << 20
RSS_BAR = 1.2 * 2**30
CHUNK = 16 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the checkpoint (default 2)")
    parser.add_argument("--folder", help="where to work (default: the system's temporary folder)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(*args.child)
    with tempfile.TemporaryDirectory(prefix="jaxsink-convert-", dir=args.folder) as folder:
        figures = measure(Path(folder), args.gib)
    if args.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)
    return 0 if figures["peak_rss_ok"] else 1


def measure(folder: Path, gib: float) -> dict[str, Any]:
    source = folder / "source"
    size = make_checkpoint(source, int(gib * 2**30))
    runs = {
        "copy": ("copy", source, folder / "copy"),
        "convert": ("convert", source, folder / "as_stored"),
        "convert to bfloat16": ("convert", source, folder / "bfloat16", "--dtype", "bfloat16"),
        "convert --verify": ("convert", source, folder / "verified", "--verify"),
        "load the source": ("load", source),
        "load the result": ("load", folder / "as_stored"),
    }
    figures: dict[str, Any] = {"source_bytes": size, "runs": {}}
    for name, arguments in runs.items():
        figures["runs"][name] = run = in_child(*map(str, arguments))
        run["gib_per_s"] = size / 2**30 / run["seconds"]
        if name != "convert" and arguments[0] != "load":
            shutil.rmtree(arguments[2])
    copy = figures["runs"]["copy"]["gib_per_s"]
    for run in figures["runs"].values():
        run["rate_against_copy"] = run["gib_per_s"] / copy
    converted = [run["peak_rss_above_imports"] for name, run in figures["runs"].items() if name.startswith("convert")]
    figures["peak_rss_ok"] = max(converted) < RSS_BAR
    return figures


def tensors(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (VOCAB, WIDTH)
    for layer in range(layers):
        for name in ("q", "k", "v", "o"):
            yield f"model.layers.{layer}.self_attn.{name}_proj.weight", (WIDTH, WIDTH)
        yield f"model.layers.{layer}.mlp.gate_proj.weight", (MLP, WIDTH)
        yield f"model.layers.{layer}.mlp.up_proj.weight", (MLP, WIDTH)
        yield f"model.layers.{layer}.mlp.down_proj.weight", (WIDTH, MLP)
        yield f"model.layers.{layer}.input_layernorm.weight", (WIDTH,)
        yield f"model.layers.{layer}.post_attention_layernorm.weight", (WIDTH,)
    yield "model.norm.weight", (WIDTH,)
    yield "lm_head.weight", (VOCAB, WIDTH)


def make_checkpoint(folder: Path, size: int) -> int:
    """Write about `size` bytes of random weights as a sharded Hugging Face directory; returns how many they are."""
    import numpy as np

    def bytes_of(shape: tuple[int, ...]) -> int:
        return 4 * int(np.prod(shape))

    folder.mkdir(parents=True)
    outside = sum(bytes_of(shape) for _, shape in tensors(0))
    per_layer = sum(bytes_of(shape) for _, shape in tensors(1)) - outside
    layers = max(1, round((size - outside) / per_layer))
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    for item in tensors(layers):
        if shards[-1] and sum(bytes_of(shape) for _, shape in [*shards[-1], item]) > SHARD_BYTES:
            shards.append([])
        shards[-1].append(item)
    rng = np.random.default_rng(0)
    noise = np.float32(0.02) * rng.standard_normal(1 << 24, np.float32)
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        header, offset = {}, 0
        for tensor, shape in shard:
            end = offset + bytes_of(shape)
            header[tensor] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
            offset, weight_map[tensor] = end, name
        text = json.dumps(header).encode()
        with (folder / name).open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for _, shape in shard:
                count = int(np.prod(shape))
                while count:
                    start = int(rng.integers(0, noise.size // 2))
                    part = noise[start : start + count]
                    file.write(part.view(np.uint8))
                    count -= part.size
            file.flush()
            os.fsync(file.fileno())
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": WIDTH,
        "intermediate_size": MLP,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_hidden_layers": layers,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "vocab_size": VOCAB,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return outside + layers * per_layer


def in_child(*arguments: str) -> dict[str, Any]:
    """Run `child` in a fresh process, whose last line is its figures."""
    command = [sys.executable, __file__, "--child", *(a.replace("--", "+") for a in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def child(what: str, *arguments: str) -> int:
    arguments = tuple(argument.replace("+", "--") for argument in arguments)
    if what != "copy":
        import_everything()
    before, start = peak_rss(), time.perf_counter()
    if what == "copy":
        copy(Path(arguments[0]), Path(arguments[1]))
    elif what == "convert":
        from jaxsink.cli.main import main as command

        if command(["convert", *arguments, "--json"]) != 0:
            return 1
    else:
        import jax

        import jaxsink

        jax.block_until_ready(jaxsink.load(arguments[0]))
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "peak_rss_above_imports": peak_rss() - before}))
    return 0


def import_everything() -> None:
    """All that a conversion imports, so that the baseline holds it; and no transformers, so that --verify
    compares tensors only."""
    import jax
    import jaxsink_converters.convert  # noqa: F401

    from jaxsink.checkpoints.storage import orbax

    sys.modules["transformers"] = None  # type: ignore[assignment]
    orbax()
    jax.device_put(0.0).block_until_ready()


def copy(source: Path, target: Path) -> None:
    """What `cat` does, file by file, and fsync."""
    target.mkdir()
    for path in sorted(source.iterdir()):
        with path.open("rb") as reading, (target / path.name).open("wb") as writing:
            while chunk := reading.read(CHUNK):
                writing.write(chunk)
            writing.flush()
            os.fsync(writing.fileno())


def peak_rss() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def show(figures: dict[str, Any]) -> None:
    print(f"source: {figures['source_bytes'] / 2**30:.2f} GiB of float32 safetensors, in the page cache\n")
    print(f"{'':22}{'seconds':>9}{'GiB/s':>8}{'of copy':>9}{'peak RSS above imports':>25}")
    for name, run in figures["runs"].items():
        rss = "" if name == "copy" else f"{run['peak_rss_above_imports'] / 2**30:.2f} GiB"
        print(f"{name:22}{run['seconds']:9.2f}{run['gib_per_s']:8.2f}{run['rate_against_copy']:8.2f}x{rss:>25}")
    print(f"\npeak RSS of conversions under 1.2 GiB: {'yes' if figures['peak_rss_ok'] else 'NO'}")


if __name__ == "__main__":
    raise SystemExit(main())
