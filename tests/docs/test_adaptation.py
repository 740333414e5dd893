"""The page on the adaptation of SmolLM2 is written from the committed files of its runs."""

from __future__ import annotations

import importlib.util

from support.paths import ROOT

FOUND = importlib.util.spec_from_file_location("adaptation", ROOT / "docs" / "adaptation.py")
assert FOUND is not None and FOUND.loader is not None
adaptation = importlib.util.module_from_spec(FOUND)
FOUND.loader.exec_module(adaptation)


def test_the_page_is_as_the_program_writes_it() -> None:
    assert adaptation.PAGE.read_text(encoding="utf-8") == adaptation.page(), "python docs/adaptation.py"


def test_what_the_page_says_of_the_sink_is_in_the_files() -> None:
    (arm, *_), (opened, *_), run = (adaptation.looks(name) for name in ("arm.csv", "opened.csv", "seed-0.csv"))
    assert arm["alpha_first"] > 0.3 and arm["value_first"] < 0.6 and opened["alpha_first"] < 0.05
    later = [look for look in run if look["step"] >= 40]
    assert later and all(look["alpha_first"] > 0.2 and look["value_first"] < 0.5 for look in later)
    assert [look["validation_loss"] for look in run] == sorted((look["validation_loss"] for look in run), reverse=True)


def test_the_other_order_of_the_data_agrees() -> None:
    first, second = (adaptation.looks(f"seed-{seed}.csv")[-1] for seed in (0, 1))
    assert first["step"] == second["step"] == 320
    assert abs(first["validation_loss"] - second["validation_loss"]) < 0.05
    assert abs(first["alpha_first"] - second["alpha_first"]) < 0.05 and second["alpha_first"] > 0.2
    assert (round(first["value_first"], 2), round(second["value_first"], 2)) == (0.44, 0.64)  # as the page says
    back = [look for look in adaptation.looks("seed-1.csv") if look["step"] == 40]
    assert back and back[0]["alpha_first"] > 0.15 and back[0]["value_first"] < 0.7
