"""Writes into the cards of the built-in models what their shipped weights lose on held-out problems.

    python docs/cards.py          write the line anew
    python docs/cards.py --check  say whether it is as it would be written

The rest of a card was written by the run that trained the model; this line was measured later, in the same way as
`jaxsink train` measures it at the end of a run.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import jaxsink
from jaxsink.training.card import held_out
from jaxsink.training.recipe import builtin_recipe
from jaxsink.training.run import STORED, held_out_loss
from jaxsink.zoo.resolve import NAMES, resolve

LINE = re.compile(r"\*\*Loss on held-out data\*\*: .*\n\n")
BEFORE = "**Data**: "


@cache
def line(name: str) -> str:
    recipe = builtin_recipe(name, {})
    loss = held_out_loss(recipe, jaxsink.load(name, "float32").unrolled())
    return f"{held_out(recipe, loss, STORED)}\n\n"


def card(name: str) -> Path:
    return resolve(name) / "README.md"


def written(name: str) -> str:
    """The card with its line."""
    before, found, after = LINE.sub("", card(name).read_text(encoding="utf-8")).partition(BEFORE)
    return before + line(name) + found + after


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(any(card(name).read_text(encoding="utf-8") != written(name) for name in NAMES))
    for name in NAMES:
        card(name).write_text(written(name), encoding="utf-8")
