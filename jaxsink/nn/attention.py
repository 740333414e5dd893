"""Attention: queries, keys and values of the heads, who sees whom, and the taps "attention" and "values".

Backends compute the same numbers: "naive" holds the map of one layer (B x H x Q x S), "blocked" goes through the queries
in blocks of `BLOCK` with all their keys, so memory is B x H x BLOCK x S, and "pallas" is a TPU kernel that holds no map in
memory at all (nn/kernels/backend.py; layers and records it is not made for run on "blocked"). A backend is an entry of
`BACKENDS`. What is seen, hidden and counted is said in nn/context.py and nn/softmax.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from flax import nnx
from jax import Array
from jax.sharding import Mesh
from jaxtyping import Float

from jaxsink.errors import JaxsinkError
from jaxsink.nn.backends import BLOCK, Unreduced, blocked, naive
from jaxsink.nn.cache import Slot
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.context import LayerContext
from jaxsink.nn.kernels.backend import pallas
from jaxsink.nn.linear import Linear, Maker, Norm
from jaxsink.nn.recorder import Recorder
from jaxsink.nn.rope import RopeTable
from jaxsink.nn.sharding import on_tpu
from jaxsink.nn.taps import ExtraSink, Record, Tap, read_vectors, readers

__all__ = ["BACKENDS", "BLOCK", "Attended", "Attention", "attend", "choose_backend"]

NAIVE_LIMIT = 1024  # from here on the map of a layer is not held as a whole

Backend = Callable[[Tap, tuple[Recorder, ...]], tuple[Array, Unreduced]]
BACKENDS: dict[str, Backend] = {"naive": naive, "blocked": blocked, "pallas": pallas}


def choose_backend(name: str | None, queries: int, keys: int, mesh: Mesh | None = None) -> str:
    """`None` picks by device (of the mesh, or JAX's own) and size; a name is taken as it is."""
    if name is None:
        if on_tpu(mesh):
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
        heads, record = attend(Tap(context, q, k, v, hidden, sink, output))
        record |= read_vectors(context, "values", heads)
        added = self.output(context.wanted(heads))
        return Attended(added if gate is None else gate * added, slot, record)

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
