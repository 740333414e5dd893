"""Meshes, and where parameters live on them: logical axis names in one table, mesh axes in another."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.sharding import DATA, MODEL, in_parts
from jaxsink.nn.sharding import mesh_of as mesh_of

if TYPE_CHECKING:
    from jaxlib._jax import Device
else:
    Device = jax.Device

MESH_AXIS = {"batch": DATA, "heads": MODEL, "kv_heads": MODEL, "mlp": MODEL, "vocab": MODEL}
MESH_AXIS |= {"experts": MODEL, "shared_mlp": MODEL}
"""Logical axis -> mesh axis; axes that are not named stay whole on every device."""

LOGICAL_AXES: dict[str, tuple[str | None, ...]] = {
    "embedding": ("vocab", None),
    "position": (None, None),
    "extra_sink": (None,),
    "head.weight": ("vocab", None),
    "head.bias": ("vocab",),
    "attention.q.weight": ("heads", None),
    "attention.k.weight": ("kv_heads", None),
    "attention.v.weight": ("kv_heads", None),
    "attention.o.weight": (None, "heads"),
    "attention.q.bias": ("heads",),
    "attention.k.bias": ("kv_heads",),
    "attention.v.bias": ("kv_heads",),
    "attention.q.scale": ("heads",),
    "attention.k.scale": ("kv_heads",),
    "attention.v.scale": ("kv_heads",),
    "mlp.gate.weight": ("mlp", None),
    "mlp.up.weight": ("mlp", None),
    "mlp.down.weight": (None, "mlp"),
    "mlp.gate.bias": ("mlp",),
    "mlp.up.bias": ("mlp",),
    "mlp.gate.scale": ("mlp",),
    "mlp.up.scale": ("mlp",),
    "mlp.shared.gate.weight": ("shared_mlp", None),
    "mlp.shared.up.weight": ("shared_mlp", None),
    "mlp.shared.down.weight": (None, "shared_mlp"),
}
"""The end of a parameter's name -> its logical axes, without the leading layer axis."""

OF_EXPERTS = ("experts", None, None)
"""The axes of what is "mlp.gate.weight", "mlp.up.weight" or "mlp.down.weight" in layers with experts."""


@runtime_checkable
class HasConfig(Protocol):
    """A pytree of parameters with its configuration, such as `jaxsink.Model`."""

    config: ModelConfig


M = TypeVar("M", bound=HasConfig)


@checked(data=at_least(1), model=at_least(1))
def make_mesh(data: int = 1, model: int | None = None, devices: Sequence[Device] | None = None) -> Mesh:
    """A (data, model) mesh; `make_mesh(1, 8)` is 8-way tensor parallel.

    Args:
        data: parts that a batch is cut into
        model: parts that weights are cut into; None: takes the devices that are left
        devices: to use; None: all

    Examples:
        >>> mesh = jaxsink.parallel.make_mesh(data=1, model=1, devices=jax.devices()[:1])
        >>> dict(mesh.shape)
        {'data': 1, 'model': 1}
    """
    devices = jax.devices() if devices is None else list(devices)
    model = len(devices) // data if model is None else model
    if data < 1 or model < 1 or data * model != len(devices):
        raise JaxsinkError(
            f"a {data} x {model} mesh does not fit {len(devices)} devices; choose numbers that multiply."
        )
    grid = np.array(devices).reshape(data, model)
    return Mesh(grid, (DATA, MODEL), axis_types=(AxisType.Auto, AxisType.Auto))


def parse_mesh(text: str) -> tuple[int, int]:
    """(data, model) of a text such as "2x4"."""
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text.strip())
    if found is None:
        raise JaxsinkError(f"a mesh is two numbers such as 2x4 (batch x weights), not {text!r}.")
    return int(found[1]), int(found[2])


def choose_devices(count: int | None = None) -> list[Device]:
    """The first `count` devices, or all; a CPU can be cut into as many as wanted, before JAX first uses it."""
    if count is not None:
        if count < 1:
            raise JaxsinkError(f"at least 1 device is needed, not {count}.")
        if jax.config.jax_num_cpu_devices < count:  # pyright: ignore[reportAttributeAccessIssue]
            with suppress(RuntimeError):  # JAX is running already, with the devices that it has
                jax.config.update("jax_num_cpu_devices", count)
    found = jax.devices()
    if count is not None and count > len(found):
        raise JaxsinkError(f"{count} devices are asked for, and there are {len(found)}.")
    return found[:count]


def mesh_from(text: str) -> Mesh:
    """The mesh of a text such as "2x4", on the first devices."""
    data, model = parse_mesh(text)
    return make_mesh(data, model, choose_devices(data * model))


@checked(rank=at_least(0))
def sharding_of(name: str, rank: int, config: ModelConfig, mesh: Mesh) -> NamedSharding:
    """Where the parameter `name` of the given rank lives.

    An axis is cut into as many parts as both its size and the mesh's model axis divide by, and heads are never cut. So
    Dream's 28 heads and 4 kv heads lie in 4 parts on 8 devices, each part on two of them.

    Args:
        name: of the parameter, as in `Model.params`
        rank: its number of axes
        config: of the model
        mesh: that it lies on

    Examples:
        >>> mesh = jaxsink.parallel.make_mesh(data=1, model=1, devices=jax.devices()[:1])
        >>> jaxsink.parallel.sharding_of("embedding", 2, model.config, mesh).mesh == mesh
        True
    """
    if MODEL not in mesh.shape:
        raise JaxsinkError(
            f"the mesh needs an axis named {MODEL!r}, and has {tuple(mesh.shape)}; see parallel.make_mesh."
        )
    widths = math.gcd(*(segment.mlp_width for segment in config.segments if segment.experts is None))
    counts = {"heads": config.heads, "kv_heads": config.kv_heads, "mlp": widths, "vocab": config.vocab}
    if config.experts is not None:
        counts |= {"experts": config.experts.count, "shared_mlp": config.experts.shared_width or 1}
    logical = next((axes for end, axes in LOGICAL_AXES.items() if name.endswith(end)), ())
    logical = OF_EXPERTS if "mlp" in logical and is_of_experts(name, rank, config) else logical
    parts = [1 if axis is None else math.gcd(counts[axis], mesh.shape[MODEL]) for axis in logical]
    spec = [
        MESH_AXIS[axis] if axis is not None and part > 1 else None for axis, part in zip(logical, parts, strict=True)
    ]
    return NamedSharding(in_parts(mesh, max(parts, default=1)), PartitionSpec(*[None] * (rank - len(logical)), *spec))


def is_of_experts(name: str, rank: int, config: ModelConfig) -> bool:
    """Is a matrix of an mlp one of each expert? It has an axis more; where layers are stacked, all have one more."""
    if config.experts is None or not config.dense_layers:
        return config.experts is not None
    return rank == 4 or (rank == 3 and not name.startswith("layers.0."))  # "layers.0" is dense, stacked or not


@checked()
def shard(model: M, mesh: Mesh) -> M:
    """The model with its weights on the mesh; `load(path, mesh=mesh)` does it while reading.

    Examples:
        >>> mesh = jaxsink.parallel.make_mesh(data=1, model=1, devices=jax.devices()[:1])
        >>> jaxsink.parallel.mesh_of(jaxsink.parallel.shard(model, mesh)) == mesh
        True
    """
    leaves, treedef = named_leaves(model)
    placed = [jax.device_put(x, sharding_of(name, x.ndim, model.config, mesh)) for name, x in leaves]
    return jax.tree.unflatten(treedef, placed)
