"""One way to check what people give: a dataclass says what its fields are, a table says between which numbers.

@dataclass(frozen=True)
class TopK:
    k: int

    def __post_init__(self) -> None:
        check_fields(self, "TopK", {"k": at_least(0)})

The annotations are the types: whole numbers, numbers (finite ones), texts, truth values, `Literal`s, tuples of these, other
dataclasses, classes and functions, lists and mappings of these, paths, arrays (jaxsink/arrays.py), and None where it may be.
What depends on several fields stays with the dataclass. Functions are checked the same way (jaxsink/doors.py).
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from jaxsink.errors import JaxsinkError

T = TypeVar("T")
Hint = Any  # what an annotation is at run time has no type of its own
LONGEST = 80  # characters of a wrong value that a sentence shows


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; those named in `without` are not among them.

    nan: arrays may hold NaN where something is missing.
    """

    low: float = -math.inf
    high: float = math.inf
    without: AbstractSet[float] = frozenset()
    nan: bool = False

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
NAN_TOO = Range(nan=True)


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
        wanted = (
            "a path that is not empty"
            if isinstance(value, str) and not value and _is_path(hint)
            else words(hint, allowed)
        )
        raise JaxsinkError(f"{name} must be {wanted}, not {shown(value)}.")
    return found


def check_call(function: str, given: Mapping[str, object], kinds: Mapping[str, Hint]) -> None:
    """The same for arguments of a function that has no decorator (jaxsink/doors.py)."""
    for name, hint in kinds.items():
        check_value(f"{function}: {name}", given[name], hint)


def check_given(owner: str, given: dict[str, Any], record: type, ranges: Mapping[str, Range] | None = None) -> None:
    """Fields of a dataclass by their names, before it is put together: wrong ones cost no work."""
    for name, hint in _hints(record).items():
        if name in given:
            given[name] = check_value(f"{owner}: {name}", given[name], hint, (ranges or {}).get(name, ANY))


def plain(value: object, hint: Hint) -> object:
    """Python's own numbers for NumPy's; a tuple for a list, where one is wanted."""
    kind, array = type(value), cast(Any, value)  # looked at by name, so that what needs no arrays needs no NumPy
    if kind.__module__ == "numpy" and kind.__name__ != "ndarray" and hasattr(value, "item"):
        return array.item()
    lists = [one for one in kinds_of(hint) if get_origin(one) in (tuple, Sequence, Iterable)]
    is_array = kind.__name__ in ("ndarray", "ArrayImpl") and kind not in kinds_of(hint)
    if is_array and (array.ndim == 0 or lists):
        value = array.tolist()
    if not lists or not (is_array or kind in (list, tuple, range)) or not isinstance(value, (list, tuple, range)):
        return value
    inner = get_args(lists[0])[0]
    parts = [plain(part, inner) for part in value]
    return parts if kind is list and get_origin(lists[0]) is not tuple else tuple(parts)


def fits(value: object, hint: Hint, allowed: Range = ANY) -> bool:
    """Is the value of this kind? Annotations that cannot be told at run time fit everything."""
    if _is_dtype(hint) and value is not None:
        from jaxsink.arrays import is_dtype  # which needs JAX

        return is_dtype(value)
    if isinstance(value, str) and _is_path(hint) and (not value or "\0" in value):
        return False
    return any(_is_one(value, kind, allowed) for kind in kinds_of(hint))


def _is_path(hint: Hint) -> bool:
    """Texts are paths, where other paths may be given."""
    return any((get_origin(kind) or kind) is os.PathLike for kind in kinds_of(hint))


def _is_dtype(hint: Hint) -> bool:
    """NumPy's DTypeLike and JAX's, by what only they have."""
    return any(getattr(kind, "__name__", "") == "SupportsDType" for kind in kinds_of(hint))


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
        return abs(value) <= sys.float_info.max and value in allowed
    if origin is Literal:
        return isinstance(value, str | int | bool) and value in get_args(kind)
    if origin is tuple:
        inner = get_args(kind)
        if not isinstance(value, tuple) or (inner[-1] is not Ellipsis and len(value) != len(inner)):
            return False
        return all(fits(part, inner[0 if inner[-1] is Ellipsis else n], allowed) for n, part in enumerate(value))
    if origin in (Sequence, Iterable):
        return _is_list(value, get_args(kind)[0], allowed, whatever=origin is Iterable)
    if origin in (dict, Mapping):
        of_key, of_value = get_args(kind)
        is_mapping = isinstance(value, origin)
        return is_mapping and all(fits(name, of_key) and fits(one, of_value, allowed) for name, one in value.items())
    if origin is Callable or kind is Callable:
        return callable(value)
    if hasattr(kind, "leaftype"):
        from jaxsink.arrays import are_leaves  # which needs JAX

        return are_leaves(value, kind.leaftype)
    checked = origin if inspect.isclass(origin) else kind
    if kind is Any or not inspect.isclass(checked) or "jaxtyping" in checked.__module__:
        return True
    if getattr(checked, "_is_protocol", False) and not getattr(checked, "_is_runtime_protocol", False):
        return True
    return isinstance(value, checked)


def _is_list(value: object, inner: Hint, allowed: Range, whatever: bool) -> bool:
    """A text is no list of texts. whatever: something that yields its parts only once will do, and is taken as it is."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable if whatever else Sequence):
        return False
    return not isinstance(value, Collection) or all(fits(part, inner, allowed) for part in value)


def words(hint: Hint, allowed: Range = ANY) -> str:
    """What an annotation asks for, in a sentence."""
    if _is_dtype(hint):
        return "one of float32, bfloat16, float16, int8"
    return " or ".join(dict.fromkeys(_words_of(kind, allowed) for kind in kinds_of(hint)))


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
    if origin in (Sequence, Iterable):
        return f"a list, each of it {words(get_args(kind)[0], allowed)}"
    if origin in (dict, Mapping) and get_origin(get_args(kind)[0]) is Literal:
        return f"a mapping of {', '.join(get_args(get_args(kind)[0]))}"
    if origin is Callable or kind is Callable:
        return "a function"
    named = {bool: "True or False", str: "a text", Mapping: "a mapping", dict: "a mapping", os.PathLike: "a path"}
    if getattr(kind, "__module__", "").startswith("jaxtyping"):
        return "an array"
    checked = origin if inspect.isclass(origin) else kind
    name = getattr(checked, "__name__", str(checked))
    return named.get(checked) or f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


def shown(value: object) -> str:
    """A wrong value, short enough for a sentence."""
    try:
        text = repr(value)
    except Exception:  # a __repr__ of the caller's own
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())  # arrays have lines
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
        inner = next((kind for kind in kinds_of(hints.get(name)) if dataclasses.is_dataclass(kind)), None)
        if inner is not None and value is not None:
            given[name] = built(inner, value, f"{owner}: {name}")  # pyright: ignore[reportArgumentType]
    return cls(**given)


def kinds_of(hint: Hint) -> tuple[Hint, ...]:
    """The alternatives of an annotation."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(kind for part in get_args(hint) for kind in kinds_of(part))
    if isinstance(hint, TypeVar):
        return kinds_of(hint.__bound__ or Any)
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
