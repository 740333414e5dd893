"""Draws docs/moving-sink.gif, the picture of README.md: the largest sink of one head of mini-llada travels.

    python docs/moving_sink.py [FILE.gif]

One of the test problems on which a sink of this model moves farthest; the page opens with the head whose sink moves most.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import jaxsink

QUESTION = "Leo has 7 balls. He buys 5 more balls. How many balls does Leo have now?"
PICTURE = Path(__file__).with_name("moving-sink.gif")


def draw(picture: Path) -> jaxsink.Generation:
    """The generation that the picture shows."""
    shown = jaxsink.generate(jaxsink.load("mini-llada"), QUESTION, record=jaxsink.record.received())
    with tempfile.TemporaryDirectory() as folder:
        jaxsink.report(shown, out=Path(folder) / "page.html", title="mini-llada", gif=picture)
    return shown


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
