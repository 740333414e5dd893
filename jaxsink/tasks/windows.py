"""Windows of plain text: a text file, or JSON lines with a "text" each, cut into parts of one length."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jaxsink.errors import JaxsinkError
from jaxsink.text.tokenizer import Tokenizer


class Window(NamedTuple):
    """Token ids: what is given, and what follows."""

    context: tuple[int, ...]
    rest: tuple[int, ...]


def windows(path: Path, length: int, tokenizer: Tokenizer) -> list[Window]:
    """All whole windows of `length` tokens, side by side, none over the end of a text; the first half is the context.

    Each begins as a text does: with bos, beyond its length, if the tokenizer begins texts so. What is left over at the end
    of a text is not used.
    """
    if length < 2:
        raise JaxsinkError(
            f"--window {length}: a window needs two tokens at least, one to be given and one to be scored."
        )
    found = []
    for text in texts_of(path):
        ids = tokenizer.encode(text, add_special_tokens=True)
        first = tuple(ids[:1]) if ids[:1] == [tokenizer.special.get("bos")] else ()
        ids = ids[len(first) :]
        for start in range(0, len(ids) - length + 1, length):
            middle = start + length // 2
            found.append(Window((*first, *ids[start:middle]), tuple(ids[middle : start + length])))
    if not found:
        raise JaxsinkError(f"no text in {path} has {length} tokens; give a smaller --window.")
    return found


def texts_of(path: Path) -> Iterator[str]:
    """The whole file, or of a .jsonl file the "text" of every line."""
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise JaxsinkError(f"cannot read the text {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise JaxsinkError(f"{path} is not text in UTF-8; convert it first.") from error
    if path.suffix != ".jsonl":
        yield content
        return
    for number, line in enumerate(content.splitlines(), 1):
        try:
            text = json.loads(line)["text"]
        except (ValueError, KeyError, TypeError) as error:
            raise JaxsinkError(f'line {number} of {path} is not a JSON object with a "text".') from error
        if not isinstance(text, str):
            raise JaxsinkError(f'the "text" in line {number} of {path} is not a text.')
        yield text
