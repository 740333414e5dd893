"""Packages that can be called: `jaxsink.report` is the room where pages are made, and `jaxsink.report(...)` makes one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package with a main function of the same name, whose signature it shows."""

    __wrapped__: Callable[..., Any]

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.__wrapped__(*args, **options)


def make_callable(package: str, function: Callable[..., Any]) -> None:
    """Importing a package binds its name in the one around it, so that a function of that name has to be the package."""
    module = sys.modules[package]
    module.__class__ = CallablePackage
    module.__wrapped__ = function  # pyright: ignore[reportAttributeAccessIssue]
