"""Weights of the layers as whole numbers of 8 bits, with a scale per output: half the memory of bfloat16.

    model = jaxsink.load("llada", dtype="int8")       # activations, embedding and head stay bfloat16

Only the weights are rounded, each row of a matrix to 255 steps between plus and minus its largest; products run in the type
of the activations, so nothing else of the model changes. What it is for: on TPU more rows fit beside the weights, and
fewer chips must share them (docs/tpu-performance.md).
"""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Float32, Int8, PyTree

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig

INT8 = "int8"
BESIDE = "bfloat16"  # the type of everything that is not rounded, if a checkpoint is loaded as int8
STEPS = 127
ROUNDED = {"attention": ("q", "k", "v", "o"), "mlp": ("gate", "up", "down")}


def check_int8(config: ModelConfig) -> None:
    if config.experts is not None:
        raise JaxsinkError("int8 weights are not made for mixtures of experts; choose bfloat16.")


def type_name(dtype: DTypeLike) -> str:
    """The name of a type that weights can have: floating-point, or INT8."""
    try:
        name = jnp.dtype(dtype).name
        is_known = name == INT8 or jnp.issubdtype(dtype, jnp.floating)
    except TypeError:
        name, is_known = str(dtype), False
    if not is_known:
        raise JaxsinkError(f"weights cannot have the type {name}; choose float32, bfloat16, float16 or int8.")
    return name


def is_rounded(name: str) -> bool:
    """Is the parameter of this name, such as "layers.mlp.up.weight", held in 8 bits?"""
    part = name.split(".")
    return len(part) >= 4 and part[0] == "layers" and part[-1] == "weight" and part[-2] in ROUNDED.get(part[-3], ())


def scale_name(name: str) -> str:
    return name.removesuffix("weight") + "scale"


def rounded(weight: Float[Array, "*lead O I"]) -> tuple[Int8[Array, "*lead O I"], Float32[Array, "*lead O"]]:
    """(whole numbers, scales); whole number times scale is the weight, to half a scale."""
    exact = weight.astype(jnp.float32)
    scale = jnp.abs(exact).max(axis=-1) / STEPS
    whole = jnp.round(exact / jnp.where(scale > 0, scale, 1.0)[..., None])
    return whole.astype(jnp.int8), scale


@runtime_checkable
class HasLayers(Protocol):
    """As much as rounding needs to know of a model."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def layers(self) -> nnx.Pytree: ...


OfModel = TypeVar("OfModel", bound=HasLayers)


def quantized(model: OfModel) -> OfModel:
    """The same model with 8-bit weights in its layers; everything else as it is."""
    if weights_dtype(model) == INT8:
        return model
    check_int8(model.config)
    other = jax.tree.map(lambda x: x, model)
    for layer in other.layers if isinstance(other.layers, nnx.List) else [other.layers]:
        for part, names in ROUNDED.items():
            for linear in (getattr(getattr(layer, part), name) for name in names):
                if linear is not None:
                    whole, scale = rounded(linear.weight[...])
                    linear.weight, linear.scale = nnx.Param(whole), nnx.Param(scale)
    return other


def weights_dtype(model: PyTree) -> str:
    """The name under which `load` gives such a model: "int8" if its layers are rounded, else the type of all weights."""
    if any(leaf.dtype == INT8 for leaf in jax.tree.leaves(model)):
        return INT8
    return jnp.dtype(model.dtype).name
