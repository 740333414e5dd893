"""The end of a pass: recorders of the taps that belong to no layer, and those that go on after the last layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Float32, Int, PyTree

from jaxsink.nn.config import ModelConfig
from jaxsink.nn.context import LayerContext, select
from jaxsink.nn.edited import edited, has_edits
from jaxsink.nn.linear import matmul_precision
from jaxsink.nn.recorder import OF_PASS, Recorder, look, only_arrays
from jaxsink.nn.sharding import MODEL
from jaxsink.nn.taps import VectorTap

if TYPE_CHECKING:
    from jaxsink.nn.transformer import Transformer

Records = tuple[PyTree[Array], ...]  # one per recorder


class TunedLens(NamedTuple):
    """What a lens adds to the residual stream after a layer before it reads it: `change` x + `bias`.

    Attributes:
        change: a matrix per layer
        bias: a vector per layer

    Examples:
        >>> layers, width = model.config.layers, model.config.width
        >>> nothing = jaxsink.record.TunedLens(jnp.zeros((layers, width, width)), jnp.zeros((layers, width)))
        >>> jaxsink.forward(model, tokens, record=jaxsink.record.lens(1, tuned=nothing)).record["token"].shape
        (4, 1, 19, 1)
        >>> nothing.moved(jnp.ones((layers, 1, 2, width)), None).mean().item()
        1.0
    """

    change: Float[Array, "L E E"]  # [out, in]
    bias: Float[Array, "L E"]

    def moved(self, residual: Float[Array, "L B P E"], layers: tuple[int, ...] | None) -> Float[Array, "L B P E"]:
        """layers: those that the residual streams are of; None = all."""
        change, bias = (x if layers is None else x[jnp.array(layers)] for x in self)
        precision = matmul_precision(residual)
        added = jnp.einsum("lbpe,lfe->lbpf", residual, change.astype(residual.dtype), precision=precision)
        return residual + added + bias[:, None, None].astype(residual.dtype)


class PassEnd(NamedTuple):
    """What is known after the last layer."""

    model: Transformer
    context: LayerContext
    first: Float[Array, "B Q E"]  # the residual stream before the first layer …
    last: Float[Array, "B Q E"]  # … and after the last one
    norm: Callable[[Float[Array, "*lead E"]], Float[Array, "*lead E"]]  # the final norm

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def final(self, index: Int[Array, "B W"] | None = None) -> Float[Array, "B W E"]:
        """What the head reads, of these queries."""
        return self.normed(select(self.last, index), index)

    def normed(self, residual: Float[Array, "B W E"], index: Int[Array, "B W"] | None) -> Float[Array, "B W E"]:
        """What it would read of this residual stream: after the final norm, and its edits."""
        return edited(self.context, "final_norm", self.norm(residual), outputs=index)

    def all_normed(self, residual: Float[Array, "L B P E"], index: Int[Array, "B P"] | None) -> Float[Array, "L B P E"]:
        """The same of several layers."""
        if not has_edits(self.context, "final_norm"):
            return self.norm(residual)
        return jax.vmap(partial(self.normed, index=index))(residual)

    @property
    def head_parts(self) -> int:
        """How many parts of the vocabulary lie on devices of their own."""
        mesh = self.context.execution.mesh
        return 1 if mesh is None else math.gcd(self.config.vocab, mesh.shape[MODEL])

    def some_logits(
        self, hidden: Float[Array, "*lead E"], first: Int[Array, ""] | int, count: int
    ) -> Float32[Array, "*lead P N"]:
        """Of `count` tokens from `first` on in each part."""
        return self.model.some_logits(hidden, first, count, self.head_parts)

    def logits_of(self, hidden: Float[Array, "*L B P E"], token: Int[Array, "B P"]) -> Float32[Array, "*L B P"]:
        """Of one token per query."""
        weight, bias = self.model.head_weights
        precision = matmul_precision(hidden)
        logits = jnp.einsum(
            "...bpe,bpe->...bp", hidden, weight[token], precision=precision, preferred_element_type=jnp.float32
        )
        return logits if bias is None else logits + bias[token]


def in_layers(recorders: tuple[Recorder, ...]) -> tuple[Recorder, ...]:
    """Those that the layers serve."""
    return tuple(recorder for recorder in recorders if recorder.tap not in OF_PASS)


def need_the_end(recorders: tuple[Recorder, ...]) -> bool:
    """Do they look at all queries after the last layer?"""
    return any(recorder.tap == "final_norm" or recorder.ending is not None for recorder in recorders)


def of_whole_pass(recorders: tuple[Recorder, ...], of_layers: Records, end: PassEnd) -> Records:
    """What every recorder read, from what those of `in_layers` did."""
    known = iter(of_layers)

    def finished(recorder: Recorder) -> PyTree[Array]:
        if recorder.tap in OF_PASS:
            return read(recorder, end)
        value = next(known)
        if recorder.ending is None:
            return value
        value = only_arrays(recorder, recorder.ending(value, end, recorder.layers))
        return jax.vmap(lambda one: recorder.finish(one, end.context.keys))(value) if recorder.reductions else value

    return tuple(map(finished, recorders))


def read(recorder: Recorder, end: PassEnd) -> PyTree[Array]:
    """A tap of the pass, with a leading axis of one layer."""
    vectors = end.first if recorder.tap == "embedding" else end.final()
    tap = VectorTap(replace(end.context, layer=jnp.asarray(0)), vectors)
    return jax.tree.map(lambda x: x[None], recorder.finish(look(recorder, tap), tap))
