"""Statistics of all queries where a step runs only some: what recorders add up over queries goes on to the next step.

Values of queries that will not run again are added to `sums`; a step's own come on top, and are reduced only then.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, PyTree, Shaped

from jaxsink.nn.batch import Keys
from jaxsink.nn.recorder import Recorder


def adds_up(recorder: Recorder) -> bool:
    """True = its values for different queries add up to the value of the whole map."""
    return recorder.join == "sum" and not recorder.of_last_query


def unreduced(recorders: tuple[Recorder, ...]) -> tuple[Recorder, ...]:
    """Reductions wait until the sum is complete."""
    return tuple(replace(recorder, reductions=()) for recorder in recorders)


def reduced(recorder: Recorder, total: PyTree, keys: Keys, done: Bool[Array, " B"]) -> PyTree:
    """The whole sum of every layer as the caller wants it; sequences that have finished have no statistics."""

    def unless_done(total: Shaped[Array, "L ..."]) -> Shaped[Array, "L ..."]:
        if total.shape[1:2] != done.shape:
            return total
        return jnp.where(done.reshape(1, -1, *[1] * (total.ndim - 2)), 0, total)

    return jax.vmap(lambda value: recorder.finish(value, keys))(jax.tree.map(unless_done, total))
