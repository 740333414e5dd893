"""The task's tokenizer: whole words and numbers up to LARGEST, each with the space before it; marks and line breaks alone.

The files in `tokenizer/` are made by `python -m jaxsink.tasks.vocabulary`, and read like any other checkpoint's. Words
that no template knows become <|unk|>.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path

from jaxsink.tasks.task import BOXES, LARGEST, NAMES, TEMPLATES, THINGS, Template, combinations, render
from jaxsink.text.new_tokenizer import SPECIAL, assembled, save_tokenizer
from jaxsink.text.tokenizer import Tokenizer

PIECE = r" ?[A-Za-z]+| ?[0-9]+| ?#+| ?[^\sA-Za-z0-9#]|\s"
MARKS = ("\n", ".", ",", "?", ":", "####", " +", " -", " *", " =")
FILES = ("tokenizer.json", "tokenizer_config.json")


def folder() -> Path:
    """Where the shipped files are."""
    return Path(str(files("jaxsink.tasks") / "tokenizer"))


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.load(folder())


def vocabulary() -> list[str]:
    """Of the built-in task."""
    return pieces((text for template in TEMPLATES for text in wordings(template)), LARGEST)


def pieces(texts: Iterable[str], largest: int) -> list[str]:
    """Every piece, in the order of the ids: special tokens, marks, numbers up to the largest, words of the texts."""
    numbers = [f" {n}" for n in range(largest + 1)]
    known = {*MARKS, *numbers}
    words = {piece for text in texts for piece in re.findall(PIECE, text)}
    return [*SPECIAL.values(), *MARKS, *numbers, *sorted(words - known)]


def wordings(template: Template) -> set[str]:
    """Question and answer with every name in every part, all things and boxes; one set of numbers is enough."""
    names = sorted(NAMES)
    turns = [(*names[n:], *names[:n])[:3] for n in range(len(names))]
    numbers = combinations(template.name, "train")[0]
    made = [render(template, numbers, who, things, boxes) for who, things, boxes in product(turns, THINGS, BOXES)]
    return {problem.question + problem.answer for problem in made}


def word_tokenizer(known: Sequence[str]) -> Tokenizer:
    """Of these pieces, in the order of their ids."""
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    ids = {piece: index for index, piece in enumerate(known)}
    backend = Backend(models.WordLevel(ids, unk_token=SPECIAL["unk"]))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), "isolated")
    backend.decoder = decoders.Fuse()
    return assembled(backend)


def write(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    save_tokenizer(word_tokenizer(vocabulary()), target)


if __name__ == "__main__":
    write(folder())
