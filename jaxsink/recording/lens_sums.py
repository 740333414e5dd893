"""What the logit lens knows of the vocabulary so far: sums and the best tokens, which grow from block to block.

A block has tokens of every part of the vocabulary that a mesh cuts the head into, and each part has sums of its own, so
that devices meet only once, when all blocks are done. Among equal logits the lowest token is the best one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh
from jaxtyping import Bool, Float32, Int

from jaxsink.nn.sharding import in_parts, keep_layout, on_tpu

Best = Callable[[Float32[Array, "*axes N"], int], tuple[Float32[Array, "*axes K"], Int[Array, "*axes K"]]]
"""The largest of some values, and where they are; the first among equals."""


class Aim(NamedTuple):
    """The tokens whose rank is wanted, and their logits."""

    token: Int[Array, "B P"]
    logit: Float32[Array, "L B P"]


class Block(NamedTuple):
    """Some tokens of every part: of all layers, and of the last one alone."""

    logits: Float32[Array, "L B P parts N"]
    last: Float32[Array, "B P parts N"]
    token: Int[Array, "parts N"]
    new: Bool[Array, " N"]  # False = a block before had it


class Sums(NamedTuple):
    """What is known of some queries after some blocks, part by part."""

    largest: Float32[Array, "L B P parts"]
    total: Float32[Array, "L B P parts"]  # Σ exp(logit - largest) …
    mean: Float32[Array, "L B P parts"]  # … and the same weights times the logits
    best: Float32[Array, "L B P parts top"]
    token: Int[Array, "L B P parts top"]
    above: Int[Array, "L B P parts"]  # tokens before the wanted one
    last_largest: Float32[Array, "1 B P parts"]
    last_total: Float32[Array, "1 B P parts"]
    apart: Float32[Array, "L B P parts"]  # Σ exp(last logit - last_largest) (last logit - logit)

    @classmethod
    def empty(cls, shape: tuple[int, ...], top: int) -> Sums:
        """shape: (layers, batch, queries, parts)"""
        low, zero = jnp.finfo(jnp.float32).min, jnp.zeros(shape)
        best = jnp.full((*shape, top), -jnp.inf)
        number = jnp.zeros(shape, jnp.int32)
        token = jnp.zeros(best.shape, jnp.int32)
        return cls(zero + low, zero, zero, best, token, number, zero[:1] + low, zero[:1], zero)

    def spread(self, mesh: Mesh | None) -> Sums:
        """Each part lies where the weights of its tokens are."""
        return self if mesh is None else keep_layout(self, in_parts(mesh, self.largest.shape[-1]), 1, 3)

    def with_block(self, block: Block, aim: Aim | None, best_of: Best) -> Sums:
        logits, last, new = block.logits, block.last[None], block.new
        largest = jnp.maximum(self.largest, jnp.where(new, logits, -jnp.inf).max(axis=-1))
        weight = jnp.where(new, jnp.exp(logits - largest[..., None]), 0.0)
        shrink = jnp.exp(self.largest - largest)
        last_largest = jnp.maximum(self.last_largest, jnp.where(new, last, -jnp.inf).max(axis=-1))
        last_weight = jnp.where(new, jnp.exp(last - last_largest[..., None]), 0.0)
        last_shrink = jnp.exp(self.last_largest - last_largest)
        found, place = best_of(jnp.where(new, logits, -jnp.inf), self.best.shape[-1])
        best, token = best_tokens(
            jnp.concatenate([self.best, found], axis=-1),
            jnp.concatenate([self.token, block.token[:, :1] + place], axis=-1),
            self.best.shape[-1],
            best_of,
        )
        return Sums(
            largest=largest,
            total=self.total * shrink + weight.sum(axis=-1),
            mean=self.mean * shrink + (weight * logits).sum(axis=-1),
            best=best,
            token=token,
            above=self.above if aim is None else self.above + before(block, aim),
            last_largest=last_largest,
            last_total=self.last_total * last_shrink + last_weight.sum(axis=-1),
            apart=self.apart * last_shrink + (last_weight * (last - logits)).sum(axis=-1),
        )

    def kept(self, rank: bool, with_final: bool, best_of: Best) -> dict[str, Array]:
        """What a record holds, of all parts together."""
        largest, last_largest = (x.max(axis=-1, keepdims=True) for x in (self.largest, self.last_largest))
        share, last_share = jnp.exp(self.largest - largest), jnp.exp(self.last_largest - last_largest)
        total, mean = (self.total * share).sum(axis=-1), (self.mean * share).sum(axis=-1)
        last_total, apart = (self.last_total * last_share).sum(axis=-1), (self.apart * last_share).sum(axis=-1)
        queries, top = self.best.shape[:-2], self.best.shape[-1]
        best, token = best_tokens(self.best.reshape(*queries, -1), self.token.reshape(*queries, -1), top, best_of)
        log_total = jnp.log(total)
        log_sum = largest[..., 0] + log_total
        last_sum = log_sum[-1] if with_final else last_largest[..., 0] + jnp.log(last_total)
        kept = {
            "token": token,
            "log_prob": (best - largest) - log_total[..., None],
            "entropy": log_sum - mean / total,
            "kl": apart / last_total + (log_sum - last_sum),
        }
        return kept | {"rank": self.above.sum(axis=-1)} if rank else kept


def before(block: Block, aim: Aim) -> Int[Array, "L B P parts"]:
    """How many tokens of the block are better than the wanted ones."""
    own, logit = aim.token[..., None, None], aim.logit[..., None, None]
    better = (block.logits > logit) | ((block.logits == logit) & (block.token < own))
    return (better & block.new & (block.token != own)).sum(axis=-1)


def best_tokens(
    logits: Float32[Array, "*axes N"], token: Int[Array, "*axes N"], count: int, best_of: Best
) -> tuple[Float32[Array, "*axes K"], Int[Array, "*axes K"]]:
    """The largest of some logits, and their tokens; the first among equals."""
    best, place = best_of(logits, count)
    return best, jnp.take_along_axis(token, place, axis=-1)


def best_on(mesh: Mesh | None) -> Best:
    """The faster way to the same. A TPU would sort, and a mesh would gather all logits on every device."""
    return by_maxima if on_tpu(mesh) or (mesh is not None and mesh.size > 1) else by_top_k


def by_top_k(values: Float32[Array, "*axes N"], count: int) -> tuple[Float32[Array, "*axes K"], Int[Array, "*axes K"]]:
    best, at = lax.top_k(values, min(count, values.shape[-1]))
    return best, at


def by_maxima(values: Float32[Array, "*axes N"], count: int) -> tuple[Float32[Array, "*axes K"], Int[Array, "*axes K"]]:
    """One maximum after the other, of a few."""
    left, place = values, jnp.arange(values.shape[-1])
    found = []
    for _ in range(min(count, values.shape[-1])):
        at = jnp.argmax(left, axis=-1)
        found.append((left.max(axis=-1), at))
        left = jnp.where(place == at[..., None], -jnp.inf, left)
    best, at = (jnp.stack(parts, axis=-1) for parts in zip(*found, strict=True))
    return best, at
