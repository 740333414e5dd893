"""Several hosts as one program: joining them, telling the first from the others, and gathering results."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError

HEARTBEAT = 20
"""Seconds after which a silent process counts as dead."""


@checked(processes=at_least(1), process=at_least(0))
def start(coordinator: str | None = None, processes: int | None = None, process: int | None = None) -> None:
    """Join the processes of this run; call it once, before anything else of JAX.

    On Cloud TPU it takes no arguments. Then `jax.devices()` are those of all processes, for `make_mesh`.

    Args:
        coordinator: elsewhere, every process names the first one's address ("host:port"),
        processes: how many there are,
        process: and its own number, from 0 on

    Examples:
        >>> try:
        ...     jaxsink.parallel.start("10.0.0.1:1234", processes=2, process=2)
        ... except jaxsink.JaxsinkError as error:
        ...     print(error)
        parallel.start: process 2 is not one of 2; they are counted from 0.
    """
    given = (coordinator, processes, process)
    if any(value is None for value in given) and any(value is not None for value in given):
        raise JaxsinkError(
            "parallel.start: give the coordinator, the number of processes and this one's number, or nothing."
        )
    if processes is not None and process is not None and not 0 <= process < processes:
        raise JaxsinkError(f"parallel.start: process {process} is not one of {processes}; they are counted from 0.")
    if os.environ.get("JAX_PLATFORMS", "") in ("", "cpu"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            coordinator, processes, process, initialization_timeout=60, heartbeat_timeout_seconds=HEARTBEAT
        )
    except (RuntimeError, ValueError) as error:
        where = f" at {coordinator}" if coordinator else ""
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise JaxsinkError(f"the processes of this run did not find each other{where} ({reason}).") from error


def is_main() -> bool:
    """True in the process that writes files and prints.

    Examples:
        >>> jaxsink.parallel.is_main()  # the only process there is
        True
    """
    return jax.process_index() == 0


@checked()
def to_host(tree: PyTree) -> PyTree:
    """The arrays of a pytree as NumPy arrays, whole, in every process; one exchange for those spread over hosts.

    Examples:
        >>> type(jaxsink.parallel.to_host({"sum": jnp.ones(3)})["sum"])
        <class 'numpy.ndarray'>
    """
    from jax.experimental import multihost_utils

    def whole(x: object) -> object:
        if not isinstance(x, jax.Array):
            return x
        if x.is_fully_addressable or x.is_fully_replicated:
            return np.asarray(x)
        return np.asarray(multihost_utils.process_allgather(x, tiled=True))

    return jax.tree.map(whole, tree)


def from_main(value: Any) -> Any:
    """The first process's value, plain data as JSON has it, in every process."""
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.array(len(data))))
    sent = data if is_main() else np.zeros(size, np.uint8)
    return json.loads(bytes(np.asarray(multihost_utils.broadcast_one_to_all(sent), np.uint8)))


@checked()
@contextmanager
def together(what: str = "this run") -> Iterator[None]:
    """Inside, the failure of another process is one clear sentence instead of a collective's error.

    Args:
        what: the run, in words, for that sentence

    Examples:
        >>> with jaxsink.parallel.together("the evaluation"):
        ...     answers = jaxsink.parallel.to_host(out.tokens)
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        reason = (str(error).strip().splitlines() or [""])[0][:160]
        raise JaxsinkError(
            f"process {jax.process_index()} of {jax.process_count()} stops, because another process of {what} is gone "
            f"({reason}); start all of them again: what was finished is kept."
        ) from error
