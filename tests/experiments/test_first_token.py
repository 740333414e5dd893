"""Which first token is a sink: texts with a token added, and what is counted, on maps that are made by hand."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jaxsink_experiments import first_token
from jaxsink_experiments.first_token import Beginning, Seen

from jaxsink.errors import JaxsinkError

NAMES = {"<a>": 7, "x": 1, "y": 2, "z": 3}
BACKEND = SimpleNamespace(token_to_id=NAMES.get, id_to_token={n: name for name, n in NAMES.items()}.get)
TOKENIZER: Any = SimpleNamespace(backend=BACKEND)


def test_a_token_is_added_first_or_in_the_middle_and_texts_stay_as_long() -> None:
    plain = np.array([[1, 2, 3, 1], [2, 2, 3, 3]], np.int32)
    found = {
        case.name: (case.tokens.tolist(), case.added) for case in first_token.beginnings(plain, TOKENIZER, ["<a>"])
    }
    assert found == {
        "nothing": (plain.tolist(), None),
        "<a> first": ([[7, 1, 2, 3], [7, 2, 2, 3]], 0),
        "<a> in the middle": ([[1, 2, 7, 3], [2, 2, 7, 3]], 2),
    }
    with pytest.raises(JaxsinkError, match="has no token <b>"):
        list(first_token.beginnings(plain, TOKENIZER, ["<b>"]))


def made(mode: Any, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """One layer, two heads, two texts of three tokens."""
    received = np.array([[[[3, 0, 0], [1.5, 1, 0.5]], [[0.6, 1.5, 0.9], [0, 0.6, 2.4]]]], np.float32)
    monkeypatch.setattr(first_token, "in_mode", lambda one, mode: one)
    monkeypatch.setattr(first_token, "pass_over", lambda *_, **__: SimpleNamespace(record=received))
    subject: Any = None
    return first_token.look(subject, np.zeros((2, 3), np.int32), mode)


def test_shares_are_of_all_queries_and_of_those_that_see_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    causal, opened = (made(mode, monkeypatch) for mode in ("causal", "bidirectional"))
    np.testing.assert_allclose(causal.share, opened.share)
    np.testing.assert_allclose(opened.share.sum(axis=-1), 1)
    np.testing.assert_allclose(causal.alpha[0, 0, 1], [0.5, 0.5, 0.5])  # seen by three queries, two and one
    np.testing.assert_allclose(opened.alpha, opened.share)


def test_figures_and_receivers_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = made("bidirectional", monkeypatch)
    case = Beginning("<a> in the middle", np.array([[1, 7, 2], [1, 7, 1]], np.int32), 1)
    found = first_token.figures(case, seen)
    np.testing.assert_allclose(found["first"], [(1 + 0.5) / 2, 0.1])
    assert found["heads above 0.3"].tolist() == [1, 0] and found["first is the strongest"].tolist() == [1, 0]
    np.testing.assert_allclose(found["the added token"], [1 / 6, (0.5 + 0.2) / 2])
    assert found["the added token is the strongest"].tolist() == [0, 0.5]
    np.testing.assert_allclose(found["strongest"], [0.75, 0.65])
    lines = list(first_token.receivers(case, "bidirectional", seen, TOKENIZER))
    shares = {line["token"]: line["share of attention"] for line in lines}
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["the first of the text"] == pytest.approx((0.75 + 0.1) / 2)
    assert shares["x"] == pytest.approx(0.55 / 2)  # the last of the second text; the first ones count apart
    assert {line["token"]: line["share of keys"] for line in lines}["<a>"] == pytest.approx(1 / 3)
    line = first_token.line(case, "bidirectional", seen)
    assert line["texts"] == 2 and line["tokens"] == 3 and line["first: low"] < line["first"] < line["first: high"]


@pytest.mark.usefixtures("quick_compilation")
def test_the_script_writes_both_tables(tmp_path: Path) -> None:
    text = tmp_path / "book.txt"
    text.write_text("Tom has 3 apples. How many apples does Tom have? " * 12, encoding="utf-8")
    arguments = ["mini-llama", str(text), "--first", "Tom", "--texts", "3", "--length", "8", "--out", str(tmp_path)]
    assert first_token.main(arguments) == 0
    with (tmp_path / "first-1.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["added"] for line in lines[::2]] == ["nothing", "Tom first", "Tom in the middle"]
    assert {line["attention"] for line in lines} == {"causal", "bidirectional"}
    for line in lines:
        assert 0 < float(line["first"]) < 1 and float(line["strongest"]) >= float(line["first"]) / 8
    with (tmp_path / "first-2.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 6 * first_token.MOST
