"""Matrices and norms, and how their parameters begin.

Parameters keep PyTorch's [out, in] layout, stacked over layers ([L, out, in]) unless the model is unrolled. Modules are
pytrees, so `lax.scan` over a stacked module hands each step a module without the leading axis.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Float, Num

from jaxsink.nn.config import ModelConfig

# (shape, kind) -> the start value of a parameter: random for a "matrix", "ones" for norms, "zeros" for biases, and "exact"
# for zeros that are float32 in every model.
Maker = Callable[[tuple[int, ...], str], Array]


def random_maker(seed: int, dtype: DTypeLike, scale: float = 0.02) -> Maker:
    """Normal matrices of the given standard deviation; every parameter gets its own stream."""
    keys = iter(range(1 << 30))

    def make(shape: tuple[int, ...], kind: str) -> Array:
        if kind == "matrix":
            key = jax.random.fold_in(jax.random.key(seed), next(keys))
            return (scale * jax.random.normal(key, shape, jnp.float32)).astype(dtype)
        return (jnp.ones if kind == "ones" else jnp.zeros)(shape, jnp.float32 if kind == "exact" else dtype)

    return make


def matmul_precision(x: Array) -> str | None:
    """The precision of products: true float32 for float32 on every device, the device's native one for narrower types."""
    return "highest" if x.dtype == jnp.float32 else None


def product(
    x: Float[Array, "*lead I"], weight: Num[Array, "*out I"], dtype: DTypeLike | None = None
) -> Float[Array, ...]:
    """x Wᵀ for W [out, in] or [heads, out, in]; a true float32 product for float32, on every device.

    Of narrower numbers a CPU has only products with float32 results: asked for others, XLA widens the weights first.
    """
    axes = "...i,oi->...o" if weight.ndim == 2 else "...i,hoi->...ho"

    def multiplied(x: Array, weight: Array, dtype: DTypeLike | None = dtype) -> Array:
        return jnp.einsum(axes, x, weight, precision=matmul_precision(x), preferred_element_type=dtype)

    def then_rounded(x: Array, weight: Array) -> Array:
        return multiplied(x, weight, jnp.float32).astype(x.dtype)

    if dtype is None and x.dtype.itemsize < 4:
        return lax.platform_dependent(x, weight, cpu=then_rounded, default=multiplied)
    return multiplied(x, weight)


class Linear(nnx.Module):
    """y = x Wᵀ + b, W [out, in]; or W [heads, out, in], which gives y [..., heads, out].

    `scale` f32[out] belongs to weights of whole numbers (see nn/quantization.py), which it turns into the true ones.
    """

    def __init__(self, make: Maker, lead: tuple[int, ...], out: int, into: int, bias: bool = False):
        self.weight = nnx.Param(make((*lead, out, into), "matrix"))
        self.bias = nnx.Param(make((*lead, out), "zeros")) if bias else None
        self.scale: nnx.Param | None = nnx.data(None)

    def __call__(self, x: Float[Array, "*lead I"]) -> Float[Array, ...]:
        weight = self.weight[...]
        if self.scale is None:
            y = product(x, weight)
        else:
            y = (product(x, weight.astype(x.dtype), jnp.float32) * self.scale[...]).astype(x.dtype)
        return y if self.bias is None else y + self.bias[...]

    def matrix(self) -> Float[Array, "*lead O I"]:
        """W itself; of weights of whole numbers, the float32 numbers that they stand for."""
        weight = self.weight[...]
        return weight if self.scale is None else weight.astype(jnp.float32) * self.scale[...][..., None]

    def on_columns(self, x: Float[Array, "I N"]) -> Float[Array, "O N"]:
        """The same for float32 columns; the barrier keeps XLA from turning the product around."""
        y = jnp.einsum("oi,in->on", self.weight[...].astype(x.dtype), x, precision=matmul_precision(x))
        y = lax.optimization_barrier(y)
        y = y if self.scale is None else y * self.scale[...][:, None]
        return y if self.bias is None else y + self.bias[...][:, None]

    def by_head(self, size: int) -> Linear:
        """The same with [..., heads, size, in] for [..., heads * size, in]."""
        other = jax.tree.map(lambda x: x, self)
        weight = self.weight[...]
        other.weight = nnx.Param(weight.reshape(*weight.shape[:-2], -1, size, weight.shape[-1]))
        for name in ("bias", "scale"):
            if (by_output := getattr(self, name)) is not None:
                setattr(other, name, nnx.Param(by_output[...].reshape(*by_output.shape[:-1], -1, size)))
        return other


class Norm(nnx.Module):
    """RMSNorm, or LayerNorm with or without a bias; statistics in float32, rounded to the activation's type first."""

    def __init__(self, make: Maker, lead: tuple[int, ...], size: int, config: ModelConfig, kind: str | None = None):
        kind = kind or config.norm
        self.centred = kind in ("layer", "layer_weight")
        self.eps = config.norm_eps
        self.weight = nnx.Param(make((*lead, size), "ones"))
        self.bias = nnx.Param(make((*lead, size), "zeros")) if kind == "layer" else None

    def __call__(self, x: Float[Array, "*lead E"]) -> Float[Array, "*lead E"]:
        y = x.astype(jnp.float32)
        if self.centred:
            y = y - y.mean(axis=-1, keepdims=True)
        y = y * lax.rsqrt(jnp.square(y).mean(axis=-1, keepdims=True) + self.eps)
        y = self.weight[...] * y.astype(x.dtype)
        return y if self.bias is None else y + self.bias[...]
