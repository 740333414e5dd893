"""docs/sandbox.md is written from the committed results of the attacks."""

from __future__ import annotations

import importlib.util
import json

import pytest
from support.paths import ROOT

FOUND = importlib.util.spec_from_file_location("sandbox_page", ROOT / "docs" / "sandbox.py")
assert FOUND is not None and FOUND.loader is not None
sandbox = importlib.util.module_from_spec(FOUND)
FOUND.loader.exec_module(sandbox)


def test_the_page_is_as_the_program_writes_it() -> None:
    assert sandbox.PAGE.read_text(encoding="utf-8") == sandbox.page(), "write it anew: python docs/sandbox.py"


def test_another_result_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = json.loads(json.dumps(sandbox.results()))
    changed["after"]["limits"]["user"]["read /etc/passwd"] = [False, "read it"]
    monkeypatch.setattr(sandbox, "results", lambda: changed)
    assert sandbox.PAGE.read_text(encoding="utf-8") != sandbox.page()
    assert "| limits | user |" in sandbox.page() and "1 of " in sandbox.counts()
