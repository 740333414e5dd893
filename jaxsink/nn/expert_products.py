"""The products of a mixture of experts, which differ by device and give the same numbers.

    TPU        tokens sorted by expert, one Pallas kernel per matrix, which reads the weights where they lie: [out, in], and
               stacked over layers. (XLA's ragged product turns all of them around first, and copies each layer's.) A device
               that has a part of the experts runs as many rows at a time as its share and a half, which is mostly all
    GPU        the same with ragged products
    CPU        there a ragged product runs every expert on every token. Instead each expert gets room for a few tokens
               more than its share, and runs them: one expert after the other in float32, and narrower numbers in one
               product per matrix for all experts; what does not fit goes through tile by tile

`benchmarks/experts.py` compares the CPU with PyTorch's loop over experts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm
from jaxtyping import Float, Float32, Int

from jaxsink.nn.linear import matmul_precision, product
from jaxsink.nn.mlp import ACTIVATIONS

SPARE = 1.25  # room of an expert on a CPU, by its even share of the tokens
SCARCE = 4  # tokens per expert below which most experts have none, so that only those that are chosen should run
TILE = 32  # tokens that go through one expert at a time
ROWS = 1.5  # rows that a device of several runs at a time, by its even share; a multiple of …
ROUND = 128  # … this, the rows of a kernel's tile
TILE_NUMBERS = 1 << 20  # of the weights in a kernel's tile

Times = Callable[[Array, Array, Array], Array]  # (rows sorted by expert, a matrix of each, how many of each) -> rows


class Routes(NamedTuple):
    """Which experts a token goes through, and what their results count. An expert that is not here has number `count`."""

    expert: Int[Array, "N k"]
    weight: Float32[Array, "N k"]

    def of_part(self, first: Int[Array, ""], count: int) -> Routes:
        """As the device sees it that has `count` experts, from `first` on."""
        is_here = (self.expert >= first) & (self.expert < first + count)
        return Routes(jnp.where(is_here, self.expert - first, count), jnp.where(is_here, self.weight, 0.0))

    def combine(self, results: Float[Array, "N k E"], count: int) -> Float32[Array, "N E"]:
        """The weighted sum of what the `count` experts made that are here."""
        is_here = (self.expert < count)[..., None]
        return (jnp.where(is_here, results.astype(jnp.float32), 0.0) * self.weight[..., None]).sum(axis=1)


class Weights(NamedTuple):
    """The matrices of all experts, or of some; of one layer, or stacked over several."""

    gate: Float[Array, "*L X F E"]
    up: Float[Array, "*L X F E"]
    down: Float[Array, "*L X E F"]
    layer: Int[Array, ""] | None = None  # of those in the stack; None = there is no layer axis

    @property
    def experts(self) -> int:
        """How many there are."""
        return self.gate.shape[-3]

    def of_layer(self) -> Weights:
        """Those of the layer alone, which are copied."""
        if self.layer is None:
            return self
        return Weights(*(lax.dynamic_index_in_dim(x, self.layer, keepdims=False) for x in self[:3]))


class Sorted(NamedTuple):
    """All choices of all tokens, sorted by expert; those of experts that are not here stand last."""

    token: Int[Array, " M"]
    place: Int[Array, "N k"]  # where each choice stands
    sizes: Int[Array, " X"]  # tokens of each expert

    @classmethod
    def of(cls, expert: Int[Array, "N k"], count: int) -> Sorted:
        chosen = expert.reshape(-1)
        order = jnp.argsort(chosen, stable=True)
        place = jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))
        sizes = (chosen[:, None] == jnp.arange(count)).sum(axis=0, dtype=jnp.int32)
        return cls(order // expert.shape[1], place.reshape(expert.shape), sizes)

    @property
    def first(self) -> Int[Array, " X"]:
        """Where each expert's tokens begin."""
        return jnp.cumsum(self.sizes) - self.sizes


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def mixed(
    tokens: Float[Array, "N E"], routes: Routes, weights: Weights, activation: str, parts: int
) -> Float[Array, "N E"]:
    """What the experts that are here, one of so many parts, add to each token."""

    def on_cpu(tokens: Array, routes: Routes, weights: Weights) -> Array:
        return routes.combine(by_room(tokens, routes.expert, weights.of_layer(), activation), weights.experts)

    def on_tpu(tokens: Array, routes: Routes, weights: Weights) -> Array:
        if tokens.dtype.itemsize == 4:  # the kernel would round to bfloat16
            return elsewhere(tokens, routes, weights)
        return by_rows(tokens, routes, weights, activation, parts, partial(by_kernel, layer=weights.layer))

    def elsewhere(tokens: Array, routes: Routes, weights: Weights) -> Array:
        return by_rows(tokens, routes, weights.of_layer(), activation, parts, ragged)

    added = lax.platform_dependent(tokens, routes, weights, cpu=on_cpu, tpu=on_tpu, default=elsewhere)
    return added.astype(tokens.dtype)


def _forward(tokens: Array, routes: Routes, weights: Weights, activation: str, parts: int) -> tuple[Array, tuple]:
    return mixed(tokens, routes, weights, activation, parts), (tokens, routes, weights)


def _backward(activation: str, parts: int, kept: tuple[Array, Routes, Weights], gradient: Array) -> tuple:
    """Loops that end when the data says so have no gradients of their own; those of whole ragged products are the same."""
    tokens, routes, weights = kept

    def whole(tokens: Array, weight: Array, weights: Weights) -> Array:
        own = weights._replace(layer=kept[2].layer).of_layer()
        return by_rows(tokens, routes._replace(weight=weight), own, activation, 1, ragged).astype(tokens.dtype)

    found = jax.vjp(whole, tokens, routes.weight, weights._replace(layer=None))[1](gradient)
    return found[0], Routes(None, found[1]), found[2]  # pyright: ignore[reportArgumentType]


mixed.defvjp(_forward, _backward)


def by_rows(
    tokens: Float[Array, "N E"], routes: Routes, weights: Weights, activation: str, parts: int, times: Times
) -> Float32[Array, "N E"]:
    """Products of all rows, or of some at a time where others have the rest."""
    choices = Sorted.of(routes.expert, weights.experts)
    total = len(choices.token)
    rows = ROUND * math.ceil(total * min(1.0, ROWS / parts) / ROUND)

    def made(token: Array, sizes: Array) -> Array:
        inputs = tokens[token]
        hidden = ACTIVATIONS[activation](times(inputs, weights.gate, sizes)) * times(inputs, weights.up, sizes)
        return times(hidden, weights.down, sizes)

    first, token = choices.first, jnp.pad(choices.token, (0, rows))
    if rows >= total:
        return routes.combine(made(token[:rows], choices.sizes)[choices.place], weights.experts)

    def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
        start, added = state
        begin, end = (jnp.clip(x - first, 0, choices.sizes) for x in (start, start + rows))
        results = made(lax.dynamic_slice_in_dim(token, start, rows), end - begin)
        is_now = (choices.place >= start) & (choices.place < start + rows)
        now = routes._replace(expert=jnp.where(is_now, routes.expert, weights.experts))
        return start + rows, added + now.combine(results[jnp.where(is_now, choices.place - start, 0)], weights.experts)

    blank = jnp.zeros(tokens.shape, jnp.float32)
    return lax.while_loop(lambda state: state[0] < choices.sizes.sum(), body, (jnp.int32(0), blank))[1]


def ragged(x: Float[Array, "M I"], weight: Float[Array, "X O I"], sizes: Int[Array, " X"]) -> Float[Array, "M O"]:
    """x sorted by expert, `sizes` tokens for each; every token times the matrix of its expert."""
    dims = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(([1], [2]), ([], [])), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
    )
    return lax.ragged_dot_general(x, weight, sizes, dims, precision=matmul_precision(x))


def by_kernel(
    x: Float[Array, "M I"],
    weight: Float[Array, "*L X O I"],
    sizes: Int[Array, " X"],
    layer: Int[Array, ""] | None,
    interpret: bool = False,
) -> Float[Array, "M O"]:
    """The same by a kernel for TPUs; rows of no expert may be anything.

    The kernel is made for devices that have experts from some number on. Here they have those of all layers, and the first
    expert of this one has so many before it: its number is 0, and that of the first one they have is negative.
    """
    before = jnp.int32(0) if layer is None else layer * len(sizes)
    wide, deep = weight.shape[-2:]
    deep_tile = min(deep, 2048)
    tile = (ROUND, deep_tile, min(wide, max(ROUND, TILE_NUMBERS // deep_tile)))
    flat = weight.reshape(-1, wide, deep)
    return gmm(x, flat, sizes, x.dtype, tile, -before.astype(jnp.int32), transpose_rhs=True, interpret=interpret)


def room_for(choices: int, count: int) -> int:
    """Tokens that an expert has room for on a CPU; the more even the choices, the fewer go through tiles."""
    share = choices / count
    return 0 if share < SCARCE else 8 * math.ceil(SPARE * share / 8)


def by_room(
    tokens: Float[Array, "N E"], expert: Int[Array, "N k"], weights: Weights, activation: str
) -> Float[Array, "N k E"]:
    """What each chosen expert makes of its token: the first tokens of every expert together, the others tile by tile."""
    choices, count = Sorted.of(expert, weights.experts), weights.experts
    total, room = expert.size, room_for(expert.size, weights.experts)

    def in_tiles() -> Array:
        return tiled(tokens, room, choices, weights, activation)[choices.place]

    if not room:
        return in_tiles()
    known = jnp.minimum(expert, count - 1)
    rank = choices.place - choices.first[known]
    slots = jnp.minimum(choices.first[:, None] + jnp.arange(room), total - 1)
    together = run_experts(tokens[choices.token[slots]], weights, activation).reshape(count * room, -1)
    fits = rank < room
    results = together[jnp.where(fits, known * room + rank, 0)]
    is_full = (choices.sizes > room).any()
    return lax.cond(is_full, lambda: jnp.where(fits[..., None], results, in_tiles()), lambda: results)


def tiled(
    tokens: Float[Array, "N E"], room: int, choices: Sorted, weights: Weights, activation: str
) -> Float[Array, "rows E"]:
    """Results by place for the tokens of each expert beyond the first `room`; elsewhere anything.

    A tile may run over the end of its expert; the next expert, whose tokens stand there, writes later.
    """
    start = choices.first + room
    tiles = (jnp.maximum(choices.sizes - room, 0) + TILE - 1) // TILE
    ends = jnp.cumsum(tiles)
    token = jnp.pad(choices.token, (0, TILE))

    def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
        tile, results = state
        expert = jnp.searchsorted(ends, tile, side="right")
        place = start[expert] + (tile - (ends[expert] - tiles[expert])) * TILE
        own = Weights(*(lax.dynamic_slice_in_dim(weight, expert, 1) for weight in weights[:3]))
        inputs = tokens[lax.dynamic_slice_in_dim(token, place, TILE)]
        made = in_columns(inputs[None], own, activation)[0]
        return tile + 1, lax.dynamic_update_slice_in_dim(results, made, place, 0)

    blank = jnp.zeros((len(token), tokens.shape[1]), tokens.dtype)
    return lax.while_loop(lambda state: state[0] < ends[-1], body, (jnp.int32(0), blank))[1]


def run_experts(x: Float[Array, "X C E"], weights: Weights, activation: str) -> Float[Array, "X C E"]:
    """Every expert on its own tokens."""
    if x.dtype.itemsize < 4:  # a CPU has no products of them, and widens all matrices together faster than one by one
        return in_columns(x, weights, activation)

    def run(own: tuple[Array, Array, Array, Array]) -> Array:
        x, gate, up, down = own
        return product(ACTIVATIONS[activation](product(x, gate)) * product(x, up), down)

    return lax.map(run, (x, *weights[:3]))


def in_columns(x: Float[Array, "X C E"], weights: Weights, activation: str) -> Float[Array, "X C E"]:
    """The same for all experts together, with the tokens as columns: few are faster with the weights on the left."""

    def times(weight: Array, columns: Array) -> Array:
        made = jnp.einsum(
            "xoi,xic->xoc", weight, columns, precision=matmul_precision(x), preferred_element_type=jnp.float32
        )
        return made.astype(x.dtype)

    columns = jnp.swapaxes(x, 1, 2)
    hidden = ACTIVATIONS[activation](times(weights.gate, columns)) * times(weights.up, columns)
    return jnp.swapaxes(times(weights.down, hidden), 1, 2)
