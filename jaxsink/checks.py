"""One way to check what people give: a dataclass says what its fields are, a table says between which numbers.

@dataclass(frozen=True)
class TopK:
    k: int

    def __post_init__(self) -> None:
        check_fields(self, "TopK", {"k": at_least(0)})

The annotations are the types: whole numbers, numbers (finite ones), texts, truth values, `Literal`s, tuples of these, other
dataclasses, classes and functions, and None where it may be. What depends on several fields stays with the dataclass.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np

from jaxsink.errors import JaxsinkError

T = TypeVar("T")
Hint = Any  # what an annotation is at run time has no type of its own
LONGEST = 80  # characters of a wrong value that a sentence shows


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; those named in `without` are not among them."""

    low: float = -math.inf
    high: float = math.inf
    without: AbstractSet[float] = frozenset()

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high and value not in self.without

    def words(self) -> str:
        """Fits after "a number "."""
        low = f"above {self.low:g}" if self.low in self.without else f"of {self.low:g} or more"
        high = f"below {self.high:g}" if self.high in self.without else f"of {self.high:g} or less"
        parts = [low] * (self.low > -math.inf) + [high] * (self.high < math.inf)
        if len(parts) == 2 and not self.without & {self.low, self.high}:
            return f" from {_shown_number(self.low)} to {_shown_number(self.high)}"
        return f" {' and '.join(parts)}" if parts else ""


def at_least(low: float, high: float = math.inf) -> Range:
    return Range(low, high)


def above(low: float, high: float = math.inf) -> Range:
    return Range(low, high, frozenset({low}))


ANY = Range()


def check_fields(record: object, owner: str, ranges: Mapping[str, Range] | None = None) -> None:
    """Raise a JaxsinkError about the first field that is not what its annotation and the table say.

    Numbers and truth values of NumPy become Python's, and lists become tuples where a tuple is wanted.
    """
    hints = _hints(type(record))
    for field in dataclasses.fields(record):  # pyright: ignore[reportArgumentType]
        if field.name in hints:
            given = getattr(record, field.name)
            value = check_value(f"{owner}: {field.name}", given, hints[field.name], (ranges or {}).get(field.name, ANY))
            if value is not given:
                object.__setattr__(record, field.name, value)


def check_value(name: str, value: object, hint: Hint, allowed: Range = ANY) -> Any:
    """The value as its annotation wants it, or one sentence that begins with `name`."""
    found = plain(value, hint)
    if not fits(found, hint, allowed):
        raise JaxsinkError(f"{name} must be {words(hint, allowed)}, not {shown(value)}.")
    return found


def check_call(function: str, given: Mapping[str, object], kinds: Mapping[str, Hint]) -> None:
    """The same for arguments of a function."""
    for name, hint in kinds.items():
        check_value(f"{function}: {name}", given[name], hint)


def plain(value: object, hint: Hint) -> object:
    """Python's own numbers for NumPy's; a tuple for a list, where one is wanted."""
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        return value.item()
    if isinstance(value, (list, range, np.ndarray)) and any(get_origin(kind) is tuple for kind in _kinds(hint)):
        inner = next(get_args(kind)[0] for kind in _kinds(hint) if get_origin(kind) is tuple)
        return tuple(plain(part, inner) for part in value)
    return value


def fits(value: object, hint: Hint, allowed: Range = ANY) -> bool:
    """Is the value of this kind? Annotations that cannot be told at run time fit everything."""
    kinds = _kinds(hint)
    return any(_is_one(value, kind, allowed) for kind in kinds)


def _is_one(value: object, kind: Hint, allowed: Range) -> bool:
    origin = get_origin(kind)
    if kind is None or kind is types.NoneType:
        return value is None
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and value in allowed
    if kind is float:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return False
        return abs(value) <= np.finfo(np.float64).max and value in allowed
    if origin is Literal:
        return isinstance(value, str | int | bool) and value in get_args(kind)
    if origin is tuple:
        inner = get_args(kind)
        if not isinstance(value, tuple) or (inner[-1] is not Ellipsis and len(value) != len(inner)):
            return False
        return all(fits(part, inner[0 if inner[-1] is Ellipsis else n], allowed) for n, part in enumerate(value))
    if origin is Callable or kind is Callable:
        return callable(value)
    checked = origin if inspect.isclass(origin) else kind
    if not inspect.isclass(checked) or getattr(checked, "_is_protocol", False) or "jaxtyping" in checked.__module__:
        return True
    return isinstance(value, checked)


def words(hint: Hint, allowed: Range = ANY) -> str:
    """What an annotation asks for, in a sentence."""
    return " or ".join(dict.fromkeys(_words_of(kind, allowed) for kind in _kinds(hint)))


def _words_of(kind: Hint, allowed: Range) -> str:
    origin = get_origin(kind)
    if kind is None or kind is types.NoneType:
        return "None"
    if kind is int:
        return "a positive whole number" if allowed == at_least(1) else f"a whole number{allowed.words()}"
    if kind is float:
        return f"a finite number{allowed.words()}"
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if origin is tuple:
        inner = words(get_args(kind)[0], allowed)
        return f"a tuple, each of it {inner}"
    if origin is Callable or kind is Callable:
        return "a function"
    named = {bool: "True or False", str: "a text", Mapping: "a mapping"}
    checked = origin if inspect.isclass(origin) else kind
    return named.get(checked) or f"a {getattr(checked, '__name__', str(checked))}"


def shown(value: object) -> str:
    """A wrong value, short enough for a sentence."""
    try:
        text = repr(value)
    except Exception:  # a __repr__ of the caller's own
        text = f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def built(cls: type[T], values: object, owner: str) -> T:
    """A dataclass from what JSON has of it: objects inside become the dataclasses that the annotations name."""
    if not isinstance(values, dict):
        raise JaxsinkError(f"{owner}: must be an object with fields, not {shown(values)}.")
    hints, fields = _hints(cls), dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    unknown = [str(name) for name in values if name not in {field.name for field in fields}]
    if unknown:
        raise JaxsinkError(f"{owner}: unknown field {sorted(unknown)[0]!r}; this file may need a newer jaxsink.")
    needed = (f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING)
    missing = [name for name in needed if name not in values]
    if missing:
        raise JaxsinkError(f"{owner}: {missing[0]} is missing.")
    given = dict(values)
    for name, value in values.items():
        inner = next((kind for kind in _kinds(hints.get(name)) if dataclasses.is_dataclass(kind)), None)
        if inner is not None and value is not None:
            given[name] = built(inner, value, f"{owner}: {name}")  # pyright: ignore[reportArgumentType]
    return cls(**given)


def _kinds(hint: Hint) -> tuple[Hint, ...]:
    """The alternatives of an annotation."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(kind for part in get_args(hint) for kind in _kinds(part))
    return (hint,)


@lru_cache(maxsize=256)
def _hints(cls: type) -> dict[str, Hint]:
    """Annotations by name; those of a class that names what only type checkers know are not checked."""
    try:
        return typing.get_type_hints(cls)
    except (NameError, TypeError):
        return {}


def _shown_number(value: float) -> str:
    return f"{value:g}" if abs(value) < 1e5 or value != int(value) else f"{int(value)}"
