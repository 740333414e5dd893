"""Random numbers that depend on the seed, the step and the place in the sequence, and on nothing else.

Every place of every row draws from a key of its own, counted from the start of the generated part, so neither padding nor
batch size nor the number of devices changes a draw. Rows share the seed's stream unless each row is given its own seed.

Gumbel noise needs no float64: the original's `exp(logits) / (-log u)^T` is `logits - T log(-log u)` up to a monotone map,
and with u = 1 - v, `-log u = -log1p(-v)` keeps full relative precision for the small v that make large noise. v has 32
random bits, so noise reaches 22.9, where float32's plain `-log(-log u)` stops at 16.6.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

TOKEN, REMASK, TRANSFER, ORDER, INTERVENE = range(5)  # what a draw is for
PLACE_OFFSET = 1 << 24  # places before the generated part are negative


class Draws(NamedTuple):
    """Where random numbers come from: keys, or recorded draws to replay (by step, row and position)."""

    keys: Array  # key[B]
    token: Array | None = None  # f32[T,B,S,V], Gumbel noise
    remask: Array | None = None  # f32[T,B,S], uniform
    transfer: Array | None = None  # f32[T,B,S], uniform


@jax.jit
def row_keys(seeds: Array) -> Array:
    """key[B] of one seed u32[B] per row."""
    return jax.vmap(jax.random.key)(seeds.astype(jnp.uint32))


def keys_at(keys: Array, purpose: int, step: Array, place: Array) -> Array:
    """key[B,W] for places i32[B,W] counted from the start of the generated part."""

    def one_row(key: Array, places: Array) -> Array:
        key = jax.random.fold_in(jax.random.fold_in(key, purpose), step)
        return jax.vmap(lambda p: jax.random.fold_in(key, p + PLACE_OFFSET))(places)

    return jax.vmap(one_row)(keys, place)


def uniform(keys: Array) -> Array:
    """f32[B,W] in (0, 1)."""
    return jax.vmap(jax.vmap(lambda key: small_uniform(key, ())))(keys)


def gumbel(keys: Array, size: int) -> Array:
    """f32[B,W,size] standard Gumbel noise."""
    return jax.vmap(jax.vmap(lambda key: -jnp.log(-jnp.log1p(-small_uniform(key, (size,))))))(keys)


def small_uniform(key: Array, shape: tuple[int, ...]) -> Array:
    """Uniform in (0, 1) with 32 random bits, so that small values keep their relative precision."""
    bits = jax.random.bits(key, shape, jnp.uint32)
    return (bits.astype(jnp.float32) + 0.5) * jnp.float32(2.0**-32) * jnp.float32(1 - 2.0**-24)
