"""Many devices: weights on a (data, model) mesh, batches split by pmap, and several hosts as one program.

    model = jaxsink.load(path, mesh=parallel.make_mesh(data=2, model=4))   # weights cut over 4 devices, batches over 2
    jaxsink.generate(model, prompts, sampler)                              # the same call as on one device

    jaxsink.generate(model, prompts, sampler, devices=jax.devices())       # small models: a copy per device, pmap

On several hosts call `parallel.start()` first, run the same program on all, and `parallel.to_host(result)` at the end.
"""

from __future__ import annotations

import warnings
from typing import Any

from jaxsink.parallel.hosts import is_main, start, to_host, together
from jaxsink.parallel.mesh import DATA, MODEL, make_mesh, mesh_of, shard, sharding_of
from jaxsink.parallel.pmap import pmap_batch, pmap_program

__all__ = [
    "DATA",
    "MODEL",
    "is_main",
    "make_mesh",
    "mesh_of",
    "pmap_batch",
    "pmap_program",
    "shard",
    "sharding_of",
    "start",
    "to_host",
    "together",
]


def __getattr__(name: str) -> Any:
    if name == "pmap_rows":
        warnings.warn("pmap_rows is called pmap_batch now.", DeprecationWarning, stacklevel=2)
        return pmap_batch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
