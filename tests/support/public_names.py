"""Every public name of the package, as users write it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import jaxsink


def names_of(module: ModuleType) -> list[str]:
    """The names that a public module says it has, or those that it defines."""
    own = (n for n, o in vars(module).items() if inspect.isroutine(o) or inspect.isclass(o))
    return getattr(module, "__all__", None) or [
        n for n in own if not n.startswith("_") and getattr(module, n).__module__ == module.__name__
    ]


def public() -> Iterator[tuple[str, Any]]:
    """(name as users write it, what it is), each thing once."""
    seen: set[int] = set()
    modules = {f"jaxsink.{name}": getattr(jaxsink, name) for name in jaxsink._MODULES}
    places = {"jaxsink": jaxsink, **modules}
    for place, module in places.items():
        for name in names_of(module):
            thing = getattr(module, name)
            if f"{place}.{name}" not in modules and id(thing) not in seen:
                seen.add(id(thing))
                yield f"{place}.{name}", thing


PUBLIC = dict(public())
CALLABLE = {
    name: thing
    for name, thing in PUBLIC.items()
    if (inspect.isclass(thing) or callable(inspect.unwrap(thing))) and getattr(thing, "__module__", "") != "typing"
}
del CALLABLE["jaxsink.study.Scores"]  # a name for dict[…]
