"""The attention backend "pallas": a layer on the kernel of its device (TPU or GPU), on one device or on a mesh.

The kernels serve recorders that add up attention over queries (`Recorder.columns`), and those that never look at it. What
they are not made for runs on "blocked", with the same results: recorders that read probabilities, a caller's own `visible`,
the extra sink token, keys that are hidden from some queries only, and fewer than `MIN_QUERIES` queries (a decoding step,
whose map is a few rows).

Gradients are those of "blocked", which then runs the layer again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import jax
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec, use_abstract_mesh
from jaxtyping import Float

from jaxsink.nn.backends import Unreduced, blocked
from jaxsink.nn.batch import KINDS
from jaxsink.nn.kernels.arrays import AXES, Arrays, Mixed, arrays_of
from jaxsink.nn.kernels.gpu import on_gpu_device
from jaxsink.nn.kernels.tiles import vmem_budget
from jaxsink.nn.kernels.tpu import on_tpu_device
from jaxsink.nn.recorder import Recorder, look
from jaxsink.nn.sharding import COPIES, DATA, MODEL, device_kind, has_tensor_cores, in_parts, on_tpu
from jaxsink.nn.taps import ReceivedTap, Tap

MIN_QUERIES = 8


def serves(tap: Tap, recorders: tuple[Recorder, ...]) -> bool:
    """Can the kernel compute this layer and these records?"""
    readable = all(r.join == "once" or r.columns is not None for r in recorders)
    context = tap.context
    plain = context.visibility.custom is None and tap.sink is None and context.queries.hidden_from is None
    return readable and plain and tap.q.shape[1] >= MIN_QUERIES


def pallas(tap: Tap, recorders: tuple[Recorder, ...]) -> tuple[Float[Array, "B Q H D"], Unreduced]:
    if not serves(tap, recorders):
        return blocked(tap, recorders)
    leaves, treedef = jax.tree.flatten(tap)

    def plain(leaves: list[Array]) -> tuple[Array, Unreduced]:
        return blocked(jax.tree.unflatten(treedef, leaves), recorders)

    @jax.custom_vjp
    def fused(leaves: list[Array]) -> tuple[Array, Unreduced]:
        tap = jax.tree.unflatten(treedef, leaves)
        out, columns = mix_and_add_up(tap, kinds_wanted(recorders))
        received = tap if columns is None else ReceivedTap(tap.context, columns)
        return out, tuple(look(r, tap if r.columns is None else received) for r in recorders)

    fused.defvjp(lambda leaves: (fused(leaves), leaves), lambda leaves, change: jax.vjp(plain, leaves)[1](change))
    return fused(leaves)


def kinds_wanted(recorders: tuple[Recorder, ...]) -> int:
    """Into how many kinds the kernel has to split what keys receive: 0 = nobody asks, 1 = all queries together."""
    wanted = {recorder.columns for recorder in recorders}
    return len(KINDS) if "by kind" in wanted else int("all" in wanted)


def mix_and_add_up(tap: Tap, kinds: int) -> Mixed:
    """The heads' outputs of one layer, and how much attention every key receives."""
    mesh = tap.context.execution.mesh
    run = partial(kernel_for(mesh), kinds=kinds)
    return run(arrays_of(tap)) if mesh is None else on_mesh(run, arrays_of(tap), mesh, kinds)


def kernel_for(mesh: Mesh | None) -> Callable[..., Mixed]:
    """That of the devices; where neither is made for them, the TPU's is interpreted."""
    if has_tensor_cores(mesh):
        return partial(on_gpu_device, interpret=False)
    return partial(on_tpu_device, budget=vmem_budget(device_kind(mesh)), interpret=not on_tpu(mesh))


def on_mesh(run: Callable[[Arrays], Mixed], arrays: Arrays, mesh: Mesh, kinds: int) -> Mixed:
    """Each device its sequences and heads. Heads are cut as the weights are; devices that hold copies of the same heads
    share the queries between them, or the sequences, or (where neither divides) do the same work."""
    batch, queries = arrays.kind.shape
    parts = math.gcd(arrays.k.shape[2], mesh.shape[MODEL])
    mesh = in_parts(mesh, parts)
    spare = COPIES if COPIES in mesh.shape else MODEL if parts == 1 else None
    copies = 1 if spare is None else mesh.shape[spare]
    data = mesh.shape[DATA] if batch % mesh.shape[DATA] == 0 else 1
    share_queries = copies > 1 and queries % copies == 0
    share_sequences = copies > 1 and not share_queries and (batch // data) % copies == 0
    sequences = [name for name, used in ((DATA, data > 1), (spare, share_sequences)) if used]
    place = {
        "sequences": tuple(sequences) or None,
        "queries": spare if share_queries else None,
        "heads": MODEL if parts > 1 else None,
        None: None,
    }

    def spec(axes: tuple[str | None, ...]) -> PartitionSpec:
        return PartitionSpec(*[place[axis] for axis in axes])

    given = {name: value for name, value in arrays._asdict().items() if value is not None}
    specs = {name: spec(AXES[name]) for name in given}

    def local(given: dict[str, Array]) -> tuple[Array, ...]:
        out, columns = run(Arrays._make(given.get(name) for name in Arrays._fields))
        if columns is None:
            return (out,)
        return out, lax.psum(columns, spare) if share_queries else columns

    out_specs = (spec(AXES["q"]), spec(("sequences", "heads", None, None)))[: 2 if kinds else 1]
    with use_abstract_mesh(mesh.abstract_mesh):  # the caller may have set the mesh without copies
        results = jax.shard_map(local, mesh=mesh, in_specs=(specs,), out_specs=out_specs, check_vma=False)(given)
    return results[0], results[1] if kinds else None
