"""Windows of plain text: a text file, or JSON lines with a "text" each, cut into parts of one length."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from jaxsink.errors import JaxsinkError
from jaxsink.tasks.corpus import texts_of
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
