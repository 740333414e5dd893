"""How the programs that run a model are compiled: by `jax.jit`, with options that depend on where the weights lie.

XLA on a CPU takes what it can out of a loop. From the loop over the layers, that is a widened or transposed copy of all
stacked bfloat16 or int8 weights: 32 GB for an 8B model, where one layer at a time needs 1 GB. So programs on a CPU are
compiled without that pass, if the model has weights narrower than float32; all others are compiled as JAX does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

NO_HOISTING = {"xla_disable_hlo_passes": "while-loop-invariant-code-motion"}


def compiler_options(model: Any) -> dict[str, str] | None:
    """What to pass to the compiler for a program of this model; its weights may be arrays, or shapes with a sharding."""
    leaves = jax.tree.leaves(model)
    narrow = any(leaf.dtype.itemsize < 4 for leaf in leaves)
    return NO_HOISTING if narrow and platform_of(leaves) == "cpu" else None


def platform_of(leaves: Sequence[Any]) -> str:
    """The platform of the devices that hold the arrays; the default one if they do not say."""
    for leaf in leaves:
        sharding = getattr(leaf, "sharding", None)
        if sharding is not None:
            return next(iter(sharding.device_set)).platform
    return jax.default_backend()


class ModelProgram:
    """A jitted function whose first argument is the model."""

    def __init__(self, function: Callable[..., Any], static: Sequence[str], donated: Sequence[str]):
        options: dict[str, Any] = {"static_argnames": tuple(static), "donate_argnames": tuple(donated)}
        self._plain: Any = jax.jit(function, **options)
        self._on_cpu: Any = jax.jit(function, **options, compiler_options=NO_HOISTING)
        update_wrapper(self, function)
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._chosen(args, kwargs)(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As `jax.jit(...).lower`: the program for weights and inputs that may be shapes."""
        return self._chosen(args, kwargs).lower(*args, **kwargs)

    def cache_size(self) -> int:
        """How many programs were compiled."""
        return self._plain._cache_size() + self._on_cpu._cache_size()

    def _chosen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(isinstance(x, Tracer) for x in jax.tree.leaves((args, kwargs))) or compiler_options(args[0]) is None:
            return self._plain
        inside = isinstance(jnp.zeros(()), Tracer)  # of a program that is being traced; options are for whole ones
        return self._plain if inside else self._on_cpu


def model_jit(*, static: Sequence[str] = (), donated: Sequence[str] = ()) -> Callable[..., ModelProgram]:
    """A decorator as `jax.jit`, for functions whose first argument is a model."""
    return lambda function: ModelProgram(function, static, donated)
