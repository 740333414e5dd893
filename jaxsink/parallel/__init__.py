"""Many devices: a (data, model) mesh for weights, batches split by pmap, and several hosts as one program.

    model = jaxsink.load(path, mesh=parallel.make_mesh(data=2, model=4))   # weights cut over 4 devices, batches over 2
    jaxsink.generate(model, prompts, sampler)                              # the same call as on one device

    jaxsink.generate(model, prompts, sampler, devices=jax.devices())       # small models: a copy per device, pmap

On several hosts call `parallel.start()` first, run the same program on all, and `parallel.to_host(result)` at the end.
"""

from jaxsink.parallel.hosts import is_main, start, to_host, together
from jaxsink.parallel.mesh import DATA, MODEL, make_mesh, mesh_of, shard, sharding_of
from jaxsink.parallel.rows import pmap_rows

__all__ = [
    "DATA",
    "MODEL",
    "is_main",
    "make_mesh",
    "mesh_of",
    "pmap_rows",
    "shard",
    "sharding_of",
    "start",
    "to_host",
    "together",
]
