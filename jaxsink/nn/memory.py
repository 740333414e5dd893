"""Out of memory: how many bytes a run needs, what fills them, and what to try instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import PyTree

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.runs.progress import human_bytes

WEIGHTS, ACTIVATIONS, RECORDS, LOGITS = "weights", "activations", "records", "logits"
MAPS, CACHE, INTERVENTION = "attention maps", "keys and values", "intervention"
ADVICE = {
    WEIGHTS: 'int8 weights (dtype="int8")',
    RECORDS: "a smaller record (every=8, jaxsink.reduce.top, chosen layers and heads, or stream=8 to keep it on the host)",
}
OTHERWISE = "fewer or shorter sequences"
LAST = "several devices (mesh=jaxsink.parallel.make_mesh())"


@contextmanager
def explained(what: str, needs: Callable[[], dict[str, int]]) -> Iterator[None]:
    """Turn an allocation that failed inside into a sentence; `needs` says how many bytes each part of the run takes."""
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise JaxsinkError(sentence(what, needs(), refused(error))) from error


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def refused(error: BaseException) -> int | None:
    """The bytes that were asked for when it failed, if the error says so."""
    found = re.search(r"allocat\w* (\d+) bytes", str(error))
    return None if found is None else int(found[1])


def sentence(what: str, needs: dict[str, int], asked: int | None = None) -> str:
    """What is needed, the largest part first, and what would make that part smaller."""
    parts = {name: size for name, size in sorted(needs.items(), key=lambda part: -part[1]) if size}
    shown = ", ".join(f"{name} {human_bytes(size)}" for name, size in parts.items())
    total = sum(parts.values())
    at_once = "" if asked is None else f" and asked for {human_bytes(asked)} at once"
    large = [name for name, size in parts.items() if size > total / 10]
    advice = ", ".join(dict.fromkeys(ADVICE.get(name, OTHERWISE) for name in large))
    return f"out of memory: {what} needs at least {human_bytes(total)} ({shown}){at_once}; try {advice} or {LAST}."


def activation_bytes(config: ModelConfig, sequences: int, queries: int, dtype: DTypeLike) -> int:
    """What one layer makes of the tokens that run, at least: its input, the widened mlp and the residual stream."""
    widened = config.widest_mlp * (2 if config.mlp == "gated" else 1)
    return sequences * queries * (2 * config.width + widened) * jnp.dtype(dtype).itemsize


def tree_bytes(tree: PyTree) -> int:
    """Of all arrays, or shapes of arrays, in a pytree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def wait_on_cpu(array: object) -> None:
    """A CPU says that memory ran out when a result is read, not when the program is started; others say so at once."""
    if isinstance(array, jax.Array) and not isinstance(array, Tracer):
        platforms = {device.platform for device in array.devices()}
        if platforms == {"cpu"}:
            jax.block_until_ready(array)
