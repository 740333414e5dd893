"""Meshes and where parameters live on them: logical axis names in one table, mesh axes in another."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxsink.config import ModelConfig
from jaxsink.errors import JaxsinkError

DATA, MODEL = "data", "model"

# Logical axis -> mesh axis; axes that are not named stay whole on every device.
MESH_AXIS = {"batch": DATA, "heads": MODEL, "kv_heads": MODEL, "mlp": MODEL, "vocab": MODEL}

# The end of a parameter's name -> its logical axes, without the leading layer axis.
LOGICAL_AXES: dict[str, tuple[str | None, ...]] = {
    "embedding": ("vocab", None),
    "position": (None, None),
    "head.weight": ("vocab", None),
    "attention.q.weight": ("heads", None),
    "attention.k.weight": ("kv_heads", None),
    "attention.v.weight": ("kv_heads", None),
    "attention.o.weight": (None, "heads"),
    "attention.q.bias": ("heads",),
    "attention.k.bias": ("kv_heads",),
    "attention.v.bias": ("kv_heads",),
    "mlp.gate.weight": ("mlp", None),
    "mlp.up.weight": ("mlp", None),
    "mlp.down.weight": (None, "mlp"),
    "mlp.gate.bias": ("mlp",),
    "mlp.up.bias": ("mlp",),
}


def make_mesh(data: int = 1, model: int | None = None, devices: Any = None) -> Mesh:
    """A (data, model) mesh; `model=None` takes the devices that are left. `make_mesh(1, 8)` is 8-way tensor parallel."""
    devices = jax.devices() if devices is None else list(devices)
    model = len(devices) // data if model is None else model
    if data < 1 or model < 1 or data * model != len(devices):
        raise JaxsinkError(
            f"a {data} x {model} mesh does not fit {len(devices)} devices; choose numbers that multiply."
        )
    grid = np.array(devices).reshape(data, model)
    return Mesh(grid, (DATA, MODEL), axis_types=(AxisType.Auto, AxisType.Auto))


def sharding_of(name: str, rank: int, config: ModelConfig, mesh: Mesh) -> NamedSharding:
    """Where the parameter `name` of the given rank lives. Heads are never cut: what does not divide stays whole."""
    if MODEL not in mesh.shape:
        raise JaxsinkError(
            f"the mesh needs an axis named {MODEL!r}, and has {tuple(mesh.shape)}; see parallel.make_mesh."
        )
    counts = {"heads": config.heads, "kv_heads": config.kv_heads, "mlp": config.mlp_width, "vocab": config.vocab}
    logical = next((axes for end, axes in LOGICAL_AXES.items() if name.endswith(end)), ())
    spec: list[str | None] = [None] * (rank - len(logical))
    for axis in logical:
        divides = axis is not None and counts[axis] % mesh.shape[MODEL] == 0
        spec.append(MESH_AXIS[axis] if axis is not None and divides else None)
    return NamedSharding(mesh, PartitionSpec(*spec))
