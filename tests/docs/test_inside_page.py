"""The page on the inside is written from the committed files of its runs, and says what they say."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from support.paths import ROOT

FOUND = importlib.util.spec_from_file_location("inside", ROOT / "docs" / "inside.py")
assert FOUND is not None and FOUND.loader is not None
inside = importlib.util.module_from_spec(FOUND)
FOUND.loader.exec_module(inside)


def test_the_page_is_as_the_program_writes_it() -> None:
    assert inside.PAGE.read_text(encoding="utf-8") == inside.page(), "python docs/inside.py"


def test_another_verdict_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = inside.tests
    monkeypatch.setattr(
        inside, "tests", lambda run: ((name, {**test, "verdict": "refuted"}) for name, test in real(run))
    )
    assert inside.PAGE.read_text(encoding="utf-8") != inside.page()


def test_what_the_page_says_of_the_models_trained_on_stories() -> None:
    adapted = {
        line["ranked by"]: float(line["all others"])
        for line in inside.lines("next-1", "triple")
        if line["model"] == "triple-adapted-0"
    }
    assert [round(value, 2) for value in adapted.values()] == [0.90, 0.91, 0.95, 0.98]
    assert list(adapted)[2:] == ["importance in the second layer", "the leftmost mask"]
    assert verdict("triple", "triple-adapted-0", "as growth and not")["verdict"] == "refuted"
    for model, share in (("triple-dlm-0", "0.04"), ("triple-adapted-0", "0.15")):
        middle = verdict("triple", model, "middle layer")
        assert f"{middle['value']:.2f}" == share and middle["verdict"] == "refuted"
        assert verdict("triple", model, "nats per token")["verdict"] != "supported"


def verdict(run: str, model: str, words: str) -> dict[str, Any]:
    (found,) = (test for _, test in inside.tests(run) if test["model"] == model and words in test["statistic"])
    return found


def test_where_the_answer_is_known_it_is_what_was_found() -> None:
    random = [test for _, test in inside.tests("untrained")]
    assert {test["model"] for test in random} == {f"untrained:mini-{name}" for name in ("llada", "dream", "llama")}
    assert len([test for test in random if test["comparisons"]]) > 15
    assert [test for test in random if test["verdict"] == "supported"] == []
    assert verdict("planted", "planted", "another layer has")["verdict"] == "supported"
    assert verdict("planted", "planted", "middle layer")["verdict"] == "undecided"


def test_what_the_page_says_is_in_the_files() -> None:
    for model, all_others in (("mini-llada", "0.51"), ("mini-dream", "0.49")):
        growth = verdict("", model, "growth of attention puts")
        assert f"{growth['value']:.2f}" == all_others and growth["verdict"] == "undecided"
        assert verdict("", model, "another layer has")["verdict"] == "supported"
        assert verdict("", model, "over the median")["verdict"] == "refuted"
    assert verdict("", "mini-dream", "middle layer")["verdict"] == "refuted"
    ranked = {(line["model"], line["ranked by"]): line for line in inside.lines("next-1")}
    assert f"{float(ranked['mini-llada', 'importance in the first layer']['neighbours']):.2f}" == "0.65"
    assert {line["kept for 90 %"] for line in ranked.values()} <= {"1", "0.96"}
    (channel,) = inside.lines("outlier-1", "smollm2")
    assert (channel["channel"], round(float(channel["in medians"]))) == ("507", 69)
    cost = {line["taken out"]: line for line in inside.lines("outlier-2", "smollm2")}
    assert round(float(cost["the largest channel"]["nats per token lost"])) == 14
    control = cost["random channels as large"]
    assert (control["channels"], f"{float(control['nats per token lost']):.1f}") == ("54", "1.8")
    small = [float(line["in medians"]) for line in inside.lines("outlier-1")]
    assert min(small) > 1.4 and max(small) < 3
