"""Keys and values of tokens that do not run again."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from jaxsink.nn.config import ModelConfig
from jaxsink.nn.display import describe
from jaxsink.nn.softmax import heads_first


class Cache(NamedTuple):
    """Keys and values of every layer, written at the positions of the tokens that run.

    They lie heads first, as products read them: one array for stacked layers. Unrolled ones have an array each, so that a
    step copies none of them.
    """

    k: Float[Array, "L B K S D"] | tuple[Float[Array, "B K S D"], ...]
    v: Float[Array, "L B K S D"] | tuple[Float[Array, "B K S D"], ...]

    @classmethod
    def zeros(cls, config: ModelConfig, batch: int, length: int, dtype: DTypeLike, unrolled: bool) -> Cache:
        shape = (batch, config.kv_heads, length, config.head_dim)

        def empty() -> Array | tuple[Array, ...]:
            if unrolled:
                return tuple(jnp.zeros(shape, dtype) for _ in range(config.layers))
            return jnp.zeros((config.layers, *shape), dtype)

        return cls(empty(), empty())

    @property
    def length(self) -> int:
        return jax.tree.leaves(self.k)[0].shape[-2]

    def slot(
        self,
        layer: Int[Array, ""] | int,
        start: Int[Array, ""] | Int[Array, " B"] | int,
        runs: Bool[Array, "B Q"] | None = None,
    ) -> Slot:
        """The layer's part; of unrolled layers the index is a number."""
        if isinstance(self.k, tuple) or isinstance(self.v, tuple):
            assert isinstance(layer, int)
            return Slot(self.k[layer], self.v[layer], None, start, runs)
        return Slot(self.k, self.v, jnp.asarray(layer), start, runs)

    def put(self, slot: Slot, layer: Int[Array, ""] | int) -> Cache:
        """With a slot that its layer has written into."""
        if slot.layer is not None:
            return Cache(slot.k, slot.v)
        assert isinstance(layer, int)
        k, v = ((*half[:layer], new, *half[layer + 1 :]) for half, new in ((self.k, slot.k), (self.v, slot.v)))
        return Cache(k, v)

    def __repr__(self) -> str:
        return describe(self, self._fields)


class Slot(NamedTuple):
    """Where a layer's keys and values go, and from which position on."""

    k: Float[Array, "*L B K S D"]
    v: Float[Array, "*L B K S D"]
    layer: Int[Array, ""] | None  # its index in `k` and `v`; None = they are this layer's own
    start: Int[Array, ""] | Int[Array, " B"] | int  # for all sequences, or each its own
    runs: Bool[Array, "B Q"] | None = None  # the tokens that are written; None = all

    def write(
        self, k: Float[Array, "B Q K D"], v: Float[Array, "B Q K D"]
    ) -> tuple[Float[Array, "B S K D"], Float[Array, "B S K D"], Slot]:
        """(all keys, all values of the layer, the slot with those of the tokens that run in it)."""
        all_k, k = self._written(self.k, k)
        all_v, v = self._written(self.v, v)
        return k, v, self._replace(k=all_k, v=all_v)

    def _written(self, half: Array, new: Float[Array, "B Q K D"]) -> tuple[Array, Float[Array, "B S K D"]]:
        new = heads_first(new)
        if self.runs is not None or jnp.ndim(self.start) == 1:
            return self._scattered(half, new)
        if self.layer is None:
            half = lax.dynamic_update_slice(half, new, (0, 0, self.start, 0))
            return half, heads_first(half)
        half = lax.dynamic_update_slice(half, new[None], (self.layer, 0, 0, self.start, 0))
        return half, heads_first(half[self.layer])

    def _scattered(self, half: Array, new: Float[Array, "B K Q D"]) -> tuple[Array, Float[Array, "B S K D"]]:
        """Each sequence from its own position on, and only the tokens that are to be written."""
        batch, _, queries, _ = new.shape
        position = jnp.broadcast_to(jnp.asarray(self.start)[..., None] + jnp.arange(queries), (batch, queries))
        if self.runs is not None:
            position = jnp.where(self.runs, position, half.shape[-2])  # out of range: not written
        half = lax.platform_dependent(
            half, new, position, tpu=partial(put_by_product, layer=self.layer), default=partial(put, layer=self.layer)
        )
        return half, heads_first(half if self.layer is None else half[self.layer])


def put(
    half: Float[Array, "*L B K S D"],
    new: Float[Array, "B K Q D"],
    position: Int[Array, "B Q"],
    layer: Int[Array, ""] | None,
) -> Float[Array, "*L B K S D"]:
    """Row by row, in place."""
    batch, heads = new.shape[:2]
    index = (jnp.arange(batch)[:, None, None], jnp.arange(heads)[:, None], position[:, None])
    return half.at[(*(() if layer is None else (layer,)), *index)].set(new, mode="drop")


def put_by_product(
    half: Float[Array, "*L B K S D"],
    new: Float[Array, "B K Q D"],
    position: Int[Array, "B Q"],
    layer: Int[Array, ""] | None,
) -> Float[Array, "*L B K S D"]:
    """The same where scattered rows are slow: a product with ones and zeros, which is exact, moves them to their positions,
    and the layer is written as a whole."""
    old = half if layer is None else lax.dynamic_index_in_dim(half, layer, keepdims=False)
    here = position[:, :, None] == jnp.arange(old.shape[-2])
    moved = jnp.einsum("bqs,bkqd->bksd", here.astype(new.dtype), new, precision="highest")
    written = jnp.where(here.any(axis=1)[:, None, :, None], moved, old)
    return written if layer is None else lax.dynamic_update_index_in_dim(half, written, layer, 0)
