"""Tokenizers that others wrote: what the library cannot bear is found before it is given to it, and panics are errors.

The `tokenizers` library panics on some files, which Python sees as a BaseException that no `except Exception` holds; a
regular expression with nested repetitions takes time without end, one with large counts takes memory, and so does a
normaliser that makes texts longer again and again.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.errors import JaxsinkError
from jaxsink.runs.files import check_file, first_words, read_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LONGEST_PATTERN = 10_000  # characters; the longest that is known has 300
LARGEST_COUNT = 1000  # of a repetition {n,m}, counts of nested ones multiplied
LARGEST_GROWTH = 64  # how much longer all normalisers together, or all decoders, may make a text
LONGEST_ADDITION = 1000  # characters and tokens that are put before or after a text
MOST_STEPS = 100  # normalisers or pre-tokenizers
_descriptor = RLock()
STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)
COMPOUND = ("normalizers", "pretokenizers", "decoders", "processors")
QUANTIFIER = re.compile(r"[*+?]|\{(\d*)(,?)(\d*)\}")


@contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Bare exceptions and panics of the library as one sentence, and no other word of a panic. what: begins it."""
    try:
        with panics_aside():
            yield
    except JaxsinkError:
        raise
    except STOPS:
        raise
    except BaseException as error:  # a panic is none of Exception's
        raise JaxsinkError(f"{what} ({first_words(error)}).") from error


def parsed(text: str, what: str) -> Tokenizer:
    """A tokenizer of the library. what: begins the sentence that says that there is none."""
    import tokenizers

    with library_errors(what):
        return tokenizers.Tokenizer.from_str(text)


@contextmanager
def panics_aside() -> Iterator[None]:
    """The library's own report of a panic goes past Python, to descriptor 2: it is kept back, and all else passed on."""
    with _descriptor, ExitStack() as stack:
        try:
            kept = os.dup(2)
        except OSError:  # stderr is closed: nobody would see the report
            yield
            return
        stack.callback(os.close, kept)
        aside, panicked = stack.enter_context(tempfile.TemporaryFile()), False
        os.dup2(aside.fileno(), 2)
        try:
            yield
        except BaseException as error:
            panicked = not isinstance(error, (Exception, *STOPS))
            raise
        finally:
            os.dup2(kept, 2)
            aside.seek(0)
            if not panicked and (said := aside.read()):
                os.write(2, said)


def check_text(text: object) -> None:
    """Text, and not bytes that Python could not read as such: arguments and file names may hold them."""
    if not isinstance(text, str) or re.search("[\ud800-\udfff]", text):
        raise JaxsinkError(f"{ascii(text)[:80]} is not valid text; give UTF-8.")


def read_tokenizer_json(path: Path) -> str:
    """The text of a tokenizer.json that the library can be given."""
    check_file(path)
    try:
        text = read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise JaxsinkError(f"{path} is not a tokenizer that can be read ({error}); fetch the file again.") from error
    check_tokenizer(text, path)
    return text


def check_tokenizer(text: str, source: str | Path) -> None:
    """Raise a JaxsinkError about what would take time or memory without end."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JaxsinkError(
            f"{source} is not a tokenizer that can be read ({first_words(error)}); fetch the file again."
        ) from error
    if not isinstance(found, dict):
        raise JaxsinkError(f"{source} is not a tokenizer that can be read: it is no JSON object; fetch the file again.")
    steps = {name: list(_steps(found.get(name))) for name in ("normalizer", "pre_tokenizer", "decoder")}
    for name, parts in steps.items():
        if len(parts) > MOST_STEPS:
            raise JaxsinkError(f"{source} has a {name} of {len(parts)} steps, more than the {MOST_STEPS} that can be.")
    for part in (*steps["normalizer"], *steps["pre_tokenizer"], *steps["decoder"]):
        pattern = part.get("pattern")
        regex = pattern.get("Regex") if isinstance(pattern, dict) else None
        if isinstance(regex, str):
            check_pattern(regex, source)
    for name in ("normalizer", "decoder"):
        growth = math.prod(map(_growth, steps[name]))
        if growth > LARGEST_GROWTH:
            raise JaxsinkError(f"the {name} in {source} makes a text up to {growth:.3g} times as long; it is not used.")
    added = sum(len(str(part.get("prepend") or "")) for part in steps["normalizer"])
    added += sum(len(_listed(part.get("single"))) for part in _steps(found.get("post_processor")))
    if added > LONGEST_ADDITION:
        raise JaxsinkError(f"{source} puts {added} characters or tokens before every text; it is not used.")


def check_pattern(regex: str, source: str | Path) -> None:
    """Nested repetitions without a limit take time that doubles with every character, large counts take memory."""
    if len(regex) > LONGEST_PATTERN:
        raise JaxsinkError(f"{source} has a regular expression of {len(regex)} characters; it is not used.")
    groups: list[
        tuple[bool, int]
    ] = []  # of those that are open: is something in it repeated without end, how often else
    endless, count = False, 1
    position = 0
    while position < len(regex):
        char = regex[position]
        position += 1
        if char == "\\":
            position += 1
        elif char == "[":
            position = _end_of_class(regex, position)
        elif char == "(":
            groups.append((endless, count))
            endless, count = False, 1
            continue
        inner = (endless, count) if char == ")" else (False, 1)
        if char == ")" and groups:
            endless, count = groups.pop()
        repeated, times, position = _quantifier(regex, position)
        if repeated and inner[0]:
            raise JaxsinkError(
                f"{source} has the regular expression {regex[:80]!r}, whose repetitions are nested; not used."
            )
        if inner[1] * times > LARGEST_COUNT:
            raise JaxsinkError(
                f"{source} has the regular expression {regex[:80]!r}, which repeats too often; not used."
            )
        endless, count = endless or repeated or inner[0], max(count, inner[1] * times)


def _quantifier(regex: str, position: int) -> tuple[bool, int, int]:
    """(without end, how often at most otherwise, where it ends) of what stands there, if it is a repetition."""
    found = QUANTIFIER.match(regex, position)
    if found is None or found[0] == "{}":
        return False, 1, position
    end = found.end()
    if end < len(regex) and regex[end] in "?+":  # lazy or possessive
        end += 1
    if found[0] in "*+":
        return True, 1, end
    if found[0] == "?":
        return False, 1, end
    low, comma, high = found[1], found[2], found[3]
    return bool(comma) and not high, int((high or low or "1")[:9]), end


def _end_of_class(regex: str, position: int) -> int:
    """After the bracket that ends a class of characters; classes may stand in classes."""
    depth = 1
    while position < len(regex) and depth:
        char = regex[position]
        position += 2 if char == "\\" else 1
        depth += (char == "[") - (char == "]")
    return position


def _steps(part: object) -> Iterator[JsonObject]:
    """A normaliser or pre-tokenizer, and those of which it is made, in whatever depth."""
    left = [part]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
            left += [inner for key in COMPOUND for inner in _listed(one.get(key))]


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _growth(part: JsonObject) -> float:
    """How much longer a step makes a text, at most."""
    if part.get("type") != "Replace" or not isinstance(part.get("content"), str):
        return 1.0
    pattern = part.get("pattern")
    replaced = pattern.get("String") if isinstance(pattern, dict) else None
    return max(1.0, len(part["content"]) / max(1, len(replaced) if isinstance(replaced, str) else 1))
