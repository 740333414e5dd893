"""How the programs that run a model are compiled: by `jax.jit`, with options that depend on where the weights lie.

XLA on a CPU takes what it can out of a loop. From the loop over the layers, that is a widened or transposed copy of all
stacked bfloat16 or int8 weights: 32 GB for an 8B model, where one layer at a time needs 1 GB. So programs on a CPU are
compiled without that pass, if the model has weights narrower than float32; all others are compiled as JAX does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from typing import Generic, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.stages import Lowered
from jaxtyping import PyTree

P = ParamSpec("P")
R = TypeVar("R")
Weights = PyTree  # of a model: arrays, or shapes with a sharding

NO_HOISTING = {"xla_disable_hlo_passes": "while-loop-invariant-code-motion"}


def compiler_options(model: Weights) -> dict[str, str] | None:
    """What to pass to the compiler for a program of this model."""
    leaves = jax.tree.leaves(model)
    narrow = any(leaf.dtype.itemsize < 4 for leaf in leaves)
    return NO_HOISTING if narrow and platform_of(leaves) == "cpu" else None


def platform_of(leaves: Sequence[PyTree]) -> str:
    """The platform of the devices that hold the arrays; the default one if they do not say."""
    for leaf in leaves:
        sharding = getattr(leaf, "sharding", None)
        if sharding is not None:
            return next(iter(sharding.device_set)).platform
    return jax.default_backend()


class ModelProgram(Generic[P, R]):
    """A jitted function whose first argument is the model."""

    def __init__(self, function: Callable[P, R], static: Sequence[str], donated: Sequence[str]):
        static, donated = tuple(static), tuple(donated)
        self._plain = jax.jit(function, static_argnames=static, donate_argnames=donated)
        self._on_cpu = jax.jit(
            function, static_argnames=static, donate_argnames=donated, compiler_options=dict(NO_HOISTING)
        )
        update_wrapper(self, function)
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return (self._on_cpu if self._for_cpu(args, kwargs) else self._plain)(*args, **kwargs)

    def lower(self, *args: PyTree, **kwargs: PyTree) -> Lowered:
        """As `jax.jit(...).lower`: the program for weights and inputs that may be shapes."""
        return (self._on_cpu if self._for_cpu(args, kwargs) else self._plain).lower(*args, **kwargs)

    def cache_size(self) -> int:
        """How many programs were compiled."""
        return sum(program._cache_size() for program in (self._plain, self._on_cpu))  # pyright: ignore

    def _for_cpu(self, args: Sequence[PyTree], kwargs: Mapping[str, PyTree]) -> bool:
        if any(isinstance(x, Tracer) for x in jax.tree.leaves((args, kwargs))) or compiler_options(args[0]) is None:
            return False
        inside = isinstance(jnp.zeros(()), Tracer)  # of a program that is being traced; options are for whole ones
        return not inside


def model_jit(
    *, static: Sequence[str] = (), donated: Sequence[str] = ()
) -> Callable[[Callable[P, R]], ModelProgram[P, R]]:
    """A decorator as `jax.jit`, for functions whose first argument is a model."""
    return lambda function: ModelProgram(function, static, donated)
