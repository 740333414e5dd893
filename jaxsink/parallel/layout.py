"""Large models: batches and records on a (data, model) mesh, sequences along its one axis, heads along the other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree, Shaped

from jaxsink.parallel.mesh import DATA, MODEL


def put_batch(x: Shaped[np.ndarray, "..."], mesh: Mesh | None, axis: int = 0) -> Shaped[Array, "..."]:
    """A host array on the devices, its sequences along the data axis; on several hosts, all must hold the whole array."""
    if mesh is None:
        return jnp.asarray(x)
    sharding = NamedSharding(mesh, PartitionSpec(*[None] * axis, DATA))
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def layout_of(shape: tuple[int, ...], mesh: Mesh, axis: int = 0, heads: int | None = None) -> NamedSharding:
    """Sequences (at `axis`) lie along the data axis, heads along the model axis, as far as both divide."""
    spec: list[str | None] = [None] * len(shape)
    for number, name in ((axis, DATA), (heads, MODEL)):
        if number is not None and -len(shape) <= number < len(shape) and shape[number] % mesh.shape[name] == 0:
            spec[number] = name
    return NamedSharding(mesh, PartitionSpec(*spec))


def keep_layout(tree: PyTree, mesh: Mesh | None, axis: int = 0, heads: int | None = None) -> PyTree:
    """Inside jit: every array lies as `layout_of` says.

    Needed for everything that leaves a program, because the compiler may choose layouts that no mesh axis describes.
    """
    if mesh is None:
        return tree
    return jax.tree.map(lambda x: lax.with_sharding_constraint(x, layout_of(x.shape, mesh, axis, heads)), tree)
