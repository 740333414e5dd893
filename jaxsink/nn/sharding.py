"""What the model needs to know of meshes: its axes, its devices, and how arrays that leave a program lie on it.

Where weights lie is decided in jaxsink/parallel/, which knows the model; the model only looks at the result.
"""

from __future__ import annotations

import re

import jax
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

DATA = "data"
"""The axis of a mesh that batches are cut over."""
MODEL = "model"
"""The axis of a mesh that weights are cut over."""
COPIES = "copies"


def mesh_of(model: PyTree) -> Mesh | None:
    """The mesh that the weights lie on; None for a model on one device.

    Examples:
        >>> jaxsink.parallel.mesh_of(model) is None
        True
    """
    for leaf in jax.tree.leaves(model):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.mesh.axis_names == (DATA, MODEL):
            assert isinstance(sharding.mesh, Mesh)
            return sharding.mesh
    return None


def in_parts(mesh: Mesh, parts: int) -> Mesh:
    """The same devices with a model axis of `parts`, and an axis of copies beside it if there are more devices."""
    if parts in (1, mesh.shape[MODEL]):
        return mesh
    grid = mesh.devices.reshape(*mesh.devices.shape[:-1], parts, -1)
    return Mesh(grid, (*mesh.axis_names, COPIES), axis_types=(*mesh.axis_types, AxisType.Auto))


def layout_of(shape: tuple[int, ...], mesh: Mesh, axis: int | None = 0, heads: int | None = None) -> NamedSharding:
    """Sequences (at `axis`) lie along the data axis, heads along the model axis, as far as both divide; None = nowhere."""
    spec: list[str | None] = [None] * len(shape)
    for place, name in ((axis, DATA), (heads, MODEL)):
        if place is not None and -len(shape) <= place < len(shape) and shape[place] % mesh.shape[name] == 0:
            spec[place] = name
    return NamedSharding(mesh, PartitionSpec(*spec))


def keep_layout(
    tree: PyTree[Array], mesh: Mesh | None, axis: int | None = 0, heads: int | None = None
) -> PyTree[Array]:
    """Inside jit: everything lies as `layout_of` says.

    Said for everything that leaves a program, because the compiler may choose layouts that no mesh axis describes.
    """
    if mesh is None:
        return tree
    return jax.tree.map(lambda x: lax.with_sharding_constraint(x, layout_of(x.shape, mesh, axis, heads)), tree)


def device_kind(mesh: Mesh | None) -> str:
    """Of the mesh's devices, or of those that JAX runs on."""
    return _device(mesh).device_kind


def on_tpu(mesh: Mesh | None) -> bool:
    return _device(mesh).platform == "tpu"


def has_tensor_cores(mesh: Mesh | None) -> bool:
    """Is it an NVIDIA GPU whose tensor cores take bfloat16: sm_80 (Ampere, 2020) or later?"""
    device = _device(mesh)
    capability = str(getattr(device, "compute_capability", ""))
    return device.platform == "gpu" and re.fullmatch(r"\d+\.\d+", capability) is not None and float(capability) >= 8


def _device(mesh: Mesh | None):
    return (jax.devices() if mesh is None else mesh.devices.flat)[0]
