"""The one product of activations and weights: the same numbers for any number of rows, whichever side the weights stand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsink.layers import product

INTO = 200


def matrices(rows: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(rows, INTO)).astype(np.float32), random.normal(size=(out, INTO)).astype(np.float32)


def lowered(rows: int, out: int, dtype: str, platform: str) -> str:
    x, weight = jnp.zeros((rows, INTO), dtype), jnp.zeros((out, INTO), dtype)
    return jax.jit(product).trace(x, weight).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("out", [96, 50])
@pytest.mark.parametrize("rows", [1, 2, 8, 9, 16, 31, 32, 36, 64, 65, 200])
def test_rows_give_the_same_alone_and_among_others(rows: int, out: int) -> None:
    x, weight = matrices(256, out)
    expected = x.astype(np.float64) @ weight.T.astype(np.float64)
    ours = np.asarray(jax.jit(product)(x[:rows], weight))
    assert ours.shape == (rows, out)
    np.testing.assert_allclose(ours, expected[:rows], atol=5e-5, rtol=0)
    np.testing.assert_allclose(ours, np.asarray(jax.jit(product)(x, weight))[:rows], atol=5e-5, rtol=0)


def test_leading_axes_are_kept() -> None:
    x, weight = matrices(24, 48)
    ours = np.asarray(jax.jit(product)(x.reshape(2, 3, 4, INTO), weight))
    np.testing.assert_array_equal(ours, np.asarray(jax.jit(product)(x, weight)).reshape(2, 3, 4, 48))


def test_gradients_pass() -> None:
    x, weight = matrices(16, 48)

    def loss(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.square(product(x, weight)).sum()

    by_x, by_weight = jax.jit(jax.grad(loss, (0, 1)))(x, weight)
    exact = 2 * x.astype(np.float64) @ weight.T.astype(np.float64)
    np.testing.assert_allclose(by_x, exact @ weight, rtol=1e-4, atol=1e-2)
    np.testing.assert_allclose(by_weight, exact.T @ x, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    ("rows", "out", "dtype", "platform", "left"),
    [
        (32, 48, "float32", "cpu", True),
        (64, 48, "float32", "cpu", True),
        (65, 48, "float32", "cpu", False),
        (4, 48, "float32", "cpu", False),
        (36, 48, "float32", "cpu", False),  # would be filled up to 48
        (32, 50, "float32", "cpu", False),
        (32, 48, "bfloat16", "cpu", False),
        (32, 48, "float32", "tpu", False),
    ],
)
def test_weights_stand_left_only_where_that_is_faster(
    rows: int, out: int, dtype: str, platform: str, left: bool
) -> None:
    text = lowered(rows, out, dtype, platform)
    assert "dot_general" in text
    assert ("optimization_barrier" in text) == left
