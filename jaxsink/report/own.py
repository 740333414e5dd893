"""One's own generations for the page: from memory, or from the files of `jaxsink generate --record`; and shown at once."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.report.generations import played_generations
from jaxsink.report.page import render, write_page
from jaxsink.report.study import StudyResults
from jaxsink.sampling.generation import Generation
from jaxsink.sampling.record_file import WORDS, read_record
from jaxsink.text.token_texts import token_texts

if TYPE_CHECKING:
    from jaxsink.text.tokenizer import Tokenizer

FRAME_HEIGHT = 860  # pixels, in a notebook
TITLE = "Attention sinks: this run"


@checked()
def show(generation: Generation, tokenizer: Tokenizer | None = None) -> None:
    """Show the player page: inside a notebook, or else as a temporary file in the browser; its path is printed.

    Args:
        generation: with a record of `received()` or `received_by_query()`
        tokenizer: for the texts; None: the generation's own

    Examples:
        >>> jaxsink.show(out)  # prints where the page is, and opens it
        /...jaxsink-....html
    """
    study = study_of(generation, tokenizer, "this run")
    if in_notebook():
        from IPython.display import HTML, display  # type: ignore[import-not-found]

        display(HTML(f"{in_frame(render(study))}\n"))  # IPython warns of a text that ends with its frame
        return
    handle, name = tempfile.mkstemp(prefix="jaxsink-", suffix=".html")
    os.close(handle)
    write_page(study, Path(name))
    print(name)
    if has_screen():
        webbrowser.open(Path(name).as_uri())


def in_frame(page: str) -> str:
    """The page as an element of another one."""
    style = f"width: 100%; height: {FRAME_HEIGHT}px; border: 0"
    return f'<iframe title="jaxsink" srcdoc="{escape(page)}" style="{style}" allowfullscreen></iframe>'


def in_notebook() -> bool:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


def has_screen() -> bool:
    """Without one, webbrowser may start a browser in the terminal, and wait for it."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def study_of(generation: object, tokenizer: Tokenizer | None, title: str) -> StudyResults:
    """What the page shows: every sequence of every generation."""
    labelled = generation if isinstance(generation, Mapping) else {"": generation}
    played = []
    for label, one in labelled.items():
        if not isinstance(one, Generation):
            raise JaxsinkError(f"report: a page is made of what `generate` returned, not of {type(one).__name__}.")
        own = tokenizer or one.tokenizer
        texts = [token_texts(own, ids) for ids in np.asarray(one.tokens)]
        words = partial(token_texts, own)
        played += played_generations(one, texts, label.replace(" ", "-") or "run", title, label, words)
    if not played:
        raise JaxsinkError("report: there is no generation to show.")
    return StudyResults(Path("."), {}, [], played, TITLE)


def read_records(files: Sequence[Path]) -> StudyResults:
    """The same from files of `jaxsink generate --record`; each is a generation of its own."""
    played, facts = [], {}
    stems = [file.stem for file in files]
    for number, file in enumerate(files):
        name = file.stem if stems.index(file.stem) == number else f"{file.stem}-{number + 1}"
        generation, texts, settings = read_record(file)
        model = Path(str(settings.get("model") or file.stem)).name
        try:
            known = settings.pop(WORDS, {})
            words = (lambda ids, known=known: [known.get(str(token), str(token)) for token in ids]) if known else None
            played += played_generations(generation, texts, name, model, "" if len(files) == 1 else name, words)
        except JaxsinkError as error:
            raise JaxsinkError(f"{file}: {error}") from error
        facts[name] = settings
    return StudyResults(files[0], facts, [], played, TITLE)
