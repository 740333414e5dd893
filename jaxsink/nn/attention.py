"""Attention: queries, keys and values of the heads, who sees whom, and the taps from "attention" to "attention_output".

Backends compute the same numbers: "naive" holds the map of one layer (B x H x Q x S), "blocked" goes through the queries
in blocks of `BLOCK` with all their keys, so memory is B x H x BLOCK x S, and "pallas" are kernels for TPU and GPU that hold
no map in memory at all (nn/kernels/backend.py; layers and records they are not made for run on "blocked"). A backend is an
entry of `BACKENDS`. What is seen, hidden and counted is said in nn/context.py and nn/softmax.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.sharding import Mesh
from jaxtyping import Float

from jaxsink.errors import JaxsinkError
from jaxsink.nn.backends import BLOCK, Unreduced, blocked, naive
from jaxsink.nn.cache import Slot
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.context import LayerContext
from jaxsink.nn.edited import SINK_SCORES, edited, for_attention, for_sink_scores, has_edits
from jaxsink.nn.kernels.backend import pallas
from jaxsink.nn.linear import Linear, Maker, Norm, matmul_precision
from jaxsink.nn.recorder import Recorder
from jaxsink.nn.rope import RopeTable
from jaxsink.nn.sharding import has_tensor_cores, on_tpu
from jaxsink.nn.taps import ExtraSink, Record, Tap, read_vectors, readers

__all__ = ["BACKENDS", "BLOCK", "Attended", "Attention", "attend", "choose_backend"]

NAIVE_LIMIT = 1024  # from here on the map of a layer is not held as a whole

Backend = Callable[[Tap, tuple[Recorder, ...]], tuple[Array, Unreduced]]
BACKENDS: dict[str, Backend] = {"naive": naive, "blocked": blocked, "pallas": pallas}


def choose_backend(name: str | None, queries: int, keys: int, mesh: Mesh | None = None) -> str:
    """`None` picks by device (of the mesh, or JAX's own) and size; a name is taken as it is."""
    if name is None:
        if on_tpu(mesh) or has_tensor_cores(mesh):
            return "pallas"
        return "naive" if queries * keys <= NAIVE_LIMIT**2 else "blocked"
    if name not in BACKENDS:
        raise JaxsinkError(f"there is no attention backend {name!r}; known are: {', '.join(BACKENDS)}.")
    return name


def attend(tap: Tap) -> tuple[Float[Array, "B Q H D"], Record]:
    """(what each head hands on, what the recorders of the tap "attention" read, reduced)."""
    wanted = readers(tap.context, "attention")
    out, values = BACKENDS[tap.context.execution.backend](tap, tuple(wanted.values()))
    return out, {number: r.finish(value, tap) for (number, r), value in zip(wanted.items(), values, strict=True)}


def by_head(heads: Float[Array, "B Q H D"], output: Float[Array, "*B E H D"]) -> Float[Array, "B Q H E"]:
    """What each head adds to the residual stream; a bias of the projection belongs to none."""
    axes = "bqhd,ehd->bqhe" if output.ndim == 3 else "bqhd,behd->bqhe"
    return jnp.einsum(axes, heads, output.astype(heads.dtype), precision=matmul_precision(heads))


def with_changes(
    added: Float[Array, "B W E"], changed: Float[Array, "B W H E"], each: Float[Array, "B W H E"]
) -> Float[Array, "B W E"]:
    """What all heads add, with what was edited of each. Where nothing was, it stays as it is to the bit."""
    change = (changed.astype(jnp.float32) - each.astype(jnp.float32)).sum(axis=2)
    return (added.astype(jnp.float32) + change).astype(added.dtype)


def with_edited_values(tap: Tap, context: LayerContext) -> Tap:
    """With the value vectors after their edits, so that every backend has them. They decide nothing about the
    probabilities; edits at the sink find it by probabilities that are computed once more."""
    if not has_edits(context, "value_vectors"):
        return tap
    record: Record = {}
    if has_edits(context, "value_vectors", at_sink=True):
        scores = attend(replace(tap, context=for_sink_scores(context)))[1][0]
        record = {context.recorders.index(SINK_SCORES): scores}
    return replace(tap, v=edited(context, "value_vectors", tap.v, record))


class Attended(NamedTuple):
    """What attention gives to its layer."""

    added: Float[Array, "B W E"]
    slot: Slot | None  # with the keys and values of the tokens that ran
    record: Record


class Attention(nnx.Module):
    def __init__(self, make: Maker, lead: tuple[int, ...], config: ModelConfig):
        self.config = config
        size = config.head_dim
        self.q = Linear(make, lead, config.heads * size, config.width, config.qkv_bias)
        self.k = Linear(make, lead, config.kv_heads * size, config.width, config.qkv_bias)
        self.v = Linear(make, lead, config.kv_heads * size, config.width, config.qkv_bias)
        self.o = Linear(make, lead, config.width, config.heads * size, config.out_bias)
        self.q_norm = Norm(make, lead, size, config, "rms") if config.qk_norm else None
        self.k_norm = Norm(make, lead, size, config, "rms") if config.qk_norm else None

    def __call__(
        self,
        x: Float[Array, "B Q E"],
        context: LayerContext,
        *,
        hidden: Float[Array, "B Q E"],
        slot: Slot | None = None,
        sink: ExtraSink | None = None,
        gate: Float[Array, "#B 1 E"] | None = None,
    ) -> Attended:
        """x: `hidden`, what enters the layer, after its norm. gate: factors on what attention adds."""
        q, k, v = self.project(x, context.rope)
        if slot is not None:
            k, v, slot = slot.write(k, v)
        output = self.o.matrix().reshape(-1, self.config.heads, self.config.head_dim)
        if gate is not None:
            output = gate[:, 0, :, None, None] * output if len(gate) > 1 else gate[0, 0, :, None, None] * output
        tap = with_edited_values(Tap(for_attention(context), q, k, v, hidden, sink, output), context)
        heads, record = attend(tap)
        heads = edited(context, "values", heads, record)
        record |= read_vectors(context, "values", heads)
        added = self.output(context.wanted(heads))
        added = added if gate is None else gate * added
        if readers(context, "head_outputs") or has_edits(context, "head_outputs"):
            each = by_head(heads, output)
            changed = edited(context, "head_outputs", each, record)
            record |= read_vectors(context, "head_outputs", changed)
            added = with_changes(added, context.wanted(changed), context.wanted(each)) if changed is not each else added
        added = edited(context, "attention_output", added, record)
        record |= read_vectors(context, "attention_output", added)
        return Attended(added, slot, record)

    def project(
        self, x: Float[Array, "B Q E"], rope: RopeTable | None
    ) -> tuple[Float[Array, "B Q H D"], Float[Array, "B Q K D"], Float[Array, "B Q K D"]]:
        """q, k and v of normed activations, rotated."""
        batch, queries, _ = x.shape

        def heads(y: Array, norm: Norm | None) -> Array:
            y = y.reshape(batch, queries, -1, self.config.head_dim)
            return y if norm is None else norm(y)

        q, k, v = heads(self.q(x), self.q_norm), heads(self.k(x), self.k_norm), heads(self.v(x), None)
        return (q, k, v) if rope is None else (rope.rotate_query(q), rope.rotate(k), v)

    def output(self, heads: Float[Array, "B Q H D"]) -> Float[Array, "B Q E"]:
        return self.o(heads.reshape(*heads.shape[:2], -1))
