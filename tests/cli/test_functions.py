"""What a command prints is what its function returns, and mistakes in Python are sentences too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import jaxsink
from jaxsink.cli.main import main

pytestmark = pytest.mark.usefixtures("quick_compilation")
QUESTION = "Mia has 4 apples. She buys 3 more apples. How many apples does Mia have now?"


def test_a_response_and_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--tokens", "16", "--steps", "8", "--block", "8", "--seed", "3"]
    assert main(["generate", "mini-llada", QUESTION, *words, "--record", str(tmp_path / "a.npz"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    record = tmp_path / "b.npz"
    response = jaxsink.respond("mini-llada", QUESTION, tokens=16, steps=8, block=8, seed=3, record=record)
    for changing in ("seconds", "record"):
        printed.pop(changing)
    assert printed == {name: value for name, value in response.to_dict().items() if name not in ("seconds", "record")}
    assert response.record == {"file": str(record), "what": ["received"]}
    assert main(["report", str(tmp_path / "a.npz"), "--layer", "1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    page = jaxsink.report(record, layer=1)
    assert page.path == tmp_path / "b.html" and page.to_dict()["shown"][0]["layer"] == shown["shown"][0]["layer"] == 1
    assert page.to_dict()["generations"] == ["b"] and page.gif is None


def test_oddities_are_warnings() -> None:
    with pytest.warns(UserWarning, match="reads <|unk|> instead: bananas"):
        jaxsink.respond("mini-llama", "Mia has 4 bananas.", tokens=4)


@pytest.mark.parametrize(
    ("function", "arguments", "options", "message"),
    [
        ("respond", ("mini-llama", "Hi"), {"stepps": 3}, "respond has no keyword 'stepps'; did you mean steps"),
        ("respond", ("mini-llama", "Hi"), {"steps": 3}, "--steps is not for a llama model"),
        ("respond", ("mini-llama",), {}, "give either a PROMPT"),
        ("plan", ("mini-llada", "v5e:1x1"), {"bach": 3}, "plan has no keyword 'bach'; did you mean batch"),
        ("plan", ("mini-llada", "v5e:1x1"), {"batch": 1, "rows": 3}, "--rows is of an evaluation"),
        ("plan", ("mini-llada", "v9:1x1"), {}, "v9"),
        ("train", ("mini-llama", "out"), {"stpes": 3}, "train has no keyword 'stpes'; did you mean steps"),
        ("train", ("mini-llama", "out"), {"objective": "causal"}, "--objective does not apply"),
        ("train", ("mini-bert", "out"), {}, "name texts to train mini-bert on"),
        ("report", (["a.npz", "b"],), {}, "one directory of a study, or one or several"),
        ("models", ("mini-lama",), {}, "did you mean mini-llama"),
        ("study", ("fig99",), {}, "there is no experiment 'fig99'"),
        ("convert", ("nowhere", "out"), {}, "nowhere"),
    ],
)
def test_mistakes_are_one_sentence(
    function: str, arguments: tuple[Any, ...], options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(jaxsink.JaxsinkError) as error:
        getattr(jaxsink, function)(*arguments, **options)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []
