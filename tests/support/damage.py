"""Damage to checkpoints: by hand, and at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from support.checkpoints import assert_refused, make, run

Break = Callable[[Path], tuple[str, ...]]  # damages a sound directory, and returns words that the sentence must hold
NORM, UP = "model.norm.weight", "model.layers.1.mlp.up_proj.weight"
FILE = "model.safetensors"


def check(damage: Break, folder: Path, capsys: Any) -> None:
    """Break a sound checkpoint, and convert it."""
    source, _ = make(folder / "source", "llama")
    words = damage(source)
    assert_refused(run(capsys, "convert", source, folder / "out"), folder / "out", *words)
    assert [path.name for path in folder.iterdir()] == ["source"]


Edit = tuple[str, float, bytes]
edits = st.lists(
    st.tuples(
        st.sampled_from(["replace", "insert", "cut", "end"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=3,
)


def damage(content: bytes, edits: list[Edit]) -> bytes:
    for what, where, data in edits:
        place = int(where**3 * len(content))  # more often near the beginning, where the structure is
        rest = {"replace": place + len(data), "insert": place, "cut": place + 1 + data[0], "end": len(content)}[what]
        content = content[:place] + (data if what in ("replace", "insert") else b"") + content[rest:]
    return content


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*path, key)
        yield from places(part, (*path, key))
