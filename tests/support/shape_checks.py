"""Shapes in signatures, checked at run time: in the tests of this process, and nowhere else.

jaxtyping's import hook wraps every function of the packages below as they are imported. Of its annotations only those with
shapes are checked, so that tests still see what jaxsink itself says about a wrong name or type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, get_args

from beartype import beartype
from jaxtyping import AbstractArray, config, install_import_hook

CHECKED = ("jaxsink.nn", "jaxsink.parallel", "jaxsink.recording", "jaxsink.sampling", "jaxsink.sinks")


def install() -> None:
    """Before the packages are imported. A name that exists only for type checkers is not checked."""
    install_import_hook(CHECKED, f"{__name__}.check_shapes")


def check_shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """beartype, for annotations with a shape in them. Pytrees are also built of shapes, axes and placeholders."""
    if function.__name__ == "__init__":
        return function
    function.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if _has_shape(hint)}
    return beartype(function) if function.__annotations__ else function


def _has_shape(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(_has_shape(part) for part in get_args(hint))


@contextmanager
def no_shape_checks() -> Iterator[None]:
    """For tests that give wrong shapes on purpose, to see what jaxsink says about them."""
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", False)
