"""The table of edits, flipped bits, calls and interrupts is that of the committed results, and none of these went wrong."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from support.harm import edited, edits_of_the_manifest, flips
from support.paths import ROOT

FOUND = importlib.util.spec_from_file_location("harm_page", ROOT / "docs" / "harm.py")
assert FOUND is not None and FOUND.loader is not None
harm = importlib.util.module_from_spec(FOUND)
FOUND.loader.exec_module(harm)
AFTER = json.loads(harm.RESULTS.read_text(encoding="utf-8"))["after"]


def test_the_page_is_as_the_program_writes_it() -> None:
    assert harm.PAGE.read_text(encoding="utf-8") == harm.page(), "write it anew: python docs/harm.py"


def test_every_edit_was_tried_and_nothing_went_wrong() -> None:
    assert sum(AFTER["edits"].values()) == sum(1 for _ in edited()) and set(AFTER["edits"]) == {"refused"}
    assert sum(AFTER["fitted"].values()) == sum(AFTER["edits"].values())
    assert set(AFTER["fitted"]) == {"refused", "possible"}
    for part, count in harm.FLIPS.items():
        assert sum(AFTER[part].values()) == count and set(AFTER[part]) <= {"refused", "harmless"}


def test_every_interrupt_was_tried_and_ended_well() -> None:
    assert [(one["phase"], one["when"]) for one in AFTER["interrupts"]] == [(i.phase, i.when) for i in harm.INTERRUPTS]
    assert all(one["code"] == 130 and one["kept"] and not one["traceback"] for one in AFTER["interrupts"])


@pytest.mark.slow
def test_what_is_measured_now_is_no_worse(tmp_path: Path) -> None:
    for name, part in enumerate(harm.FLIPS):
        assert set(flips(tmp_path / str(name), part, 10)) <= {"refused", "harmless"}
    assert set(edits_of_the_manifest(tmp_path / "edits")) == {"refused"}
    assert edits_of_the_manifest(tmp_path / "fitted", fits=True) == AFTER["fitted"]
