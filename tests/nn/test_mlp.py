"""An MLP gives the same in rows and in columns, and takes columns only on CPUs, at whole sizes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.configs import FAMILIES

from jaxsink.nn.linear import Linear, random_maker
from jaxsink.nn.mlp import Mlp
from jaxsink.nn.quantization import rounded


def mlp_of(family: str, **changes: int) -> Mlp:
    config = FAMILIES[family].replace(**{"width": 128, "mlp_width": 192, **changes})
    mlp = Mlp(random_maker(0, "float32", 0.5), (), config)
    for linear in (mlp.gate, mlp.up, mlp.down):
        if linear is not None and linear.bias is not None:
            linear.bias[...] = jnp.linspace(-1, 1, linear.bias[...].size)
    return mlp


@pytest.mark.parametrize(("family", "int8"), [("llada", False), ("gpt2", False), ("llada", True)])
@pytest.mark.parametrize("shape", [(1, 64), (4, 16), (5, 64), (3, 21)])
def test_rows_and_columns_give_the_same(family: str, int8: bool, shape: tuple[int, int]) -> None:
    mlp = mlp_of(family)
    assert (mlp.up.bias is None) == (family == "llada") == (mlp.gate is not None)
    for linear in (mlp.gate, mlp.up, mlp.down) if int8 else ():
        assert linear is not None
        linear.weight, linear.scale = map(nnx.Param, rounded(linear.weight[...]))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(*shape, 128)).astype(np.float32))
    ours = np.asarray(jax.jit(mlp)(x))
    in_rows = np.asarray(jax.jit(lambda x: mlp._apply(Linear.__call__, x))(x))
    np.testing.assert_allclose(ours, in_rows, rtol=0, atol=1e-6 * np.abs(in_rows).max())


def test_gradients_are_the_same() -> None:
    mlp = mlp_of("llada")
    x = jnp.asarray(np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32))

    def loss(mlp: Mlp, x: jax.Array, whole: bool) -> jax.Array:
        return jnp.square(mlp(x) if whole else mlp._apply(Linear.__call__, x)).sum()

    ours, theirs = (jax.jit(jax.grad(loss, (0, 1)), static_argnums=2)(mlp, x, whole) for whole in (True, False))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * float(jnp.abs(other).max()))


@pytest.mark.parametrize(
    ("rows", "changes", "dtype", "platform", "in_columns"),
    [
        (64, {}, "float32", "cpu", True),
        (320, {}, "float32", "cpu", True),
        (65, {}, "float32", "cpu", False),
        (32, {}, "float32", "cpu", False),
        (64, {"mlp_width": 96}, "float32", "cpu", False),
        (64, {"width": 96}, "float32", "cpu", False),
        (64, {}, "bfloat16", "cpu", False),
        (64, {}, "float32", "tpu", False),
    ],
)
def test_columns_are_for_cpus_and_whole_sizes(
    rows: int, changes: dict[str, int], dtype: str, platform: str, in_columns: bool
) -> None:
    mlp = jax.tree.map(lambda x: x.astype(dtype), mlp_of("llada", **changes))
    x = jnp.zeros((rows, mlp.config.width), dtype)
    text = jax.jit(mlp).trace(x).lower(lowering_platforms=(platform,)).as_text()
    assert text.count("dot_general") == 3
    assert text.count("optimization_barrier") == (3 if in_columns else 0)
