"""Loading: each parameter is read into the memory where it stays, and int8 weights are rounded a few layers at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jaxsink_converters.convert import convert
from support.checkpoints import assert_same, make

import jaxsink
from jaxsink.checkpoints import streaming as loading
from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.quantization import is_rounded

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Every array of the host that loading asks for."""
    made: list[np.ndarray] = []
    original = loading._on_pages

    def on_pages(*arguments: Any) -> np.ndarray:
        made.append(original(*arguments))
        return made[-1]

    monkeypatch.setattr(loading, "_on_pages", on_pages)
    return made


@pytest.fixture(params=["directory", "converted"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    source, _ = make(tmp_path / "source", "llada")
    if request.param == "directory":
        return source
    convert(str(source), str(tmp_path / "converted"))
    return tmp_path / "converted"


def test_the_memory_that_is_read_into_becomes_the_model(checkpoint: Path, allocated: list[np.ndarray]) -> None:
    model = jaxsink.load(checkpoint)
    leaves = jax.tree.leaves(model)
    assert {leaf.unsafe_buffer_pointer() for leaf in leaves} == {value.ctypes.data for value in allocated}
    assert sum(value.nbytes for value in allocated) == sum(leaf.nbytes for leaf in leaves)


@pytest.mark.parametrize("layers", [1, 2])
def test_few_layers_are_there_unrounded(
    layers: int, checkpoint: Path, allocated: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = max(
        leaf.size // leaf.shape[0] for name, leaf in named_leaves(jaxsink.load(checkpoint))[0] if is_rounded(name)
    )
    expected = jaxsink.load(checkpoint, dtype="int8")
    monkeypatch.setattr(loading, "GROUP_BYTES", 2 * largest * layers)
    allocated.clear()
    assert_same(jaxsink.load(checkpoint, dtype="int8"), expected)
    sizes = [value.nbytes for value in allocated if value.ndim == 3]
    assert sizes and max(sizes) <= 2 * largest * layers


def test_a_model_in_borrowed_memory_can_be_trained_and_given_away(checkpoint: Path) -> None:
    """Memory that JAX has not made cannot be used again by a program, so it is copied."""
    model = jaxsink.load(checkpoint)
    before = [np.array(leaf) for leaf in jax.tree.leaves(model)]
    doubled = jax.jit(lambda m: jax.tree.map(lambda x: x * 2, m), donate_argnums=0)(model)
    for leaf, old in zip(jax.tree.leaves(doubled), before, strict=True):
        np.testing.assert_array_equal(leaf, 2 * old)


def test_buffers_are_used_again_when_nobody_looks_at_them_any_more() -> None:
    buffers = loading.Buffers()
    value = buffers.array((4, 5), "float32")
    address, view = value.ctypes.data, value[1:].view("int32")
    del value
    other = buffers.array((5, 4), "float32")
    assert other.ctypes.data != address
    view[...] = 7
    del view
    assert buffers.array((20,), "float32").ctypes.data == address


def test_memory_of_the_host_is_aligned() -> None:
    for shape in ((), (0,), (3,), (1000, 7)):
        value = loading.host_array(shape, "float32")
        assert value.shape == shape and value.flags.writeable and value.ctypes.data % 64 == 0
