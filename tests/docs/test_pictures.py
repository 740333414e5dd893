"""The pictures of docs/concepts/ show what the models do now, and are drawn by the committed program."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.paths import ROOT

FOUND = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
assert FOUND is not None and FOUND.loader is not None
pictures = importlib.util.module_from_spec(FOUND)
FOUND.loader.exec_module(pictures)
pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return pictures.answers()


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    return json.loads(pictures.FIGURES.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_models_do_what_is_drawn(answers: dict[str, Any], kept: dict[str, Any]) -> None:
    now = pictures.figures(answers)
    assert pictures.same(kept, now)
    for name, key, change in (("llada", "sink", 1), ("dream", "committed_at", 1), ("top", "received", 0.1)):
        values = [now[name][key][0] + change, *now[name][key][1:]]
        assert not pictures.same(kept, {**now, name: {**now[name], key: values}})


@pytest.mark.slow
def test_every_picture_is_drawn(answers: dict[str, Any], tmp_path: Path) -> None:
    pictures.draw(answers, tmp_path)
    for name in pictures.PICTURES:
        with Image.open(tmp_path / f"{name}.png") as new, Image.open(pictures.FOLDER / f"{name}.png") as old:
            assert new.size == old.size and new.convert("L").getextrema() == (0, 255), name
    assert {path.stem for path in pictures.FOLDER.glob("*.png")} == set(pictures.PICTURES)


def test_every_picture_is_shown_on_a_page_and_on_the_one_with_all() -> None:
    shown = {
        path: {
            (path.parent / link).resolve()
            for link in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
        }
        for path in (ROOT / "docs").rglob("*.md")
    }
    drawn = set(pictures.FOLDER.glob("*.png"))
    assert drawn and drawn <= shown.pop(pictures.FOLDER / "pictures.md")
    assert drawn <= set().union(*shown.values())


def test_what_the_pages_say_of_the_pictures(kept: dict[str, Any]) -> None:
    """The moving sink goes from the first token to a 7 of the answer, when that is filled in, and comes back."""
    sink, tokens = kept["llada"]["sink"], kept["llada"]["tokens"]
    (place,) = set(sink) - {0}
    assert tokens[place].strip() == "7" and sink[0] == sink[-1] == 0
    assert sink.index(place) == kept["llada"]["committed_at"][place] + 1
    received = kept["dream"]["received"]
    assert max(received) == received[0] and tokens[0] == "<|bos|>" and received[0] > 2.5 * sorted(received)[-2]
    answers = {name: "".join(kept[name]["tokens"][20:]) for name in ("dream", "top", "random")}
    assert answers["random"] == answers["dream"] != answers["top"] and "#### 7" in answers["dream"].replace("  ", " ")
