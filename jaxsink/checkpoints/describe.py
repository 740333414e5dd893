"""What a checkpoint or a published model is: family, sizes, parameters, memory per type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jaxsink.checkpoints.hub import is_hub_id
from jaxsink.checkpoints.load import describe_foreign
from jaxsink.checkpoints.storage import MANIFEST, Reader
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.transformer import abstract
from jaxsink.runs.progress import human_bytes
from jaxsink.zoo.names import no_such_model
from jaxsink.zoo.presets import PRESETS
from jaxsink.zoo.resolve import resolve

BYTES = {"float32": 4, "bfloat16": 2}


def describe(path: str, mask_id: int | None = None, ignore_settings: Iterable[str] = ()) -> dict[str, Any]:
    """{"config", "parameters", "dtype", "bytes", "source", "summary"}; the summary is for people."""
    place = resolve(path, weights=False)
    source: dict[str, Any] = {"kind": "published configuration, without weights"}
    if (place / MANIFEST).is_file():
        reader = Reader(place)
        config, dtype, source = reader.config, reader.dtype, reader.source
    elif path in PRESETS and not place.exists():
        config, dtype = PRESETS[path], None
    elif place.exists():
        config, dtype, source = describe_foreign(place, mask_id, ignore_settings)
    else:
        raise no_such_model(path, weights=False)
    source = {**source, "path": path} if is_hub_id(path) else source
    parameters = sum(leaf.size for _, leaf in named_leaves(abstract(config))[0])
    sizes = {name: parameters * size for name, size in BYTES.items()}
    return {
        "config": config.to_dict(),
        "parameters": parameters,
        "dtype": dtype,
        "bytes": sizes,
        "source": source,
        "summary": summary(config, parameters, dtype, sizes, source),
    }


def summary(
    config: ModelConfig, parameters: int, dtype: str | None, sizes: dict[str, int], source: dict[str, Any]
) -> dict[str, str]:
    heads = f"{config.heads} heads of {config.head_dim}"
    heads += "" if config.kv_heads == config.heads else f", {config.kv_heads} kv heads"
    attention = config.attention.replace("_", "-")
    attention += f" (blocks of {config.block_length})" if config.block_length else ""
    attention += f", window {config.window}" if config.window else ""
    lines = {
        "family": config.family + (" (diffusion)" if config.is_diffusion else " (autoregressive)"),
        "shape": f"{config.layers} layers x {config.width}, {heads}, mlp {config.mlp_width}",
        "vocabulary": f"{config.vocab} rows" + (", head tied to the embedding" if config.tied else ""),
        "attention": attention,
        "positions": "learned"
        if config.positions == "learned"
        else f"rotary, theta {config.rope_theta:g}"
        + (f", {config.rope_scaling.kind} scaling x{config.rope_scaling.factor:g}" if config.rope_scaling else ""),
        "parameters": f"{parameters:,}",
        "memory": ", ".join(f"{human_bytes(size)} as {name}" for name, size in sizes.items()),
        "stored as": dtype or "no weights",
        "source": " ".join(str(source[key]) for key in ("kind", "path", "revision") if source.get(key)),
    }
    if config.experts:
        lines["experts"] = f"{config.experts.per_token} of {config.experts.count} per token"
    if config.mask_id is not None:
        lines["mask id"] = str(config.mask_id)
    if source.get("notes"):
        lines["notes"] = "\n".join(source["notes"])
    return lines
