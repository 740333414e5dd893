"""A mixture of experts: who goes where, and how experts lie on a mesh; the products are in nn/expert_products.py.

Each token goes through its best experts only, and what they give is added up in float32, in the order of their scores.
Nothing is dropped however unevenly tokens choose, and a token's result does not depend on the others. On a mesh each device
has some of the experts, gives what these add to all tokens, and the sum goes to all devices; left to the compiler, every
device would gather all experts first.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Bool, Float, Float32, Int

from jaxsink.nn.config import Experts, ModelConfig
from jaxsink.nn.expert_products import Routes, Weights, mixed
from jaxsink.nn.linear import Linear, Maker, product
from jaxsink.nn.mlp import Mlp
from jaxsink.nn.sharding import DATA, MODEL, in_parts


class MixtureOfExperts(nnx.Module):
    """The router, its experts, and beside them perhaps one that all tokens go through."""

    def __init__(self, make: Maker, lead: tuple[int, ...], config: ModelConfig):
        assert config.experts is not None
        self.config = config
        count, wide, width = config.experts.count, config.mlp_width, config.width
        self.router = Linear(make, lead, count, width)
        self.gate = Linear(make, (*lead, count), wide, width)
        self.up = Linear(make, (*lead, count), wide, width)
        self.down = Linear(make, (*lead, count), width, wide)
        self.stack: Weights | None = nnx.data(None)  # of which these are one layer's; see `LayerStack`
        self.bias = nnx.Param(make((*lead, count), "exact")) if config.experts.bias else None
        shared = config.experts.shared_width
        self.shared = None if shared is None else Mlp(make, lead, config.replace(experts=None, **_plain(shared)))

    def __call__(self, x: Float[Array, "*lead E"], mesh: Mesh | None = None) -> Float[Array, "*lead E"]:
        """mesh: where the weights lie; None = on one device."""
        experts = self.config.experts
        assert experts is not None
        tokens = x.reshape(-1, x.shape[-1])
        logits = product(tokens, self.router.weight[...], jnp.float32)
        routes = choose_experts(experts, logits, None if self.bias is None else self.bias[...])
        if mesh is None:
            added = mixed(tokens, routes, self.weights, self.config.activation, 1)
        else:
            added = spread(tokens, routes, self.weights, self.config.activation, mesh)
        added = jnp.reshape(added, x.shape)  # pyright: ignore[reportArgumentType]
        return added if self.shared is None else added + self.shared(x)

    @property
    def weights(self) -> Weights:
        if self.stack is not None:
            return self.stack
        return Weights(self.gate.weight[...], self.up.weight[...], self.down.weight[...])

    def take_out(self) -> Weights:
        """Leaves the module without its experts' weights, which `put_in` gives back to a layer of the stack."""
        weights, nothing = self.weights, jnp.zeros(self.router.weight.shape[0])
        for linear in (self.gate, self.up, self.down):
            linear.weight = nnx.Param(nothing)
        return weights

    def put_in(self, stack: Weights, layer: Int[Array, ""]) -> None:
        self.stack = nnx.data(stack._replace(layer=layer))


def _plain(width: int) -> dict[str, object]:
    """What turns a configuration with experts into one of a plain mlp."""
    return {"mlp_width": width, "dense_layers": 0, "dense_width": None}


def choose_experts(experts: Experts, logits: Float32[Array, "N X"], bias: Float32[Array, " X"] | None) -> Routes:
    """The best experts of each token, the surest first; among equals the one with the lowest number."""
    score = jax.nn.softmax(logits, axis=-1) if experts.scores == "softmax" else jax.nn.sigmoid(logits)
    wanted = score if bias is None else score + bias
    if experts.bias == "weight":
        score = wanted
    if experts.groups > 1:
        wanted = jnp.where(in_best_groups(experts, wanted), wanted, -jnp.inf)
    expert = best(wanted, experts.per_token)
    weight = jnp.take_along_axis(score, expert, axis=-1)
    if experts.renormalise:
        weight = weight / weight.sum(axis=-1, keepdims=True)
    return Routes(expert, weight * experts.scale)


def best(score: Float32[Array, "*n X"], count: int) -> Int[Array, "*n k"]:
    """The numbers of the highest scores, in order. For a few of them that is much less than the sort behind `lax.top_k`."""
    found, numbers = [], jnp.arange(score.shape[-1])
    for _ in range(count):
        found.append(jnp.argmax(score, axis=-1))
        score = jnp.where(numbers == found[-1][..., None], -jnp.inf, score)
    return jnp.stack(found, axis=-1)


def in_best_groups(experts: Experts, score: Float32[Array, "N X"]) -> Bool[Array, "N X"]:
    """The experts of the groups whose two best have the highest sums."""
    grouped = score.reshape(len(score), experts.groups, -1)
    two = jnp.take_along_axis(grouped, best(grouped, 2), axis=-1).sum(axis=-1)
    kept = best(two, experts.groups_kept)
    is_kept = (kept[:, :, None] == jnp.arange(experts.groups)).any(axis=1)
    return jnp.repeat(is_kept, grouped.shape[-1], axis=-1)


def spread(
    tokens: Float[Array, "N E"], routes: Routes, weights: Weights, activation: str, mesh: Mesh
) -> Float[Array, "N E"]:
    """Each device runs its own experts on the tokens of its part of the batch.

    Experts are cut along the model axis as far as it divides them (parallel/mesh.py); 5 of them lie on every device.
    """
    parts = math.gcd(weights.experts, mesh.shape[MODEL])
    each = weights.experts // parts
    by_token = PartitionSpec(DATA if len(tokens) % mesh.shape[DATA] == 0 else None)
    lead = () if weights.layer is None else (None,)
    spec = PartitionSpec(*lead, MODEL if parts > 1 else None)
    by_expert = jax.tree.map(lambda x: spec if x.ndim else PartitionSpec(), weights)

    def of_device(tokens: Array, routes: Routes, weights: Weights) -> Array:
        if parts == 1:
            return mixed(tokens, routes, weights, activation, 1)
        here = routes.of_part(lax.axis_index(MODEL) * each, each)
        return lax.psum(mixed(tokens, here, weights, activation, parts), MODEL)

    cut = in_parts(mesh, parts)
    specs = (by_token, by_token, by_expert)
    run = jax.shard_map(of_device, mesh=cut, in_specs=specs, out_specs=by_token, check_vma=False)
    return run(tokens, routes, weights)
