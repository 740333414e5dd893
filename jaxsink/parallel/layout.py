"""Large models: batches and records on a (data, model) mesh, sequences along its one axis, heads along the other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Shaped

from jaxsink.nn.sharding import DATA


def put_batch(x: Shaped[np.ndarray, "..."], mesh: Mesh | None, axis: int = 0) -> Shaped[Array, "..."]:
    """A host array on the devices, its sequences along the data axis; on several hosts, all must hold the whole array."""
    if mesh is None:
        return jnp.asarray(x)
    sharding = NamedSharding(mesh, PartitionSpec(*[None] * axis, DATA))
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
