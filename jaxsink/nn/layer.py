"""The parts of the transformer: linear, norm, rotary positions, attention, mlp, experts, and the layer they make.

Parameters keep PyTorch's [out, in] layout, stacked over layers ([L, out, in]) unless the model is unrolled. Modules are
pytrees, so `lax.scan` over a stacked `Layer` hands each step a `Layer` without the leading axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax

from jaxsink.nn.attention import exact
from jaxsink.nn.config import ModelConfig, RopeScaling


@runtime_checkable
class Maker(Protocol):
    """Makes the start value of a parameter: random for matrices, ones for norms, zeros for biases."""

    def __call__(self, shape: tuple[int, ...], kind: str) -> Array: ...


def random_maker(seed: int, dtype: Any, scale: float = 0.02) -> Maker:
    """Normal matrices of the given standard deviation; every parameter gets its own stream."""
    keys = iter(range(1 << 30))

    def make(shape: tuple[int, ...], kind: str) -> Array:
        if kind == "matrix":
            key = jax.random.fold_in(jax.random.key(seed), next(keys))
            return (scale * jax.random.normal(key, shape, jnp.float32)).astype(dtype)
        return (jnp.ones if kind == "ones" else jnp.zeros)(shape, dtype)

    return make


def product(x: Array, weight: Array, dtype: Any = None) -> Array:
    """x Wᵀ for W [out, in] or [heads, out, in]; a true float32 product for float32, on every device.

    Of narrower numbers a CPU has only products with float32 results: asked for others, XLA widens the weights first.
    """
    axes = "...i,oi->...o" if weight.ndim == 2 else "...i,hoi->...ho"

    def multiplied(x: Array, weight: Array, dtype: Any = dtype) -> Array:
        return jnp.einsum(axes, x, weight, precision=exact(x), preferred_element_type=dtype)

    def then_rounded(x: Array, weight: Array) -> Array:
        return multiplied(x, weight, jnp.float32).astype(x.dtype)

    if dtype is None and x.dtype.itemsize < 4:
        return lax.platform_dependent(x, weight, cpu=then_rounded, default=multiplied)
    return multiplied(x, weight)


class Linear(nnx.Module):
    """y = x Wᵀ + b, W [out, in]; or W [heads, out, in], which gives y [..., heads, out].

    `scale` f32[out] belongs to weights of whole numbers (see jaxsink.nn.quantization), which it turns into the true ones.
    """

    def __init__(self, make: Maker, lead: tuple[int, ...], out: int, into: int, bias: bool = False):
        self.weight = nnx.Param(make((*lead, out, into), "matrix"))
        self.bias = nnx.Param(make((*lead, out), "zeros")) if bias else None
        self.scale: nnx.Param | None = nnx.data(None)

    def __call__(self, x: Array) -> Array:
        weight = self.weight[...]
        if self.scale is None:
            y = product(x, weight)
        else:
            y = (product(x, weight.astype(x.dtype), jnp.float32) * self.scale[...]).astype(x.dtype)
        return y if self.bias is None else y + self.bias[...]

    def on_columns(self, x: Array) -> Array:
        """The same for float32 x [in, N], as [out, N]; the barrier keeps XLA from turning the product around."""
        y = jnp.einsum("oi,in->on", self.weight[...].astype(x.dtype), x, precision=exact(x))
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
    """RMSNorm or LayerNorm; statistics in float32, rounded to the activation's type before the weight."""

    def __init__(self, make: Maker, lead: tuple[int, ...], size: int, config: ModelConfig, kind: str | None = None):
        self.centred = (kind or config.norm) == "layer"
        self.eps = config.norm_eps
        self.weight = nnx.Param(make((*lead, size), "ones"))
        self.bias = nnx.Param(make((*lead, size), "zeros")) if self.centred else None

    def __call__(self, x: Array) -> Array:
        y = x.astype(jnp.float32)
        if self.centred:
            y = y - y.mean(axis=-1, keepdims=True)
        y = y * lax.rsqrt(jnp.square(y).mean(axis=-1, keepdims=True) + self.eps)
        y = self.weight[...] * y.astype(x.dtype)
        return y if self.bias is None else y + self.bias[...]


def rope_frequencies(config: ModelConfig) -> tuple[np.ndarray, float]:
    """(f32[D/2] angle per position, factor on cos and sin), computed on the host as PyTorch does."""
    exponent = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    frequency = (1.0 / np.power(np.float32(config.rope_theta), exponent)).astype(np.float32)
    scaling = config.rope_scaling
    if scaling is None:
        return frequency, 1.0
    if scaling.kind == "linear":
        return (frequency / np.float32(scaling.factor)).astype(np.float32), 1.0
    if scaling.kind == "llama3":
        return _llama3(frequency, scaling), 1.0
    return _yarn(frequency, scaling, config)


def _llama3(frequency: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Slow waves are stretched by the factor, fast ones kept, those between blended."""
    wavelength = 2 * math.pi / frequency
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = (scaling.original_length / wavelength - low) / (high - low)
    blended = (1 - blend) * frequency / scaling.factor + blend * frequency
    stretched = np.where(wavelength > scaling.original_length / low, frequency / scaling.factor, frequency)
    between = (wavelength >= scaling.original_length / high) & (wavelength <= scaling.original_length / low)
    return np.where(between, blended, stretched).astype(np.float32)


def _yarn(frequency: np.ndarray, scaling: RopeScaling, config: ModelConfig) -> tuple[np.ndarray, float]:
    """Dimensions that turn often within the original length are kept, those that hardly turn are stretched."""

    def dimension(turns: float) -> float:
        return (
            config.head_dim
            * math.log(scaling.original_length / (turns * 2 * math.pi))
            / (2 * math.log(config.rope_theta))
        )

    low = max(math.floor(dimension(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension(scaling.beta_slow)), config.head_dim - 1)
    ramp = np.clip((np.arange(len(frequency), dtype=np.float32) - low) / max(high - low, 1e-3), 0, 1)
    mixed = frequency / scaling.factor * ramp + frequency * (1 - ramp)
    factor = scaling.attention_factor
    return mixed.astype(np.float32), 0.1 * math.log(scaling.factor) + 1.0 if factor is None else factor


def rope_table(config: ModelConfig, positions: Array) -> tuple[Array, Array]:
    """cos, sin f32[B,Q,1,D/2] for positions i32[B,Q]."""
    frequency, factor = rope_frequencies(config)
    angle = positions.astype(jnp.float32)[..., None, None] * frequency
    return jnp.cos(angle) * factor, jnp.sin(angle) * factor


def rotate(x: Array, table: tuple[Array, Array]) -> Array:
    """Half rotation of [B,Q,heads,D] in float32: pairs are (i, i + D/2)."""
    cos, sin = table
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


class Attention(nnx.Module):
    def __init__(self, make: Maker, lead: tuple[int, ...], config: ModelConfig):
        self.config = config
        size = config.head_dim
        self.q = Linear(make, lead, config.heads * size, config.width, config.qkv_bias)
        self.k = Linear(make, lead, config.kv_heads * size, config.width, config.qkv_bias)
        self.v = Linear(make, lead, config.kv_heads * size, config.width, config.qkv_bias)
        self.o = Linear(make, lead, config.width, config.heads * size, config.out_bias)
        self.q_norm = Norm(make, lead, size, config, "rms") if config.qk_norm else None
        self.k_norm = Norm(make, lead, size, config, "rms") if config.qk_norm else None

    def project(self, x: Array, table: tuple[Array, Array] | None) -> tuple[Array, Array, Array]:
        """q [B,Q,H,D], k and v [B,Q,K,D] of normed activations [B,Q,E], rotated."""
        batch, queries, _ = x.shape

        def heads(y: Array, norm: Norm | None) -> Array:
            y = y.reshape(batch, queries, -1, self.config.head_dim)
            return y if norm is None else norm(y)

        q, k, v = heads(self.q(x), self.q_norm), heads(self.k(x), self.k_norm), heads(self.v(x), None)
        return (q, k, v) if table is None else (rotate(q, table), rotate(k, table), v)


def activate(kind: str, x: Array) -> Array:
    functions: dict[str, Callable[[Array], Array]] = {
        "silu": jax.nn.silu,
        "gelu": lambda y: jax.nn.gelu(y, approximate=False),
        "gelu_tanh": lambda y: jax.nn.gelu(y, approximate=True),
    }
    return functions[kind](x)


WHOLE = 64  # an x86 CPU's products sum in the same order for all sizes that are multiples of this


class Mlp(nnx.Module):
    """Gated (down(act(gate x) * up x)) or plain (down(act(up x))).

    On a CPU, float32 activations go through as columns: products are faster with weights on the left, and between these
    nothing need be turned around (4 % of a step of 12 x 768 at S = 256). Only where that changes no bit, so that results
    do not depend on the size of a batch.
    """

    def __init__(self, make: Maker, lead: tuple[int, ...], config: ModelConfig):
        self.config = config
        wide, width, bias = config.mlp_width, config.width, config.mlp_bias
        self.gate = Linear(make, lead, wide, width, bias) if config.mlp == "gated" else None
        self.up = Linear(make, lead, wide, width, bias)
        self.down = Linear(make, lead, width, wide, bias)

    def __call__(self, x: Array) -> Array:
        rows = math.prod(x.shape[:-1])

        def as_rows(x: Array) -> Array:
            return self._apply(Linear.__call__, x)

        def as_columns(x: Array) -> Array:
            return self._apply(Linear.on_columns, x.reshape(rows, -1).T).T.reshape(x.shape)

        if x.dtype == jnp.float32 and not any(n % WHOLE for n in (rows, self.config.width, self.config.mlp_width)):
            return lax.platform_dependent(x, cpu=as_columns, default=as_rows)
        return as_rows(x)

    def _apply(self, linear: Callable[[Linear, Array], Array], x: Array) -> Array:
        up = linear(self.up, x)
        if self.gate is None:
            return linear(self.down, activate(self.config.activation, up))
        return linear(self.down, activate(self.config.activation, linear(self.gate, x)) * up)


class MixtureOfExperts(nnx.Module):
    """Each token goes through its best experts only: tokens sorted by expert, one ragged product per matrix."""

    def __init__(self, make: Maker, lead: tuple[int, ...], config: ModelConfig):
        assert config.experts is not None
        self.config = config
        count, wide, width = config.experts.count, config.mlp_width, config.width
        self.router = Linear(make, lead, count, width)
        self.gate = Linear(make, (*lead, count), wide, width)
        self.up = Linear(make, (*lead, count), wide, width)
        self.down = Linear(make, (*lead, count), width, wide)

    def __call__(self, x: Array) -> Array:
        experts = self.config.experts
        assert experts is not None
        tokens = x.reshape(-1, x.shape[-1])
        share = jax.nn.softmax(self.router(tokens).astype(jnp.float32), axis=-1)
        share, chosen = lax.top_k(share, experts.per_token)  # [N,k]
        if experts.renormalise:
            share = share / share.sum(axis=-1, keepdims=True)

        order = jnp.argsort(chosen.reshape(-1), stable=True)
        token_of = order // experts.per_token
        sizes = jnp.bincount(chosen.reshape(-1), length=experts.count)
        inputs = tokens[token_of]
        hidden = activate(self.config.activation, ragged(inputs, self.gate, sizes)) * ragged(inputs, self.up, sizes)
        out = ragged(hidden, self.down, sizes) * share.reshape(-1)[order].astype(x.dtype)[:, None]
        return jnp.zeros_like(tokens).at[token_of].add(out).reshape(x.shape)


def ragged(x: Array, experts: Linear, sizes: Array) -> Array:
    """[N,in] sorted by expert x [X,out,in] -> [N,out]."""
    dims = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(([1], [2]), ([], [])), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
    )
    return lax.ragged_dot_general(x, experts.weight[...], sizes.astype(jnp.int32), dims, precision=exact(x))


class Layer(nnx.Module):
    """Pre-norm transformer layer: x + attention(norm x), then x + mlp(norm x)."""

    def __init__(self, make: Maker, lead: tuple[int, ...], config: ModelConfig):
        self.attention_norm = Norm(make, lead, config.width, config)
        self.attention = Attention(make, lead, config)
        self.mlp_norm = Norm(make, lead, config.width, config)
        self.mlp = (MixtureOfExperts if config.experts else Mlp)(make, lead, config)

    def by_head(self) -> Layer:
        """The same with the rows of q, k and v in heads.

        Said of stacked layers before a scan: if heads were told apart after a layer's slice, the TPU compiler would copy the
        slice before it multiplies by it (10 % of a step by its estimate); so it reads it in place. Other devices gain
        nothing, and would round differently.
        """
        other = jax.tree.map(lambda x: x, self)
        attention, size = other.attention, self.attention.config.head_dim
        attention.q, attention.k, attention.v = (x.by_head(size) for x in (attention.q, attention.k, attention.v))
        return other

    def finish(self, x: Array, mixed: Array) -> Array:
        """The residual stream [B,Q,E] after this layer, from what entered it and the attention's output [B,Q,H,D]."""
        x = x + self.attention.o(mixed.reshape(*x.shape[:2], -1))
        return x + self.mlp(self.mlp_norm(x))
