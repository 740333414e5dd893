"""One layer of the transformer."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float, PyTree

from jaxsink.nn.attention import Attention
from jaxsink.nn.cache import Slot
from jaxsink.nn.conditioning import Adapted, Modulation
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.context import LayerContext
from jaxsink.nn.edited import edited
from jaxsink.nn.experts import MixtureOfExperts
from jaxsink.nn.linear import Maker, Norm
from jaxsink.nn.mlp import Mlp
from jaxsink.nn.taps import ExtraSink, read_vectors


class Stream(NamedTuple):
    """The residual stream, and beside it that of the extra sink, which sees only itself."""

    x: Float[Array, "B Q E"]
    sink: Float[Array, "1 1 E"] | None = None


class LayerOutput(NamedTuple):
    """What a layer gives."""

    stream: Stream  # of the queries that go on
    slot: Slot | None
    record: tuple[PyTree[Array], ...]  # one per recorder of the context


class Layer(nnx.Module):
    """Pre-norm transformer layer: x + attention(norm x), then x + mlp(norm x); adapted to the noise level, if it is told."""

    def __init__(self, make: Maker, lead: tuple[int, ...], config: ModelConfig):
        self.attention_norm = Norm(make, lead, config.width, config)
        self.attention = Attention(make, lead, config)
        self.mlp_norm = Norm(make, lead, config.width, config)
        self.mlp = (MixtureOfExperts if config.experts else Mlp)(make, lead, config)
        self.modulation = Modulation(make, lead, config, 6) if config.time_conditioning else None

    def __call__(self, stream: Stream, context: LayerContext, slot: Slot | None = None) -> LayerOutput:
        x, sink, extra = edited(context, "residual_before", stream.x), stream.sink, None
        record = read_vectors(context, "residual_before", x)
        if sink is not None:
            sink, extra = self.pass_sink(sink, context)
        first, second = self.adapted(context)
        normed = first.enter(self.attention_norm(x))
        attended = self.attention(normed, context, hidden=x, slot=slot, sink=extra, gate=first.gate)
        record |= attended.record
        x = context.wanted(x) + attended.added
        added = edited(context, "mlp", second.leave(self.widen(second.enter(self.mlp_norm(x)), context)), record)
        x = edited(context, "residual", x + added, record)
        record |= read_vectors(context, "mlp", added) | read_vectors(context, "residual", x)
        return LayerOutput(Stream(x, sink), attended.slot, tuple(record[n] for n in range(len(context.recorders))))

    def adapted(self, context: LayerContext) -> tuple[Adapted, Adapted]:
        """How attention and the mlp change with the noise level."""
        if self.modulation is None:
            return Adapted(), Adapted()
        assert context.condition is not None
        parts = self.modulation(context.condition)
        return Adapted(*parts[:3]), Adapted(*parts[3:])

    def widen(self, normed: Float[Array, "B Q E"], context: LayerContext) -> Float[Array, "B Q E"]:
        """What the mlp makes of the stream."""
        return self.mlp(normed) if isinstance(self.mlp, Mlp) else self.mlp(normed, context.execution.mesh)

    def pass_sink(self, sink: Float[Array, "1 1 E"], context: LayerContext) -> tuple[Float[Array, "1 1 E"], ExtraSink]:
        """The extra sink's own stream after this layer, and the key and value that it shows to all queries."""
        config = self.attention.config
        _, k, v = self.attention.project(self.attention_norm(sink), context.sink_rope)
        sink = sink + self.attention.output(jnp.repeat(v, config.heads // config.kv_heads, axis=2))
        return sink + self.widen(self.mlp_norm(sink), context), ExtraSink(k[0, 0], v[0, 0])

    def by_head(self) -> Layer:
        """The same layer with an axis for the heads in the weights of q, k and v.

        For stacked layers on TPU, before the scan: if each layer were reshaped inside the scan, the compiler would copy its
        weights before every product (10 % of a step by its estimate); this way it reads them where they are. Other devices
        gain nothing, and would round differently.
        """
        other = jax.tree.map(lambda x: x, self)
        attention, size = other.attention, self.attention.config.head_dim
        attention.q, attention.k, attention.v = (x.by_head(size) for x in (attention.q, attention.k, attention.v))
        return other
