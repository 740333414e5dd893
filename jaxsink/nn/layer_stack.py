"""Two ways through the layers: one compiled body scanned over stacked layers, or one body per layer.

Both run `run_layer(layer, x, cache, drop, index, use_window, recorders, last) -> (x, cache, records)` for every layer,
and return (x, cache, one record per recorder with a leading layer axis). Only the unrolled loop knows the last layer.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsink.recording.recorders import Recorder


def scanned_layers(
    layers: Any,
    run_layer: Any,
    x: Any,
    cache: Any,
    drop: Any,
    windows: Any,
    recorders: tuple[Recorder, ...],
    count: int,
) -> tuple[Any, Any, tuple[Any, ...]]:
    """Recorders of chosen layers write into slots that are carried along; the others' values are stacked."""
    everywhere = tuple(r for r in recorders if r.layers is None)
    somewhere = tuple(r for r in recorders if r.layers is not None)
    indices = jnp.arange(count)

    def body(carry: Any, of_layer: Any) -> Any:
        x, cache, slots = carry
        layer, drop, index, use_window = of_layer
        x, cache, values = run_layer(layer, x, cache, drop, index, use_window, everywhere + somewhere, False)
        chosen = zip(slots, values[len(everywhere) :], somewhere, strict=True)
        slots = tuple(write_slot(slot, value, recorder, index) for slot, value, recorder in chosen)
        return (x, cache, slots), values[: len(everywhere)]

    def first_layer() -> Any:
        layer, drop_, index, use_window = jax.tree.map(lambda y: y[0], (layers, drop, indices, windows))
        return run_layer(layer, x, cache, drop_, index, use_window, somewhere, False)[2]

    slots = ()
    if somewhere:
        like = jax.eval_shape(first_layer)
        slots = tuple(empty_slots(r, value) for r, value in zip(somewhere, like, strict=True))
    (x, cache, slots), kept = lax.scan(body, (x, cache, slots), (layers, drop, indices, windows))
    by_layer, by_slot = iter(kept), iter(slots)
    return x, cache, tuple(next(by_layer if r.layers is None else by_slot) for r in recorders)


def empty_slots(recorder: Recorder, like: Any) -> Any:
    count = len(recorder.layers or ())
    return jax.tree.map(lambda s: jnp.zeros((count, *s.shape), s.dtype), like)


def write_slot(slot: Any, value: Any, recorder: Recorder, index: Array) -> Any:
    """Put this layer's value where `recorder.layers` names the layer; leave the slots alone elsewhere."""
    here = jnp.array(recorder.layers) == index

    def put(old: Array, new: Array) -> Array:
        return jnp.where(here.reshape(-1, *[1] * new.ndim), new[None], old)

    return lax.cond(here.any(), lambda: jax.tree.map(put, slot, value), lambda: slot)


def unrolled_layers(
    layers: Any,
    run_layer: Any,
    x: Any,
    cache: Any,
    drop: Any,
    windows: Any,
    recorders: tuple[Recorder, ...],
    count: int,
) -> tuple[Any, Any, tuple[Any, ...]]:
    """Each layer runs only the recorders that want it."""
    values: list[dict[int, Any]] = [{} for _ in recorders]
    for index in range(count):
        numbers = [n for n, r in enumerate(recorders) if r.layers is None or index in r.layers]
        drop_here = None if drop is None else drop[index]
        use_window = None if windows is None else jnp.asarray(windows[index])
        wanted = tuple(recorders[n] for n in numbers)
        last = index == count - 1
        x, cache, here = run_layer(layers[index], x, cache, drop_here, index, use_window, wanted, last)
        for n, value in zip(numbers, here, strict=True):
            values[n][index] = value
    order = [r.layers if r.layers is not None else range(count) for r in recorders]
    return (
        x,
        cache,
        tuple(
            jax.tree.map(lambda *xs: jnp.stack(xs), *[by_layer[i] for i in wanted])
            for by_layer, wanted in zip(values, order, strict=True)
        ),
    )
