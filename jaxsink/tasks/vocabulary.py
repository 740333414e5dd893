"""The task's tokenizer: whole words and numbers up to LARGEST, each with the space before it; marks and line breaks alone.

The files in `tokenizer/` are made by `python -m jaxsink.tasks.vocabulary`, and read like any other checkpoint's. Words
that no template knows become <|unk|>.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from jaxsink.tasks.task import BOXES, LARGEST, NAMES, TEMPLATES, THINGS, Template, combinations, render
from jaxsink.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

SPECIAL = {"pad": "<|pad|>", "bos": "<|bos|>", "eos": "<|eos|>", "mask": "<|mask|>", "unk": "<|unk|>"}
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
    """Every piece, in the order of the ids: special tokens, marks, numbers, words."""
    numbers = [f" {n}" for n in range(LARGEST + 1)]
    known = {*MARKS, *numbers}
    words = {piece for template in TEMPLATES for text in wordings(template) for piece in re.findall(PIECE, text)}
    return [*SPECIAL.values(), *MARKS, *numbers, *sorted(words - known)]


def wordings(template: Template) -> set[str]:
    """Question and answer with every name in every part, all things and boxes; one set of numbers is enough."""
    names = sorted(NAMES)
    turns = [(*names[n:], *names[:n])[:3] for n in range(len(names))]
    numbers = combinations(template.name, "train")[0]
    made = [render(template, numbers, who, things, boxes) for who, things, boxes in product(turns, THINGS, BOXES)]
    return {problem.question + problem.answer for problem in made}


def build() -> tuple[Backend, dict[str, str]]:
    """(the tokenizer of the `tokenizers` library, tokenizer_config.json)."""
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
    from tokenizers import Tokenizer as Backend

    ids = {piece: index for index, piece in enumerate(vocabulary())}
    backend = Backend(models.WordLevel(ids, unk_token=SPECIAL["unk"]))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL.values()])
    bos = SPECIAL["bos"]
    backend.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, ids[bos])])
    return backend, {f"{name}_token": text for name, text in SPECIAL.items()}


def write(target: Path) -> None:
    backend, config = build()
    target.mkdir(parents=True, exist_ok=True)
    backend.save(str(target / FILES[0]))
    (target / FILES[1]).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(folder())
