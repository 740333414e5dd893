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
