"""Random numbers that depend on the seed, the step and the position in the response, and on nothing else.

Every position of every sequence draws from a key of its own, counted from the start of the response (its `offset`), so
neither padding nor batch size nor the number of devices changes a draw. Sequences share the seed's stream unless each is
given its own seed.

Gumbel noise needs no float64: the original's `exp(logits) / (-log u)^T` is `logits - T log(-log u)` up to a monotone map,
and with u = 1 - v, `-log u = -log1p(-v)` keeps full relative precision for the small v that make large noise. v has 32
random bits, so noise reaches 22.9, where float32's plain `-log(-log u)` stops at 16.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Integer, Key, UInt32
from numpy.typing import ArrayLike

from jaxsink.checks import at_least, fits, plain, shown
from jaxsink.errors import JaxsinkError
from jaxsink.nn.inputs import as_numbers
from jaxsink.parallel.axes import axes, pytree_dataclass

TOKEN, REMASK, TRANSFER, ORDER, INTERVENE, INTERVENE_RUN = range(6)  # what a draw is for
SEED = at_least(0, (1 << 32) - 1)
FIRST_OFFSET = -(1 << 24)  # positions before the response have negative offsets

DrawName = Literal["token", "remask", "transfer"]


@pytree_dataclass
class Draws:
    """Where random numbers come from: keys, or recorded draws to replay (by step, sequence and position)."""

    keys: Key[Array, " B"] = axes()
    token: Float[Array, "T B S V"] | None = axes(batch=1, default=None)  # Gumbel noise
    remask: Float[Array, "T B S"] | None = axes(batch=1, default=None)  # uniform
    transfer: Float[Array, "T B S"] | None = axes(batch=1, default=None)  # uniform


@jax.jit
def sequence_keys(seeds: Integer[Array, " B"]) -> Key[Array, " B"]:
    """One key per sequence, from one seed each."""
    return jax.vmap(jax.random.key)(seeds.astype(jnp.uint32))


def step_keys(keys: Key[Array, " B"], purpose: int, step: Int[Array, ""] | int) -> Key[Array, " B"]:
    """A key per sequence for this step."""
    return jax.vmap(lambda key: jax.random.fold_in(jax.random.fold_in(key, purpose), step))(keys)


def position_keys(
    keys: Key[Array, " B"], purpose: int, step: Int[Array, ""] | int, offset: Int[Array, "B W"]
) -> Key[Array, "B W"]:
    """A key per position, at offsets from the start of the response."""

    def of_sequence(key: Key[Array, ""], offsets: Int[Array, " W"]) -> Key[Array, " W"]:
        key = jax.random.fold_in(jax.random.fold_in(key, purpose), step)
        return jax.vmap(lambda n: jax.random.fold_in(key, n - FIRST_OFFSET))(offsets)

    return jax.vmap(of_sequence)(keys, offset)


def uniform(keys: Key[Array, "B W"]) -> Float[Array, "B W"]:
    """In (0, 1)."""
    return jax.vmap(jax.vmap(lambda key: small_uniform(key, ())))(keys)


def gumbel(keys: Key[Array, "B W"], size: int) -> Float[Array, "B W {size}"]:
    """Standard Gumbel noise."""
    return jax.vmap(jax.vmap(lambda key: -jnp.log(-jnp.log1p(-small_uniform(key, (size,))))))(keys)


def small_uniform(key: Key[Array, ""], shape: tuple[int, ...]) -> Float[Array, ...]:
    """Uniform in (0, 1) with 32 random bits, so that small values keep their relative precision."""
    bits = jax.random.bits(key, shape, jnp.uint32)
    return (bits.astype(jnp.float32) + 0.5) * jnp.float32(2.0**-32) * jnp.float32(1 - 2.0**-24)


def check_seeds(seed: int | Sequence[int], batch: int) -> UInt32[np.ndarray, " B"]:
    """One seed per sequence."""
    several = isinstance(seed, Sequence) or getattr(seed, "ndim", 0) == 1
    seeds = [plain(one, int) for one in (cast(Sequence[int], seed) if several else [seed])]
    if (several and len(seeds) != batch) or not all(fits(one, int, SEED) for one in seeds):
        raise JaxsinkError(
            f"seed must be a whole number{SEED.words()}, or one per prompt ({batch}), not {shown(seed)}."
        )
    return np.broadcast_to(np.array(seeds, np.uint32), (batch,))


def replayed(
    draws: Mapping[DrawName, ArrayLike] | None, shape: tuple[int, int, int], vocab: int
) -> dict[str, Float[np.ndarray, "T B ..."]]:
    """Recorded uniform draws as the loop replays them: Gumbel noise for tokens, uniform numbers for the others.

    shape: T, B and S of the run; draws of more steps than it may take are left over.
    """
    found = {
        name: np.asarray(as_numbers(f"draws: {name!r}", value), np.float64) for name, value in (draws or {}).items()
    }
    wanted = {"token": (*shape, vocab), "remask": shape, "transfer": shape}
    for name, value in found.items():
        if name not in wanted:
            raise JaxsinkError(f"draws: there are no draws called {name!r}, only {', '.join(wanted)}.")
        if value.shape[1:] != wanted[name][1:] or len(value) < shape[0]:
            axes = "[T, B, S, V]" if name == "token" else "[T, B, S]"
            raise JaxsinkError(
                f"draws: {name!r} must be {axes} = {list(wanted[name])} for this run, or of more steps, not "
                f"{list(value.shape)}."
            )
        if not ((value >= 0) & (value <= 1)).all():
            raise JaxsinkError(f"draws: {name!r} must be uniform draws, numbers from 0 to 1.")
    if "token" in found:  # the host has float64, so recorded draws close to 0 and 1 keep their noise
        found["token"] = -np.log(-np.log(found["token"]))
    return {name: value.astype(np.float32) for name, value in found.items()}
