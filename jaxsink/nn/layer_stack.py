"""LayerStack: all layers of a model in order, by one compiled body scanned over stacked layers, or by one body per layer.

A stack consists of segments: layers of one shape, whose parameters are stacked. Most models are a single segment. One that
begins with dense layers and goes on with experts has two, so that no layer asks what it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Float32, Int, PyTree

from jaxsink.nn.cache import Cache
from jaxsink.nn.context import LayerContext, select
from jaxsink.nn.expert_products import Weights
from jaxsink.nn.experts import MixtureOfExperts
from jaxsink.nn.layer import Layer, Stream
from jaxsink.nn.recorder import Recorder

Records = tuple[PyTree[Array], ...]  # one per recorder
Carry = tuple[Stream, Cache | None, Records]  # what scanned layers hand on; the records are slots
Windows = Bool[np.ndarray, " L"] | None  # layers that use the sliding window; None = all, or there is none


class StackInputs(NamedTuple):
    """What a pass gives to its layers beside the context."""

    drop: Bool[Array, "L B H S"] | Float32[Array, "L B H S"] | None = None  # keys to hide, or factors on attention
    cache: Cache | None = None
    start: Int[Array, ""] | Int[Array, " B"] | int = 0  # position from which keys and values are written into the cache
    runs: Bool[Array, "B Q"] | None = None  # the tokens whose keys and values are written; None = all
    outputs: Int[Array, "B W"] | None = None  # the queries that are wanted after the last layer; None = all
    to_the_end: bool = False  # all queries go through the whole last layer, wanted or not


class StackOutput(NamedTuple):
    """What the layers together give."""

    stream: Stream
    cache: Cache | None
    record: Records  # each leaf with a leading layer axis
    last: Float[Array, "B Q E"]  # the residual stream of all queries that went through the last layer


class LayerStack(NamedTuple):
    """A view of a model's layers, made for one pass; the parameters stay where the model has them."""

    segments: tuple[Layer, ...]
    unrolled: bool  # every segment is a single layer, without a layer axis
    windows: Windows = None

    def __call__(self, stream: Stream, context: LayerContext, given: StackInputs) -> StackOutput:
        """Through all layers. Where few outputs are wanted, an unrolled stack runs the end of its last layer for those."""
        if self.unrolled:
            return self._unroll(stream, context, given)
        return self._scan(stream, context, given)

    def _scan(self, stream: Stream, context: LayerContext, given: StackInputs) -> StackOutput:
        """Recorders of chosen layers write into slots that are carried along; the others' values are stacked."""
        everywhere = tuple(r for r in context.recorders if r.layers is None)
        somewhere = tuple(r for r in context.recorders if r.layers is not None)

        def run(
            carry: Carry, of_layer: PyTree, recorders: tuple[Recorder, ...]
        ) -> tuple[Stream, Cache | None, Records]:
            stream, cache, _ = carry
            layer, drop, index, use_window = of_layer
            slot = None if cache is None else cache.slot(index, given.start, given.runs)
            out = layer(stream, context.at(index, drop, use_window, recorders), slot)
            if cache is not None and out.slot is not None:
                cache = cache.put(out.slot, index)
            return out.stream, cache, out.record

        def body(stack: Weights | None, first: Array, carry: Carry, of_layer: PyTree) -> tuple[Carry, Records]:
            if stack is not None:
                of_layer[0].mlp.put_in(stack, of_layer[2] - first)
            stream, cache, values = run(carry, of_layer, everywhere + somewhere)
            kept, chosen = values[: len(everywhere)], values[len(everywhere) :]
            index = of_layer[2]
            slots = tuple(write_slot(*one, index) for one in zip(carry[2], chosen, somewhere, strict=True))
            return (stream, cache, slots), kept

        carry: Carry = (stream, given.cache, ())
        parts = list(self._parts(given.drop))
        if somewhere:
            like = jax.eval_shape(lambda: run(carry, jax.tree.map(lambda x: jnp.asarray(x)[0], parts[0]), somewhere)[2])
            carry = (stream, given.cache, tuple(map(empty_slot, somewhere, like)))
        kept = []
        for layers, *shared in parts:
            stack = None
            if context.execution.whole_stacks and isinstance(layers.mlp, MixtureOfExperts):
                layers = jax.tree.map(lambda x: x, layers)
                stack = layers.mlp.take_out()
            carry, values = lax.scan(partial(body, stack, shared[1][0]), carry, (layers, *shared))
            kept.append(values)
        stream, cache, slots = carry
        by_layer = iter(kept[0] if len(kept) == 1 else jax.tree.map(lambda *xs: jnp.concatenate(xs), *kept))
        by_slot = iter(slots)
        records = tuple(next(by_layer if r.layers is None else by_slot) for r in context.recorders)
        return StackOutput(stream._replace(x=select(stream.x, given.outputs)), cache, records, stream.x)

    def _parts(self, drop: Array | None) -> Iterator[PyTree]:
        """What each scan goes over: (layers, drop, index, use_window) of a segment."""
        sizes = [segment.attention_norm.weight.shape[0] for segment in self.segments]
        indices, first = jnp.arange(sum(sizes)), 0
        for segment, size in zip(self.segments, sizes, strict=True):
            shared = (drop, indices, self.windows)
            if size < sum(sizes):
                shared = jax.tree.map(lambda x, first=first, size=size: x[first : first + size], shared)
            yield segment, *shared
            first += size

    def _unroll(self, stream: Stream, context: LayerContext, given: StackInputs) -> StackOutput:
        """Each layer runs only the recorders that want it."""
        recorders, last = context.recorders, len(self.segments) - 1
        to_the_end = given.to_the_end or reads_after_attention(recorders, last)
        values: list[dict[int, PyTree[Array]]] = [{} for _ in recorders]
        cache = given.cache
        for index, layer in enumerate(self.segments):
            numbers = [n for n, r in enumerate(recorders) if r.layers is None or index in r.layers]
            wanted = tuple(recorders[n] for n in numbers)
            outputs = given.outputs if index == last and not to_the_end else None
            drop = None if given.drop is None else given.drop[index]
            use_window = None if self.windows is None else jnp.asarray(self.windows[index])
            slot = None if cache is None else cache.slot(index, given.start, given.runs)
            out = layer(stream, context.at(jnp.asarray(index), drop, use_window, wanted, outputs), slot)
            stream = out.stream
            if cache is not None and out.slot is not None:
                cache = cache.put(out.slot, index)
            for n, value in zip(numbers, out.record, strict=True):
                values[n][index] = value
        whole = stream.x
        if to_the_end:
            stream = stream._replace(x=select(stream.x, given.outputs))
        return StackOutput(stream, cache, tuple(map(stacked, recorders, values)), whole)


def reads_after_attention(recorders: tuple[Recorder, ...], layer: int) -> bool:
    """Then all queries have to go through the whole layer, wanted or not."""
    after = ("attention_output", "mlp", "residual")
    return any(r.tap in after and (r.layers is None or layer in r.layers) for r in recorders)


def stacked(recorder: Recorder, values: dict[int, PyTree[Array]]) -> PyTree[Array]:
    """The values of the recorder's layers, in its order."""
    order = range(len(values)) if recorder.layers is None else recorder.layers
    return jax.tree.map(lambda *xs: jnp.stack(xs), *[values[layer] for layer in order])


def empty_slot(recorder: Recorder, like: PyTree) -> PyTree[Array]:
    count = len(recorder.layers or ())
    return jax.tree.map(lambda s: jnp.zeros((count, *s.shape), s.dtype), like)


def write_slot(slot: PyTree[Array], value: PyTree[Array], recorder: Recorder, index: Int[Array, ""]) -> PyTree[Array]:
    """Put this layer's value where `recorder.layers` names the layer; leave the slots alone elsewhere."""
    here = jnp.array(recorder.layers) == index

    def put(old: Array, new: Array) -> Array:
        return jnp.where(here.reshape(-1, *[1] * new.ndim), new[None], old)

    return lax.cond(here.any(), lambda: jax.tree.map(put, slot, value), lambda: slot)
