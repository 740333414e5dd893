"""What a checkpoint or a published model is: family, sizes, parameters, memory per type."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypedDict

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checkpoints.hub import is_hub_id
from jaxsink.checkpoints.load import describe_foreign
from jaxsink.checkpoints.storage import WEIGHTS, Reader, is_converted
from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.new_model import abstract
from jaxsink.nn.parameters import named_leaves
from jaxsink.runs.progress import human_bytes
from jaxsink.zoo.names import no_such_model
from jaxsink.zoo.presets import PRESETS
from jaxsink.zoo.resolve import resolve

BYTES = {"float32": 4, "bfloat16": 2}
NO_CHECKSUMS = "written before checkpoints had checksums, so damage to its weights goes unnoticed; convert it again"


class Description(TypedDict):
    """What a model is.

    config      the fields of its `ModelConfig`
    parameters  how many numbers its weights have
    dtype       as stored; None without weights
    bytes       memory of the weights by type
    source      where they come from
    summary     the same for people, line by line
    """

    config: JsonObject
    parameters: int
    dtype: str | None
    bytes: dict[str, int]
    source: JsonObject
    summary: dict[str, str]


@checked(mask_id=at_least(0))
def describe(
    path: str | os.PathLike[str], mask_id: int | None = None, ignore_settings: str | Iterable[str] = ()
) -> Description:
    """What a checkpoint holds, a built-in model, or a published one of which there is only the configuration.

    Args:
        path: as for `load`; no weights are read
        mask_id: as for `load`
        ignore_settings: as for `load`

    Examples:
        >>> jaxsink.describe("mini-llada")["parameters"]
        880512
    """
    path = os.fspath(path)
    folder = resolve(path, weights=False)
    source: JsonObject = {"kind": "published configuration, without weights"}
    if is_converted(folder):
        reader = Reader(folder)
        if os.path.lexists(folder / WEIGHTS):  # of a model in a bucket there may be its settings alone
            reader.check_arrays()
        config, dtype, source = reader.config, reader.dtype, reader.source
        if reader.checksums is None:
            source = {**source, "notes": [*source.get("notes", ()), NO_CHECKSUMS]}
    elif path in PRESETS and not folder.exists():
        config, dtype = PRESETS[path], None
    elif folder.exists():
        config, dtype, source = describe_foreign(folder, mask_id, ignore_settings)
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
    config: ModelConfig, parameters: int, dtype: str | None, sizes: dict[str, int], source: JsonObject
) -> dict[str, str]:
    """The description for people: a name and a text per line."""
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
        + (f", {config.rope_scaling.kind} scaling x{config.rope_scaling.factor:g}" if config.rope_scaling else "")
        + (f", queries grow every {config.query_scale_length}" if config.query_scale_length else ""),
        "parameters": f"{parameters:,}",
        "memory": ", ".join(f"{human_bytes(size)} as {name}" for name, size in sizes.items()),
        "stored as": dtype or "no weights",
        "source": " ".join(str(source[key]) for key in ("kind", "path", "revision") if source.get(key)),
    }
    if config.experts:
        lines["experts"] = f"{config.experts.per_token} of {config.experts.count} per token"
        if config.experts.groups > 1:
            lines["experts"] += f", from {config.experts.groups_kept} of {config.experts.groups} groups"
        if config.experts.shared_width is not None:
            lines["experts"] += f", and one of width {config.experts.shared_width} for all"
        if config.dense_layers:
            lines["experts"] += (
                f"; the first {config.dense_layers} of the layers dense, mlp {config.segments[0].mlp_width}"
            )
    if config.time_conditioning:
        told = {"constant": "constant", "level": "by the noise level", "total": "by the total noise"}
        lines["adaLN"] = f"{told[config.time_conditioning]}, {config.time_width} numbers"
    if config.uniform_noise:
        lines["noise"] = f"masks and other tokens (these {config.uniform_noise:.2g} of all at half time)"
    if config.mask_id is not None:
        lines["mask id"] = str(config.mask_id)
    if source.get("notes"):
        lines["notes"] = "\n".join(source["notes"])
    return lines
