"""The public door: what is given to a function is checked by its annotations, and by a table of ranges, before it runs.

    @checked(k=at_least(0))
    def calibrate_eps(received: Float[ArrayLike, "*axes S"], k: float) -> float:

A wrong argument, an unknown keyword and a missing argument are one sentence each, by `JaxsinkError`. Arguments that are not
given are not checked. Arrays of one call must have the same size along axes of the same name.
"""

from __future__ import annotations

import builtins
import inspect
from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import cached_property, wraps
from importlib import import_module
from inspect import Parameter
from typing import Any, TypeVar, Unpack, cast, get_args, get_origin, get_type_hints

from jaxsink.checks import ANY, Hint, Range, check_value, words
from jaxsink.errors import JaxsinkError, check_keywords

Function = TypeVar("Function", bound=Callable[..., Any])
FOR_CHECKERS = {"Axes": "matplotlib.axes", "DTypeLike": "jax.typing", "Rule": "jaxsink.sinks"}
"""Names that modules import for type checkers alone, and where they are; all others are public ones of jaxsink."""


def checked(**ranges: Range) -> Callable[[Function], Function]:
    """Decorates a public function; ranges: of arguments that are numbers, by their names."""

    def decorate(function: Function) -> Function:
        door = Door(function, ranges)

        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            return function(*door.check(given, named), **named)

        return cast(Function, call)

    return decorate


class Door:
    """What a function takes. Annotations are read at the first call, when all modules are there."""

    def __init__(self, function: Callable[..., Any], ranges: Mapping[str, Range]) -> None:
        self.function, self.ranges, self.name = function, ranges, function.__qualname__

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        found = inspect.signature(self.function).parameters
        return {name: one for name, one in found.items() if one.kind not in variadic}

    @cached_property
    def in_order(self) -> list[str]:
        return [name for name, one in self.parameters.items() if one.kind is not one.KEYWORD_ONLY]

    @cached_property
    def hints(self) -> dict[str, Hint]:
        """Annotations by parameter, and those of a TypedDict of options by their names."""
        names = ChainMap(inspect.unwrap(self.function).__globals__, dict(vars(builtins)), _Elsewhere())
        found: dict[str, Hint] = {}
        for name, one in inspect.signature(self.function).parameters.items():
            hint = eval(one.annotation, {}, names) if isinstance(one.annotation, str) else one.annotation
            if get_origin(hint) is Unpack:
                found |= get_type_hints(get_args(hint)[0])
            elif name in self.parameters and hint is not Parameter.empty:
                found[name] = hint
        return found

    @cached_property
    def known(self) -> set[str] | None:
        """Names of keywords; None: the function looks at them itself."""
        options = next(
            (p for p in inspect.signature(self.function).parameters.values() if p.kind is p.VAR_KEYWORD), None
        )
        given_on = options is not None and "Unpack" not in str(options.annotation)
        return None if given_on else {*self.parameters, *self.hints}

    def check(self, given: tuple[object, ...], named: dict[str, object]) -> tuple[object, ...]:
        """The positional arguments as the function wants them; those by name are put right in place."""
        if len(given) > len(self.in_order):
            raise JaxsinkError(
                f"{self.name} takes at most {len(self.in_order)} arguments without names, not {len(given)}."
            )
        before = dict(zip(self.in_order, given, strict=False))
        if self.known is not None:
            check_keywords(self.name, named, sorted(self.known))
        sizes: dict[str, tuple[str, int]] = {}
        for name, one in self.parameters.items():
            if name in before and name in named:
                raise JaxsinkError(f"{self.name}: {name} is given twice.")
            if one.default is one.empty and name not in before and name not in named:
                raise JaxsinkError(f"{self.name}: {name} is missing; give {words(self.hints.get(name, Any))}.")
        for arguments in (before, named):
            for name in [name for name in arguments if name in self.hints]:
                arguments[name] = self.check_one(name, arguments[name], sizes)
        return tuple(before.values())

    def check_one(self, name: str, value: object, sizes: dict[str, tuple[str, int]]) -> object:
        """sizes: of the axes that are known so far, and the array that has them."""
        from jaxsink.arrays import check_axes, is_array_hint

        hint, allowed = self.hints[name], self.ranges.get(name, ANY)
        if not is_array_hint(hint):
            return check_value(f"{self.name}: {name}", value, hint, allowed)
        check_axes(name, value, hint, allowed, self.name, sizes)
        return value


class _Elsewhere(dict[str, Any]):
    """Names that are not in a module while it runs."""

    def __missing__(self, name: str) -> object:
        return getattr(import_module(FOR_CHECKERS.get(name, "jaxsink")), name)
